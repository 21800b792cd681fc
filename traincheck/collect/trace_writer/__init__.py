"""Number records and hand them to the kernel; what the fields of a record are made of."""
