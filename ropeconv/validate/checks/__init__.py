"""Checks that need no forward pass of the model."""
