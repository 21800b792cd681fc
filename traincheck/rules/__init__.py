"""Know, built in: one package per theme, one file per rule, named by its code."""
