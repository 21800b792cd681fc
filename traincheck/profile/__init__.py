"""Profiles of layers: read from traces, shown as a tree, table, JSON or CSV, and compared."""
