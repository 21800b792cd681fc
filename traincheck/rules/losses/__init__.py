"""Rules about the arguments of losses."""
