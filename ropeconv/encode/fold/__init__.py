"""Folding: factors multiplied into weights, from the choice of rows to the bytes of the files."""
