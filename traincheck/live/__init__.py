"""A run that goes on, seen from its files: its status, what a live check found, a terminal view."""
