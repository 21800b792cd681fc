"""Receivers of findings and reports: trackers, chats, files, commands."""
