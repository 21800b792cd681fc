"""Keep: write, read, tail and convert traces."""
