"""Probes: experiments on a running program, and the words for their results."""
