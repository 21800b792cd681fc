"""Where values come from: samples of tensors at loads, first updates, saves and evaluations."""
