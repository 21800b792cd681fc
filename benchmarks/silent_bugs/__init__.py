"""Real silent bugs beside their healthy twins, and clean pipelines; what traincheck says of each.

``python -m benchmarks.silent_bugs``. docs/benchmark.md tells what its columns mean.
"""
