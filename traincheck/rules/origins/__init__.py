"""Rules about the origins of values: loaded, restored, averaged, never trained."""
