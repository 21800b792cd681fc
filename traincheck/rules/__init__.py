"""Know, built in: one package per theme; a file holds a rule with state, or several small ones."""
