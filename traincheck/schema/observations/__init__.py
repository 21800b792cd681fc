"""Observations: one typed record for each kind of fact that the recorder notes beside events."""
