"""A schedule as edits of a checkpoint or GGUF file: encodings, folds, and conversion to and from
GGUF.
"""
