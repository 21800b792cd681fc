"""Know, learned: one package per relation, listed in registry.py."""
