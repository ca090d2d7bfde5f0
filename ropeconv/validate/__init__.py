"""Validation: the files, frequencies and logits of an output, compared with the source and a
reference.
"""
