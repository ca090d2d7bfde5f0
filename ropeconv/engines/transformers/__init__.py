"""Models in the installed transformers: loaded with `from_pretrained`, patched, and read in
chunks.
"""
