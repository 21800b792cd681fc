"""Read tensors without leaving a trace of it: fingerprints, norms, summaries. Stateless."""
