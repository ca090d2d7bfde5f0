"""Reads the source of a comparison in all its variants, in such a way that its logits show a wrong output."""
