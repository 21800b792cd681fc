"""Find the variables of a process, name them, and detect their changes."""
