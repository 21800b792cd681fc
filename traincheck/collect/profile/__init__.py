"""Profile chosen steps: time, memory, FLOPs and the first non-finite value of each layer."""
