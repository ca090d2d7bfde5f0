"""The methods of context extension: one class each, in `method.REGISTRY` by its flag."""
