"""The older name of traincheck.receivers, which other packages import."""
