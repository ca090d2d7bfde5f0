"""Hostile inputs: each format has a file in `kinds/` that writes the N-th input and names the commands to run on it.

`python -m tests.faults.inputs NAME [FIRST [LAST]]` runs some of them and prints the distinct failures.
"""
