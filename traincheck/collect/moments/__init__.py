"""Functions of torch, each replaced in one place, and those who listen to their calls."""
