"""Learn: propose, collect examples, learn preconditions, validate, write invariants."""
