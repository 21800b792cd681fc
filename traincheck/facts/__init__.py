"""State of training that follows from events. Facts give no verdict; monitors judge by them."""
