"""Does a runtime compute the method? The installed runtime's own frequencies, and logits against a reference."""
