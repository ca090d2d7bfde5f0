"""Output: what `apply` or `restore` has written or published, with all that is known of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ..errors import UsageError
from ..formats.jsontext import JsonObject
from ..inspection.receipts.receipt import CheckRecord, GgufCheckRecord
from ..models.source import Origin
from ..rope.recipe import Recipe
from ..rope.summary import Summary, SummaryTable
from ..runtimes.verdict import Verdict
from ..validate.validation import Validation
from .next_steps import NextSteps
from .plan import FilePlan, Plan, PlannedFile


@dataclass(frozen=True)
class Output(Summary):
    """An output. It can be passed wherever a path is expected."""

    path: Path | None
    """A folder, or a GGUF file (of several shards the first); None where it is only on the Hub."""

    plan: FilePlan
    """What was written."""

    check: CheckRecord | GgufCheckRecord | None = None
    """The result of the installed transformers for a checkpoint, or of reading a GGUF file back.
    None where neither was done.
    """

    reason: str = ""
    """Why transformers, or llama.cpp for a conversion, was not run; empty where it was."""

    uncomputed: bool = False
    """Whether the installed transformers does not compute the schedule."""

    source_problem: str = ""
    """Why the installed transformers does not load the source, as a clause; empty where it does."""

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

    was_complete: bool = False
    """Whether an earlier run of the same command had made it, so that this one wrote nothing."""

    def __fspath__(self) -> str:
        if self.path is None:
            raise UsageError(f"the output is only on the Hub, at {self.published}; give out= too")
        return str(self.path)

    @property
    def sentence(self) -> str:
        """Where the output is, and the result of its check, in words."""
        place = self.place if self.path else f"Published {self.published}"
        if self.validation:
            return f"{place}; {self.validation.sentence}"
        if self.check:
            return f"{place}; {self.check.sentence}"
        return f"{place}; not checked: {self.reason}." if self.reason else f"{place}."

    @property
    def place(self) -> str:
        """Where it is on this machine, and whether it was written by this run."""
        verb = "Unchanged:" if self.was_complete else "Wrote"
        return f"{verb} {self.path}"

    @property
    def source(self) -> Origin:
        """The source that it was made from."""
        return self.plan.source

    @property
    def files(self) -> tuple[PlannedFile, ...]:
        """The files of the output."""
        return self.plan.files

    @property
    def bytes(self) -> int:
        """The size of the output in bytes, as planned."""
        return self.plan.bytes

    @property
    def recipe(self) -> Recipe | None:
        """The method and its modifiers; None for an output of `restore`."""
        return self.plan.recipe if isinstance(self.plan, Plan) else None

    @property
    def context(self) -> int | None:
        """The context of the output in tokens; None for an output of `restore`."""
        return self.plan.context if isinstance(self.plan, Plan) else None

    @property
    def encoding(self) -> str:
        """The way in which the schedule is written; empty for an output of `restore`."""
        return self.plan.encoding if isinstance(self.plan, Plan) else ""

    @property
    def runtimes(self) -> tuple[Verdict, ...]:
        """The verdict of each runtime on the output; empty for an output of `restore`."""
        return self.plan.runtimes if isinstance(self.plan, Plan) else ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences for the user; empty for an output of `restore`."""
        return self.plan.warnings if isinstance(self.plan, Plan) else ()

    def summary(self) -> dict[str, str]:
        """Return what is shown, by name."""
        planned = self.plan.summary()
        left_out = ("sentence", "out")
        return {
            "sentence": self.sentence,
            "path": str(self.path or ""),
            "published": self.published,
            **{name: value for name, value in planned.items() if name not in left_out},
            "check": self.check.sentence if self.check else self.reason,
            "validation": self.validation.sentence if self.validation else "",
        }

    def shown_tables(self) -> Sequence[SummaryTable]:
        """Return the tables of the plan."""
        return self.plan.shown_tables()

    def to_dict(self) -> JsonObject:
        """Return the document that `apply --json` prints: the keys of the plan, and the outcome."""
        # keys without a value are null, and parts that were not asked for are left out
        document: JsonObject = self.plan.to_dict() | {
            "path": None if self.path is None else str(self.path),
            "check": None if self.check is None else msgspec.to_builtins(self.check),
            "reason": self.reason or None,
            "against": self.against or None,
            "run": list(self.steps.run),
            "train": self.steps.train,
            "validate": self.steps.check,
        }
        if self.validation is not None:
            document["validation"] = self.validation.to_dict()
        if self.draft is not None:
            document["draft"] = self.draft.to_dict()
        if self.published:
            document["published"] = self.published
        return document
