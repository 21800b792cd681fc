"""The state of a run, which follows from its events. It gives no verdict; monitors use it."""
