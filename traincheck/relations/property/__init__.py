"""The relation *property*: what experiments and observations show of a healthy program."""
