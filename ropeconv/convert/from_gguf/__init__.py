"""Conversion of a GGUF file to a checkpoint, from the tables of `to_gguf`."""
