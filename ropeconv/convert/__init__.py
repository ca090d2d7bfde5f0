"""A schedule as edits of a checkpoint or GGUF file.

Here are encodings, folds, and the conversion to and from GGUF.
"""
