"""The monitors, and the events that each of them gets."""
