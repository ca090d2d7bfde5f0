"""Frequencies found by measurement on the user's own text, for one model: `ropeconv tune`."""
