"""Judge: the one engine that live and recorded runs pass through."""
