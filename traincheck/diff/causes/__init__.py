"""The table of causes: what differs first, by what agrees before it."""
