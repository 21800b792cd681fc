"""Observers: facts about a program besides its calls and variables. Related ones share a module."""
