"""The texts that a model reads: files, their tokens, and windows of these."""
