"""Faults on purpose: kills, failing disks, lost power, two commands at once, hostile inputs, wrong outputs.

Each run of the tests takes a sample; `scripts/faults --all` takes every case and prints how many there were.
"""
