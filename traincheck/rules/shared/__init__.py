"""Views of events that rules of several themes use."""
