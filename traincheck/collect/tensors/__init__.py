"""Read tensors without side effects: fingerprints, norms, summaries. Stateless."""
