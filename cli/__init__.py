"""Command line programs, one file per command. Installed as traincheck.cli."""
