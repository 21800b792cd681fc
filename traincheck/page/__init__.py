"""The report as a page: one file that needs no network, no server and no other file."""
