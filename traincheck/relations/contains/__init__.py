"""The relation *contains*."""
