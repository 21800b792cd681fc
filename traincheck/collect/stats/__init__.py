"""Which numbers of tensors are taken, and when."""
