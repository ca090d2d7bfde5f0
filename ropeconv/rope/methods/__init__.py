"""The methods of context extension: one class each, in `method.REGISTRY` by the name of its
flag.
"""
