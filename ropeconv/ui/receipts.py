"""The receipt of a model that is an output."""

from __future__ import annotations

from pathlib import Path

from ..errors import BadSource
from ..formats.regular import read_text
from ..receipts import Receipt, parse_receipt, read_receipt
from ..sources import RECEIPT, GgufSource, Source


def receipt_of(source: Source | GgufSource) -> Receipt:
    """The receipt of a model. Raises BadSource where it has none, or one that cannot be read."""
    reference = source.reference
    if isinstance(source, GgufSource):
        if Path(reference).expanduser().is_file():
            return read_receipt(source.path)
        text = source.file.get(RECEIPT)
        if not isinstance(text, str):
            raise BadSource(f"{reference} has no receipt among its keys, so it is not an output of ropeconv")
        return parse_receipt(text, reference)
    if RECEIPT not in {file.name for file in source.files()}:
        raise BadSource(f"{reference} has no {RECEIPT}, so it is not an output of ropeconv; give one that is")
    return parse_receipt(read_text(source.path(RECEIPT), RECEIPT), reference)
