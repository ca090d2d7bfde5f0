"""Encodings of a checkpoint: one file each, registered once."""
