"""Rules about what is in force: hyper-parameters, metrics, orders and samples."""
