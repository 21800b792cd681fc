"""Rules about wasted hardware."""
