"""The measures: one class each, in `measure.REGISTRY` by name."""
