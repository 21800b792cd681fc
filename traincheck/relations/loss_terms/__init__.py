"""The relation *loss_terms*."""
