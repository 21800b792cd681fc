"""Compare two recorded runs, the ranks of one, or a run and its resume: the first difference."""
