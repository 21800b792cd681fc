"""Checking within the user's process: `traincheck.watch`, and callbacks of frameworks."""
