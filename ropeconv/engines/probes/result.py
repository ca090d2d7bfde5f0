"""The result of `probe`: what an installed runtime computes from a model's config."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ...inspection.support import WORDS
from ...rope.errors import counted
from ...rope.schedule import Schedule
from ...rope.summary import Summary
from ...runtimes.runtime import GOOD, WRONG, Status
from ...runtimes.verdict import frequencies
from .outcome import Outcome, RuntimeAnswer


@dataclass(frozen=True)
class ProbeResult(Summary):
    """The RoPE that an installed runtime computes from a config, and the right one."""

    subject: str
    """The model, as the user named it."""

    runtime: str
    """The runtime, as `--runtime` has it."""

    title: str
    """Its name and version for people."""

    version: str

    python: str
    """The interpreter that ran it."""

    status: Status
    """As in `Verdict`."""

    reason: str
    """The difference, or a remark; empty where there is nothing to say."""

    expected: str
    """The schedule for people, such as "yarn, theta 1000000, factor 4"."""

    expected_attention_factor: float
    """The factor on cos and sin that it should apply."""

    attention_factor: float | None
    """The one that it applies; None where no layer was seen."""

    deviation: float | None
    """The largest relative deviation of a frequency; None where none could be compared."""

    switches: bool
    """Whether frequencies or factor depend on the length of the prompt."""

    context: int
    """The declared length, in tokens, at which it was asked."""

    window: int | None
    """The longest prompt without an option, in tokens; None where it has no limit of its own."""

    rotating: int
    """The number of layers that rotate, of those that were built."""

    layers: int
    """The number of layers that were built."""

    model_class: str
    """The model class that was built; empty where none was."""

    backend: str = ""
    """"transformers" where the runtime runs the class of transformers."""

    @property
    def is_right(self) -> bool:
        """Whether it computes the schedule."""
        return self.status in GOOD

    @property
    def is_wrong(self) -> bool:
        """Whether it was seen to compute something else, or to fail."""
        return self.status in WRONG

    @property
    def sentence(self) -> str:
        """The conclusion for people."""
        if self.is_right:
            text = f"{self.title} computes {self.expected} from {self.subject}"
            return f"{text}; {self.reason}." if self.reason else f"{text}."
        text = f"{self.title}: {WORDS[self.status]}"
        return f"{text}, {self.reason}." if self.reason else f"{text}."

    def rows(self) -> list[tuple[str, str]]:
        """Return the rows of the table on the screen, such as ("status", "exact")."""
        rows: list[tuple[str, str]] = [("status", self.status)]
        if self.reason:
            rows.append(("reason", self.reason))
        rows.append(("expected", self.expected))
        if self.deviation is not None:
            rows.append(("frequencies", f"within {self.deviation:.1e} of it, relative"))
        if self.attention_factor is not None:
            words = f"{self.attention_factor:.6g}"
            if f"{self.expected_attention_factor:.6g}" != words:
                words += f", not {self.expected_attention_factor:.6g}"
            rows.append(("attention factor", words))
        if self.layers:
            changes = "change" if self.switches else "do not change"
            rows.append(("short prompts", f"frequencies {changes} with the length of the prompt"))
            built = f"{self.rotating} of {counted(self.layers, 'layer')} built"
            rows.append(("rotates", f"{built} ({self.model_class})"))
        if self.window is not None:
            rows.append(("longest prompt", f"{self.window:,} tokens without an option"))
        elif self.model_class:
            rows.append(("longest prompt", "not limited by its config"))
        rows.append(("run", f"{self.title}, {self.python}"))
        return rows

    def summary(self) -> dict[str, str]:
        """Return the values that are shown, by name."""
        values = {
            "sentence": self.sentence,
            "status": self.status,
            "reason": self.reason,
            "expected": self.expected,
            "deviation": "",
            "attention_factor": "",
            "window": "",
            "model_class": self.model_class,
            "python": self.python,
        }
        if self.deviation is not None:
            values["deviation"] = f"{self.deviation:.1e}"
        if self.attention_factor is not None:
            values["attention_factor"] = f"{self.attention_factor:.6g}"
        if self.window is not None:
            values["window"] = f"{self.window:,}"
        return values

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON-ready data."""
        return asdict(self) | {"sentence": self.sentence}


def expectation(schedule: Schedule) -> str:
    """Return a schedule for people: its formula, and its attention factor unless that is 1."""
    text = frequencies(schedule)
    if schedule.attention_factor != 1:
        text += f", attention factor {schedule.attention_factor:.6g}"
    return text


def layer_counts(answer: RuntimeAnswer) -> dict[str, int]:
    """Return the number of layers that were built, and of those that rotate."""
    rotating = sum(index is not None for index in answer.layers)
    return {"rotating": rotating, "layers": len(answer.layers)}


def rounded_factor(outcome: Outcome) -> float | None:
    """Return the attention factor that was read, without the noise of float32."""
    if outcome.attention_factor is None:
        return None
    return float(f"{outcome.attention_factor:.7g}")
