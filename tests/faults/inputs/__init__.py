"""Hostile inputs: files in `kinds/` write the N-th input of each format and name the commands to run on it.

`python -m tests.faults.inputs.worker FORMAT NUMBER,NUMBER` runs some of them and prints what came of it.
"""
