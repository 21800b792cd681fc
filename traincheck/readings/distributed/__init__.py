"""Training state of several ranks: groups, collectives, replicas, steps."""
