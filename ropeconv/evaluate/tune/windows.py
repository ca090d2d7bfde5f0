"""Window, a piece of text that a search reads with every schedule; and which texts are kept from the search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...errors import BadSource
from ...rope.lengths import format_tokens
from ..cases import Case, EvaluationSizes
from ..measures.retrieval import Passkey
from ..texts import TextDocument, Texts, window_ends

HELD_OUT = 3
"""One text of so many, or one part of a text, is kept from the search."""
DEPTHS = 5


@dataclass(frozen=True)
class Size:
    """What a search reads.

    context: tokens of a window. trained: the trained context in tokens. windows: how many. targets: tokens that are
    predicted in each, inside the trained context and beyond it alike. needles: whether each window also has a number
    hidden in the text, which is asked for. seed: of places and numbers.
    """

    context: int
    trained: int
    windows: int
    targets: int
    needles: bool = False
    seed: int = 0


@dataclass(frozen=True, eq=False)
class TextWindow:
    """A piece of text.

    text: the sequence with its targets. beyond: index of the first of them beyond the trained context. needle: the same
    length of text with a hidden number, whose digits are the targets; None without.
    """

    text: Case
    beyond: int
    needle: Case | None = None

    @property
    def digest(self) -> str:
        """Of everything that is read and predicted."""
        return f"{self.text.digest} {self.needle.digest if self.needle else ''}"


def split(texts: Texts, context: int) -> tuple[Texts, Texts, str]:
    """Texts to search with, texts that are held out, and a sentence about the latter.

    With enough texts of `context` tokens every third one is held out, else the last third of each. texts: all. context:
    tokens of a window. Raises BadSource where there is not enough text for both.
    """
    room = context - len(texts.prefix)
    long = [document for document in texts.documents if len(document.ids) >= room]
    if len(long) >= HELD_OUT:
        held = long[HELD_OUT - 1 :: HELD_OUT]
        rest = [document for document in long if document not in held]
        return _of(texts, rest), _of(texts, held), f"{len(held)} of {len(long)} texts are held out"
    parts = [_cut(document) for document in texts.documents]
    search, held = [first for first, _ in parts], [last for _, last in parts]
    most = max(len(document.ids) for document in held)
    if most < room:
        raise BadSource(
            f"a third of the text is held out, and has {most:,} tokens of the {room:,} of a window; give a longer "
            f"--text, {HELD_OUT} texts of that length, or a --context up to {format_tokens(most + len(texts.prefix))}"
        )
    fits = [len(document.ids) >= room for document in held]
    return (
        _of(texts, [one for one, fit in zip(search, fits, strict=True) if fit]),
        _of(texts, [one for one, fit in zip(held, fits, strict=True) if fit]),
        "the last third of the text is held out, so that errors do not say how other texts differ",
    )


def _cut(document: TextDocument) -> tuple[TextDocument, TextDocument]:
    end = len(document.ids) * (HELD_OUT - 1) // HELD_OUT
    return replace(document, ids=document.ids[:end]), replace(document, ids=document.ids[end:])


def _of(texts: Texts, documents: Sequence[TextDocument]) -> Texts:
    return replace(texts, documents=tuple(documents))


def windows(texts: Texts, size: Size) -> list[TextWindow]:
    """The windows of texts. size: how many, and of what. There may be fewer in short texts."""
    asked = EvaluationSizes(
        (size.context,), size.trained, size.windows, max(1, size.targets), 1 + (DEPTHS - 1) * size.needles, size.seed
    )
    first, split = max(len(texts.prefix), 1), min(size.trained, size.context)
    inside, beyond = (_spread(*ends, size.targets) for ends in ((first, split), (split, size.context)))
    targets = np.concatenate([inside, beyond])
    needles = list(Passkey().cases(texts, asked)) if size.needles else []
    found = []
    for number, (document, end) in enumerate(window_ends(texts, asked, size.context)):
        text = Case("tune", size.context, document, number, texts.window(document, end, size.context), targets)
        needle = needles[number * DEPTHS + number % DEPTHS] if needles else None
        found.append(TextWindow(text, len(inside), needle))
    return found


def _spread(first: int, last: int, count: int) -> np.ndarray:
    """`count` indices from `first` to below `last` at even distances, or all of them."""
    if last - first <= count:
        return np.arange(first, last, dtype=np.int32)
    return np.linspace(first, last - 1, count).round().astype(np.int32)
