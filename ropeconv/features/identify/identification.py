"""Identification: which candidate a runtime computes, and how far the others are."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from ropeconv.rope.summary import SummaryTable, TableSummary

from .mistakes import RIGHT


@dataclass(frozen=True)
class CandidateResult:
    """How far what a runtime answers is from one candidate."""

    name: str

    words: str
    """The name for people."""

    kl: float
    """The mean KL in nats."""

    kl_95: float
    """The 95th percentile of the KL in nats."""

    fits: bool
    """Whether it is what the runtime computes, or cannot be told from that."""


@dataclass(frozen=True)
class Identification(TableSummary):
    """The result of `identify`: the right schedule and known mistakes by distance. KL in nats."""

    subject: str
    """The output or server, as the user named it."""

    runtime: str
    """Name and version of what ran it."""

    method: str
    """The right method as flags, such as `--yarn 4`."""

    candidates: tuple[CandidateResult, ...]
    """The nearest first."""

    allowed: float
    """The KL that is allowed: its 95th percentile, or its mean where `is_exact` is false."""

    noise: float
    """The KL after single tokens, which no RoPE can change: rounding, and other weights."""

    is_exact: bool
    """Whether the runtime rounds as the candidates do, so that small differences are seen."""

    tokens: int
    """The length of the text."""

    digest: str
    """The digest of the right schedule."""

    device: str = "cpu"
    """Where the candidates were computed."""

    dtype: str = "float32"
    """In which precision."""

    left_out: tuple[str, ...] = ()
    """Names of candidates that could not be computed for this model."""

    own_weights: bool = False
    """Whether the candidates had the weights of the output, a GGUF file, and not the source's."""

    disagreed: bool = False
    """Whether a validation against the source found the output wrong before."""

    record_keys: ClassVar[tuple[str, ...]] = ("name", "words", "kl", "kl_95", "fits")

    @property
    def fits(self) -> tuple[str, ...]:
        """The names of the candidates that fit; several where they cannot be told apart."""
        return tuple(candidate.name for candidate in self.candidates if candidate.fits)

    @property
    def is_right(self) -> bool:
        """Whether the right schedule fits."""
        return RIGHT in self.fits

    @property
    def sentence(self) -> str:
        """The conclusion for people: which candidate the runtime computes.

        A candidate is the right RoPE (`RIGHT`) or a known mistake. None, one, or several of them
        fit the answers.
        """
        # the candidates are sorted, the nearest first
        fitting = [candidate for candidate in self.candidates if candidate.fits]
        others = [candidate for candidate in self.candidates if not candidate.fits]

        # none
        if not fitting:
            text = (
                f"It computes none of the {len(others)} candidates. The nearest is"
                f" {_phrase(others[0])}, and {self.allowed:.1e} is allowed."
            )
            if len(others) > 1:
                text += f" The next is {_phrase(others[1])}."
            return text

        # several
        if len(fitting) > 1:
            words = "; ".join(candidate.words for candidate in fitting)
            start = f"It may compute {self.method}:" if self.is_right else "It computes"
            return f"{start} one of these, which cannot be told apart here: {words}."

        # exactly one: the distance of the next one shows how sure that is
        (found,) = fitting
        if found.name == RIGHT:
            text = self._right_sentence(found)
        else:
            right = next(row for row in self.candidates if row.name == RIGHT)
            text = (
                f"It computes {_phrase(found)}. From {self.method} it has a KL of {right.kl:.1e}."
            )
        mistakes = [candidate for candidate in others if candidate.name != RIGHT]
        if mistakes:
            text += f" The next candidate is {_phrase(mistakes[0])}."
        return text

    def _right_sentence(self, found: CandidateResult) -> str:
        """Return the sentence for the user on an output whose RoPE is right.

        Args:
            found: The right RoPE as a candidate, with its distance from the output as a KL.
        """
        kl = f"KL {found.kl:.1e}"
        # transformers ran the source with the right RoPE
        uses_weights_of_source = not self.own_weights
        if uses_weights_of_source:
            return f"It computes {self.method} as it should ({kl})."

        # Transformers ran the weights of the output, so only the RoPE was compared. If an earlier
        # validation against the source has failed, another part of the output differs.
        validation_had_failed = self.disagreed
        text = f"With the weights of the file, it computes {self.method} as it should ({kl})"
        if validation_had_failed:
            text += ", so its weights, or other keys than those of RoPE, differ from the source's"
        return f"{text}."

    def summary(self) -> dict[str, str]:
        """Return the values that are shown, by name."""
        return {
            "sentence": self.sentence,
            "subject": self.subject,
            "runtime": self.runtime,
            "method": self.method,
            "allowed": f"KL {self.allowed:.1e}",
            "noise": f"KL {self.noise:.1e}",
            "tokens": f"{self.tokens:,}",
            "left_out": ", ".join(self.left_out),
        }

    def shown_tables(self) -> list[SummaryTable]:
        """Return a table with a row for each candidate, the nearest first."""
        rows = []
        for candidate in self.candidates:
            mark = "fits" if candidate.fits else ""
            rows.append((candidate.words, f"{candidate.kl:.1e}", f"{candidate.kl_95:.1e}", mark))
        return [SummaryTable("candidates", ("candidate", "KL", "KL 95 %", ""), rows)]

    def records(self) -> list[dict[str, Any]]:
        """Return a row for each candidate, the nearest first."""
        return [asdict(candidate) for candidate in self.candidates]

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON-ready data."""
        return asdict(self) | {
            "sentence": self.sentence,
            "fits": list(self.fits),
            "is_right": self.is_right,
        }


def _phrase(candidate: CandidateResult) -> str:
    """Return a candidate with its distance."""
    return f"{candidate.words} (KL {candidate.kl:.1e})"
