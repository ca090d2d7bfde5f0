"""Hostile inputs: `kinds` writes the N-th input of each format and names the commands to run on
it.
"""
