"""Counts the changes of the source that the tests notice."""
