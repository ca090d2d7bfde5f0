"""Measurements of time and memory, each beside `cp` or another program; `scripts/bench` lists
them.
"""
