"""One recording in one process: start and end, failures, step boundaries."""
