"""Checkpoints with quantised weights, presented in float32. Read `checkpoint.py` first."""
