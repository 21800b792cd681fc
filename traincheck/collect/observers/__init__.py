"""What is observed of a program besides its calls and variables: one module an observation."""
