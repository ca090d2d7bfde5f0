"""The tokens that a comparison reads, their positions, and the positions whose logits are compared."""
