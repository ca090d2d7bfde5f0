"""The tokens that a comparison reads: those of a text file, or synthetic ones with repetitions."""

from __future__ import annotations

from pathlib import Path

from ...errors import BadSource
from ...pretrained import load_tokenizer

SPAN = 24  # tokens that come back
SHARE = 0.5


def synthetic(count: int, vocabulary: int, seed: int) -> list[int]:
    """Random tokens, about half of them spans of 24 that repeat earlier ones, so that attention to the past matters."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    found: list[int] = []
    while len(found) < count:
        if len(found) > 2 * SPAN and torch.rand(1, generator=generator).item() < SHARE:
            start = int(torch.randint(len(found) - SPAN, (1,), generator=generator).item())
            found += found[start : start + SPAN]
        else:
            found += torch.randint(vocabulary, (SPAN,), generator=generator).tolist()
    return found[:count]


def of_text(file: Path, folder: Path, count: int, trust: bool = False) -> list[int]:
    """The first `count` tokens of a text file.

    file: in UTF-8. folder: the checkpoint with the tokenizer. trust: run code of that. Raises BadSource where the file
    cannot be read or is too short, or the tokenizer does not load.
    """
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise BadSource(f"{file} cannot be read as UTF-8 text ({problem}); give another --text") from None
    found: list[int] = load_tokenizer(folder, trust, "leave --text out")(text).input_ids
    if len(found) < count:
        raise BadSource(
            f"{file} has {len(found)} tokens and {count} are needed; give a longer --text or --length {len(found)}"
        )
    return found[:count]
