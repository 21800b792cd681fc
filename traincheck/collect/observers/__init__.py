"""Observers: facts about a program besides its calls and variables. One module per observation."""
