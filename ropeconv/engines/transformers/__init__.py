"""Models in the installed transformers: loaded as anybody loads them, patched, and read in chunks."""
