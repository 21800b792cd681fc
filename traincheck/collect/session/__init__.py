"""One recording in one process: its life, its failures, the ends of its steps."""
