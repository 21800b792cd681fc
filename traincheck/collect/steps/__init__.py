"""When a step ends, and which steps are recorded. Independent of tensors."""
