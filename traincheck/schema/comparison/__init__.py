"""Forms of records for the comparison of runs: sketches, states of generators, the view."""
