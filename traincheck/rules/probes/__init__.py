"""Rules about the results of probes."""
