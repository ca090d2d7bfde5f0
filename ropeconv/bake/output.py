"""Output: what `apply` or `restore` has written or published, with all that is known of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ..errors import UsageError
from ..formats.jsontext import JsonObject
from ..inspection.receipts.receipt import CheckRecord, GgufCheckRecord
from ..summary import Summary
from ..validate.validation import Validation
from .next_steps import NextSteps
from .plan import FilePlan, Plan


@dataclass(frozen=True)
class Output(Summary):
    """An output. It can be passed wherever a path is expected."""

    path: Path | None
    """A folder, or a GGUF file (of several shards the first); None where it is only on the Hub."""

    plan: FilePlan
    """What was written."""

    check: CheckRecord | GgufCheckRecord | None = None
    """What the installed transformers computes from a checkpoint, or what was read back from a GGUF
    file; None where neither was done.
    """

    reason: str = ""
    """Why transformers, or llama.cpp for a conversion, was not run; empty where it was."""

    uncomputed: bool = False
    """Whether the installed transformers does not compute the schedule."""

    against: str = ""
    """The source, for `validate`."""

    validation: Validation | None = None
    """The comparison of logits that was made after writing; None without one."""

    published: str = ""
    """The URL of the commit or pull request; empty where nothing was published."""

    modelfile: Path | None = None
    """The Modelfile of Ollama beside a GGUF file."""

    adapter: Path | None = None
    """The copy of a PEFT adapter whose base is this output."""

    draft: Output | None = None
    """The output with its draft model."""

    steps: NextSteps = field(default_factory=NextSteps)
    """The commands that follow."""

    notes: tuple[str, ...] = ()
    """Sentences that came up while it was written."""

    def __fspath__(self) -> str:
        if self.path is None:
            raise UsageError(f"the output is only on the Hub, at {self.published}; give out= too")
        return str(self.path)

    def summary(self) -> dict[str, str]:
        """Return what is shown, by name."""
        planned = {name: value for name, value in self.plan.summary().items() if name != "out"}
        return {
            "path": str(self.path or ""),
            "published": self.published,
            **planned,
            "check": self.check.sentence if self.check else self.reason,
            "validation": self.validation.sentence if self.validation else "",
        }

    def to_dict(self) -> JsonObject:
        """Return the document that `apply --json` prints: the keys of the plan, and the outcome."""
        planned = self.plan.to_dict() if isinstance(self.plan, Plan) else {}
        document: JsonObject = {
            **planned,
            "check": None if self.check is None else msgspec.to_builtins(self.check),
            "run": list(self.steps.run),
            "train": self.steps.train,
            "validate": self.steps.check,
        }
        if self.validation is not None:
            document["validation"] = self.validation.to_dict()
        if self.published:
            document["published"] = self.published
        return document
