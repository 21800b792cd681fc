"""What a run did around a violation, and what its reference did there."""
