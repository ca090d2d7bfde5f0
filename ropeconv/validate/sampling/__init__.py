"""Which tokens are read, at which positions, and where logits are compared."""
