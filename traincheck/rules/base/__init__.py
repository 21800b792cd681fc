"""Base classes of rules: one for each unit that a rule judges."""
