"""Damaged and hostile inputs: every reader must refuse or skip them, and never crash or hang.

    python -m benchmarks.fuzz --cases 5000 --seed 0

See `docs/benchmark.md`.
"""
