"""Public reports of silent bugs, rebuilt, and healthy pipelines that no rule was tuned on.

``python -m benchmarks.field``. docs/field.md has the figures.
"""
