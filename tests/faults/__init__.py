"""Faults while a command runs, wrong outputs and hostile inputs: see SECURITY.md."""
