"""The bound on the base: the smallest base for a length, and the effective length of a schedule."""
