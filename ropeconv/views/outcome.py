"""The outcome of `ropeconv apply`, and how it is shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .sheet import Sheet

if TYPE_CHECKING:
    from ..bake import Plan
    from ..receipts.receipt import CheckRecord
    from ..validate.rule.validation import Validation


@dataclass
class Outcome:
    """The outcome of a plan.

    path: of the output, None where it was published from a temporary folder. check: by the installed transformers.
    proof: the validation. published: the URL of the commit, or empty. run: commands that run the output.
    """

    path: Path | None = None
    check: CheckRecord | None = None
    proof: Validation | None = None
    published: str = ""
    run: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The keys that `--json` prints in addition to those of the plan."""
        import msgspec

        check = None if self.check is None else msgspec.to_builtins(self.check)
        found: dict[str, Any] = {"check": check, "run": self.run}
        if self.proof is not None:
            found["validation"] = self.proof.to_dict()
        if self.published:
            found["published"] = self.published
        return found


def show_outcome(plan: Plan, done: Outcome, sheet: Sheet) -> None:
    """Shows what became of a plan: the check, the place, how it is run, the validation, the publication.

    plan: that was executed. done: its outcome.
    """
    if done.check:
        loaded = "loads it and"
        if done.check.read_as:
            loaded = f"does not have its model_type; its {done.check.read_as}, given this config,"
        sheet.say(
            f"Checked: transformers {done.check.transformers} {loaded} computes the schedule "
            f"(within {done.check.max_ulp} ulp of float32, attention factor {done.check.attention_factor:.6f})."
        )
    if done.path:
        sheet.copyable(f"Changed {done.path} in place." if plan.target.in_place else f"Wrote {done.path}")
        if plan.source.kind == "config":
            sheet.say("It has no weights, as SOURCE has none: put its config.json in the place of the model's own.")
        for command in done.run:
            sheet.copyable(f"Run it with: {command}")
    if done.proof is not None:
        from .validation import show_validation

        show_validation(done.proof, f"{done.path} against {plan.source.reference}, scaled at run time", sheet)
    if done.published:
        sheet.copyable(done.published)
