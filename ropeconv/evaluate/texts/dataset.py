"""Texts of a dataset on the Hub."""

from __future__ import annotations

from ...errors import BadSource, UsageError
from ...extras import require

MOST = 1000
"""Documents that are taken from the beginning of a dataset."""
TRUST = "HF_DATASETS_TRUST_REMOTE_CODE"


def read_dataset(name: str, field: str) -> list[tuple[str, str]]:
    """Names and contents of the first rows of a dataset, which are streamed.

    name: owner/name, owner/name:SPLIT, or owner/name:CONFIG:SPLIT; `test` where no split is given. field: the column
    with the text. Raises BadSource where the dataset does not load or has no such column.
    """
    require("datasets", "--dataset")
    import datasets

    repository, *parts = name.split(":")
    if len(parts) > 2:
        raise UsageError(f"--dataset {name} is not understood; write it like owner/name:CONFIG:SPLIT")
    split = parts[-1] if parts else "test"
    if getattr(datasets.config, TRUST, None) is not True:  # datasets 3 asks on stdin, unless the environment says yes
        setattr(datasets.config, TRUST, False)
    try:
        rows = datasets.load_dataset(repository, parts[0] if len(parts) == 2 else None, split=split, streaming=True)
        found = [row[field] for row in rows.take(MOST)]
    except KeyError:
        raise BadSource(f"{name} has no column {field!r}; name the one with the text with --field") from None
    except (OSError, ValueError, RuntimeError) as problem:
        said = str(problem).splitlines() or [type(problem).__name__]
        raise BadSource(
            f"the dataset {name} does not load ({said[0]}); correct --dataset (owner/name:CONFIG:SPLIT), or give --text"
        ) from None
    pairs = [(f"{repository} {n}", text) for n, text in enumerate(found) if isinstance(text, str) and text.strip()]
    if not pairs:
        raise BadSource(f"{name} has no text in {field!r}; name another column with --field")
    return pairs
