"""What is fed with events, and which events each monitor gets."""
