"""The forms in which weights are stored quantised, one module each."""
