"""Measures between two sets of logits, and the rule by which these agree."""
