"""Runners: how the rows of an evaluation become engines."""
