"""What is measured of two sets of logits, and the rule by which they agree."""
