"""Number records, serialize their common fields and write them."""
