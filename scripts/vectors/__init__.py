"""Packets of conformance vectors for all methods and architectures, and their runs in engines."""
