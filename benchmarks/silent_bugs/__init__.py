"""Real silent bugs with their healthy twins, and clean pipelines: the findings of traincheck.

``python -m benchmarks.silent_bugs``. docs/benchmark.md explains its columns.
"""
