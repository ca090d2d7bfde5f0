"""Proofs: the installed runtime's own frequencies, and logits against a reference made another way."""
