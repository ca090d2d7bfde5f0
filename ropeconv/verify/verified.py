"""Verified, the result of comparing an output with its plan, and Found, which gathers what differs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from ..errors import Disagreement, counted

LONGEST = 3  # differences that a message names


@dataclass(frozen=True)
class Options:
    """How an output is compared.

    quick: leave out the bytes of the weights. edited: accept other files where these do not change what is computed, as
    --ignore-receipt says. code: accept other modelling code, as --trust-remote-code says.
    """

    quick: bool = False
    edited: bool = False
    code: bool = False


@dataclass(frozen=True)
class Verified:
    """What was compared, and agrees.

    files: number of files. bytes: of the weights that were compared. quick: whether the weights were left out. notes:
    sentences on files that are not from the plan, or not as there, and harmless. unverified: sentences on what could
    not be compared; empty without `quick`.
    """

    files: int
    bytes: int
    quick: bool = False
    notes: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-ready data."""
        return {
            "files": self.files, "bytes": self.bytes, "quick": self.quick, "notes": list(self.notes),
            "unverified": list(self.unverified),
        }  # fmt: skip

    @property
    def sentence(self) -> str:
        """The result for people."""
        given = f"{counted(self.files, 'file is', 'files are')} what recipe and source give"
        if self.quick:
            return f"{given}; --quick left out the bytes of the weights."
        return f"{given}, {self.bytes:,} bytes of weights among them."


@dataclass
class Found:
    """What a comparison finds. wrong: clauses on what differs. notes, unverified, files, bytes: as in `Verified`."""

    options: Options
    wrong: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unverified: list[str] = field(default_factory=list)
    files: int = 0
    bytes: int = 0

    def differs(self, what: str, *, harmless: bool = False) -> None:
        """Records a difference. what: a clause. harmless: whether it is only worth a note."""
        (self.notes if harmless else self.wrong).append(what)

    def result(self, baked: Path) -> Verified:
        """The result. baked: the output. Raises Disagreement where something differs."""
        if self.wrong:
            self._refuse(baked)
        return Verified(self.files, self.bytes, self.options.quick, tuple(self.notes), tuple(self.unverified))

    def _refuse(self, baked: Path) -> NoReturn:
        named, more = self.wrong[:LONGEST], len(self.wrong) - LONGEST
        what = "; ".join(named) + (f"; and {more} more" if more > 0 else "")
        raise Disagreement(f"{baked} is not what its recipe and source give: {what}; run apply again")
