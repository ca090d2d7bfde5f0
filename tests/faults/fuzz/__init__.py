"""Inputs for every parser, found by the branches that they reach, and kept."""
