"""Checks of an output that need no forward pass: files, frequencies, folded weights, and its own code."""
