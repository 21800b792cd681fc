"""Rules about the content of batches: tokens, masks, images."""
