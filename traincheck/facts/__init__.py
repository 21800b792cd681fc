"""Training state that follows from events. Facts give no verdict; monitors use them."""
