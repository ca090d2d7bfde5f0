"""Trains small models from scratch and measures on them what papers on context extension report."""
