"""The texts of commands that read them: files, or a dataset of the Hub."""

from __future__ import annotations

from ..errors import UsageError


def texts_of(names: list[str], dataset: str, field: str) -> list[tuple[str, str]]:
    """Names and contents of texts.

    names: of --text. dataset: of --dataset, empty for none. field: its column. Raises UsageError for both and for
    neither.
    """
    from ..evaluate.texts.dataset import read_dataset
    from ..evaluate.texts.read import read_files

    if names and dataset:
        raise UsageError("--text and --dataset are two sources of text; give one of them")
    return read_dataset(dataset, field) if dataset else read_files(names)
