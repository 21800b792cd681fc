"""Checking within the user's own process: `traincheck.watch`, and callbacks of frameworks."""
