"""Plan: everything that will be written, decided before anything is. Pure; `apply` only carries it out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..encode import Choice
from ..encode.gguf import GgufChoice
from ..errors import RopeconvError, UnsupportedBake
from ..inspection.inspect import Inspection
from ..rope.bound import effective_length, shortfall
from ..rope.methods.special import AsIs
from ..rope.recipe import Recipe
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from ..runtimes.verdict import describe, frequencies
from ..sources.source import Origin

Action = Literal["write", "copy", "convert", "patch"]


@dataclass(frozen=True)
class Step:
    """One file of the output. copy: from the source, unchanged. The others are `text`, or made by `make`.

    origin: its name in the source, where that is another.
    """

    action: Action
    name: str
    size: int
    sha256: str | None = None
    text: str | None = None
    make: Callable[[Path, Callable[[int], None]], None] | None = None
    origin: str = ""


@dataclass(frozen=True)
class Plan:
    """What `apply` will do, and what each runtime will make of it.

    out: a folder, or a GGUF file (the first shard, when there are several). name: of the family or architecture.
    """

    source: Origin
    out: Path
    recipe: Recipe
    name: str
    before: RopeSpec
    schedule: Schedule
    choice: Choice
    steps: tuple[Step, ...]
    left_behind: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def is_folder(self) -> bool:
        """Whether the output is a folder, with the steps' files in it, and not files beside each other."""
        return True

    @property
    def bytes(self) -> int:
        """Size of the output."""
        return sum(step.size for step in self.steps)

    def origin(self, step: Step) -> Path | None:
        """The local file that a step copies; None where it copies nothing."""
        return None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, stable: what `--json` prints."""
        return {
            "source": self.source.to_dict(),
            "out": str(self.out),
            "family": self.name,
            "recipe": self.recipe.to_dict(),
            "before": {
                "rope": describe(self.before.form),
                "after": frequencies(self.schedule),
                "attention_factor": self.before.attention_factor,
                "context": self.before.context,
            },
            "encoding": self.choice.encoding,
            "steps": self.choice.steps_to_dict(),
            "considered": [entry.to_dict() for entry in self.choice.considered],
            "schedule": self.schedule.to_dict(),
            "effective_length": effective_length(self.schedule, self.before),
            "runtimes": [
                {"runtime": v.runtime, "verdict": v.word, "because": v.because, "source": v.source}
                for v in self.choice.verdicts
            ],
            "files": [{"name": step.name, "action": step.action, "size": step.size} for step in self.steps],
            "left_behind": list(self.left_behind),
            "bytes": self.bytes,
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True)
class GgufOutput(Plan):
    """A plan whose output is a GGUF file, or several shards beside each other."""

    choice: GgufChoice

    @property
    def is_folder(self) -> bool:
        """Whether the output is a folder, with the steps' files in it, and not files beside each other."""
        return False


def start_spec(seen: Inspection, recipe: Recipe, replace_scaling: bool) -> RopeSpec:
    """What a recipe starts from. Raises RopeconvError for a scaled model without `replace_scaling`."""
    spec = seen.spec
    if seen.refuse:
        raise UnsupportedBake("a context extension", seen.title, seen.refuse, "or choose another model")
    if isinstance(recipe.method, AsIs):
        return spec
    if spec.scaled and not replace_scaling:
        raise RopeconvError(
            f"{seen.source.reference} is scaled already ({describe(spec.form)}); pass --replace to start from its "
            "unscaled RoPE, or --as-is to keep the scaling it has"
        )
    return spec.unscaled() if replace_scaling and spec.scaled else spec


def warnings(seen: Inspection, recipe: Recipe, schedule: Schedule) -> list[str]:
    """What people should know before they use the output."""
    found = [short] if (short := shortfall(schedule, seen.spec)) else []
    keep = {"trained", "window", "custom-code", "stale-inv-freq", "ignored-tensor"}
    found += [problem.message for problem in seen.problems if problem.code in keep]
    if schedule.context > schedule.original_context and not isinstance(recipe.method, AsIs):
        found.append("the scaling is static: prompts within the trained context see the changed frequencies too")
    if schedule.context == seen.spec.context and recipe.method.name == "theta" and recipe.context is None:
        found.append(f"the context stays {schedule.context}; pass --context to declare a longer one")
    if isinstance(recipe.method, AsIs):
        return found
    if seen.spec.scaled:
        found.append("the model was trained or tuned with the scaling that is being replaced")
    return found
