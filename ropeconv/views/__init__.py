"""Tables, sentences and pictures of plans, inspections and results, for terminals, pages and
reports.
"""
