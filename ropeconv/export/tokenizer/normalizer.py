"""Which normalizers of a tokenizer.json leave text as llama.cpp reads it."""

from __future__ import annotations

from ...errors import BadSource, shown
from .files import Normalizer, Pattern
from .tokens import SPACE

COMPOSED = frozenset([Normalizer("NFC")])
"""Composes characters. llama.cpp does not, which changes tokens of decomposed text only; Qwen 2 and 3 have it."""
SPACES = frozenset(
    [Normalizer("Prepend", prepend=SPACE), Normalizer("Replace", pattern=Pattern(String=" "), content=SPACE)]
)
"""What the SentencePiece tokenizer of llama.cpp does by itself."""


def composes(normalizer: Normalizer | None) -> bool:
    """Whether a normalizer composes characters, which llama.cpp does not do."""
    return normalizer is not None and not COMPOSED.isdisjoint(normalizer.steps)


def check_normalizer(normalizer: Normalizer | None, known: frozenset[Normalizer]) -> None:
    """Raises BadSource for a normalizer with a step that is not among the known ones: its tokens would differ."""
    for step in normalizer.steps if normalizer else ():
        if step not in known:
            raise BadSource(
                f"tokenizer.json normalizes text by {shown(step.type)}, which llama.cpp does not do, so its tokens "
                "would differ; export to safetensors, or remove that normalizer if the model was trained without it"
            )
