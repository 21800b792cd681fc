"""Find the variables of a process, name them, and see what changes them."""
