"""Receipt, the record of how an output was made, and the functions that write and read it."""

from .read import has_receipt, parse_receipt, read_receipt, receipt_of
from .receipt import Receipt
from .recipe import read_recipe
from .write import add_evaluation, add_validation, clear_drafts, embedded, write_receipt

__all__ = [
    "Receipt", "add_evaluation", "add_validation", "clear_drafts", "embedded", "has_receipt", "parse_receipt",
    "read_receipt", "read_recipe", "receipt_of", "write_receipt",
]  # fmt: skip
