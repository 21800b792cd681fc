"""Measurements of this project: overhead, inference, detection. Not part of the package."""
