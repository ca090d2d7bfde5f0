"""The receipt of an output: its types, and reading and writing it."""
