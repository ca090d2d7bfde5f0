"""What can be measured: one class each, in `measure.REGISTRY` by name."""
