"""Facts of a run: what the training really did, the most unusual first. Never a verdict."""
