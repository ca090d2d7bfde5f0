"""Texts of a dataset on the Hub."""

from __future__ import annotations

import numpy as np

from ...errors import BadSource
from ...extras import require
from .documents import Document, Texts, Tokenizer

MOST = 1000
"""Documents that are taken from the beginning of a dataset."""


def dataset_texts(name: str, field: str, tokenizer: Tokenizer) -> Texts:
    """The texts of the first rows of a dataset, which are streamed.

    name: owner/name, with a split behind a colon (`test` where none is given). field: the column with the text.
    tokenizer: of the model. Raises BadSource where the dataset does not load or has no such column.
    """
    require("datasets", "--dataset")
    import datasets

    repository, _, split = name.partition(":")
    try:
        rows = datasets.load_dataset(repository, split=split or "test", streaming=True)
        found = [row[field] for row in rows.take(MOST)]
    except KeyError:
        raise BadSource(f"{name} has no column {field!r}; name the one with the text with --field") from None
    except (OSError, ValueError, RuntimeError) as problem:
        raise BadSource(f"the dataset {name} does not load ({problem}); correct --dataset, or give --text") from None
    documents = [
        Document(f"{repository} {number}", np.array(tokenizer.encode(text), np.int32))
        for number, text in enumerate(found)
        if isinstance(text, str) and text.strip()
    ]
    if not documents:
        raise BadSource(f"{name} has no text in {field!r}; name another column with --field")
    return Texts(tuple(documents), tokenizer)
