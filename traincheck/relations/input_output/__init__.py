"""The relation *input_output*."""
