"""Probes: experiments on a copy of the process that trains."""
