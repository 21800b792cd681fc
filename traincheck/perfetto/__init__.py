"""A run as a trace of Perfetto, for ui.perfetto.dev."""
