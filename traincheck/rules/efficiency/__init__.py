"""Rules about inefficient use of hardware."""
