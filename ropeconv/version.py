"""The version of the package, and the schema of its JSON documents."""

__version__ = "0.1.0"

SCHEMA = 2
"""Version of the shape of receipts, and of every JSON document that ropeconv prints."""
