"""The report of an evaluation: a page in HTML, and pictures."""
