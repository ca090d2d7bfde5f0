"""Compares every byte of an output with what its recipe and its source give: the plan is made again."""
