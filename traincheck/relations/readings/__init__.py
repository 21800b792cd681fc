"""Scalars read from events and states, which several relations bound."""
