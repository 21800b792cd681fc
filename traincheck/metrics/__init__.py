"""Numbers of modules and variables by step: read from a trace, combined, shown and exported."""
