"""Asked: the sizes of an evaluation, which all measures read."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UsageError
from ..rope.lengths import format_tokens, parse_tokens


@dataclass(frozen=True)
class Asked:
    """The sizes of an evaluation.

    lengths: of the sequences, in tokens, rising. trained: the trained context in tokens. windows: sequences of each
    length. targets: tokens at the end of each that are predicted. depths: places of a fact in a text. seed: of random
    choices. stride: tokens by which a sliding window moves. generate: whether answers are generated instead of
    compared token by token. chat: whether questions are put as messages in the chat template of the model.
    """

    lengths: tuple[int, ...]
    trained: int
    windows: int = 8
    targets: int = 256
    depths: int = 5
    seed: int = 0
    stride: int = 256
    generate: bool = False
    chat: bool = False

    def __post_init__(self) -> None:
        for name in ("windows", "targets", "depths", "stride"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name} is {getattr(self, name)}; give a positive number")
        if not 0 <= self.seed < 1 << 31:
            raise UsageError(f"--seed is {self.seed}; give a number from 0 to {(1 << 31) - 1:,}")
        if self.chat and not self.generate:
            raise UsageError("--chat asks a model to answer, which needs --generate; give both")

    @property
    def longest(self) -> int:
        """The longest length in tokens."""
        return self.lengths[-1]


def parse_lengths(text: str, trained: int) -> tuple[int, ...]:
    """`"1/4T,1T,2T"` or `"8k,32k"` as lengths in tokens, rising and each once; T is the trained context.

    text: as on the command line. trained: in tokens. Raises UsageError and RecipeError for anything else.
    """
    found = set()
    for part in (piece.strip() for piece in text.split(",")):
        if not part.endswith("T"):
            found.add(parse_tokens(part))
            continue
        over, _, under = part[:-1].partition("/")
        try:
            length = round((float(over) if over else 1.0) / (float(under) if under else 1.0) * trained)
        except (ValueError, ZeroDivisionError, OverflowError):
            raise UsageError(
                f"{part!r} is no length; write it like 1/4T, 2T (T is the trained context) or 32k"
            ) from None
        found.add(parse_tokens(str(length)))
    return tuple(sorted(found))


def in_trained(length: int, trained: int) -> str:
    """A length beside the trained context: `"2T"` for twice that, else as `format_tokens` has it. Both in tokens."""
    whole, rest = divmod(length, trained)
    if not rest:
        return f"{whole}T"
    return f"1/{trained // length}T" if trained % length == 0 and trained <= 64 * length else format_tokens(length)
