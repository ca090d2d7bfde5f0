"""The report of a validation: a page in HTML, and plots."""
