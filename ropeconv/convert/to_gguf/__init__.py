"""Conversion of a checkpoint to GGUF: hyperparameters, tensors, tokenizer and general metadata."""
