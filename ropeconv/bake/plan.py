"""Plan: everything that will be written, decided before anything is. Pure; `apply` only carries it out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ..encode import Choice, choose
from ..errors import BadSource, RopeconvError, UnsupportedBake
from ..families import Family
from ..families.config import text_part
from ..formats import jsontext
from ..formats.index import INDEX
from ..formats.tokenizer_config import raised
from ..rope.errors import RecipeError
from ..rope.methods.parts import YarnMethod
from ..rope.methods.special import AsIs
from ..rope.recipe import Recipe
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from ..runtimes.model import find, newest, version_key
from ..runtimes.reading import number, rope_dict
from ..runtimes.verdict import describe
from ..sources import Source
from ..sources.inspection import TOKENIZER, Inspection, inspect_source

Action = Literal["write", "copy", "convert"]


@dataclass(frozen=True)
class Step:
    """One file of the output. write: `text`; copy: from the source, unchanged; convert: made by `make`."""

    action: Action
    name: str
    size: int
    sha256: str | None = None
    text: str | None = None
    make: Callable[[Path, Callable[[int], None]], None] | None = None


@dataclass(frozen=True)
class Plan:
    """What `apply` will do, and what each runtime will make of it."""

    source: Source
    out: Path
    recipe: Recipe
    family: Family
    before: RopeSpec
    schedule: Schedule
    choice: Choice
    steps: tuple[Step, ...]
    left_behind: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """Size of the output."""
        return sum(step.size for step in self.steps)

    def predicted(self, version: str) -> str:
        """The verdict word for one version of transformers, "unknown" where the tables do not reach."""
        if not version:
            return "unknown"
        since = self.family.since.get("transformers")
        if since and version_key(since) > version_key(version):
            return "refused"
        try:
            return self.choice.word(find(f"transformers@{version}")[0])
        except RecipeError:
            return "unknown"

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, stable: what `--json` prints."""
        return {
            "source": self.source.to_dict(),
            "out": str(self.out),
            "family": self.family.name,
            "recipe": self.recipe.to_dict(),
            "encoding": self.choice.encoding,
            "schedule": self.schedule.to_dict(),
            "runtimes": [
                {"runtime": v.runtime, "verdict": v.word, "because": v.because, "source": v.source}
                for v in self.choice.verdicts
            ],
            "files": [{"name": step.name, "action": step.action, "size": step.size} for step in self.steps],
            "left_behind": list(self.left_behind),
            "bytes": self.bytes,
            "warnings": list(self.warnings),
        }


def make_plan(
    source: Source,
    recipe: Recipe,
    out: Path | None = None,
    encoding: str = "auto",
    runtimes: tuple[str, ...] = (),
    replace_scaling: bool = False,
    all_files: bool = False,
) -> Plan:
    """Decides everything: schedule, encoding, verdicts, files.

    Raises BadSource for a damaged source, UnsupportedBake for what cannot be expressed, RopeconvError for a
    model that is scaled already without `replace_scaling`.
    """
    seen = inspect_source(source)
    if source.kind != "config" and not source.weights():
        raise _no_weights(source)
    config, family = source.config(), seen.family
    spec = _start(seen, recipe, replace_scaling)
    recipe = _inherit_mscale(recipe, config, seen)
    schedule = recipe.schedule(spec)
    choice = choose(schedule, spec, family, config, encoding, runtimes)
    if choice.written.context != schedule.context:
        schedule = replace(schedule, context=choice.written.context)
    steps, left = _steps(source, choice, schedule, all_files)
    return Plan(
        source=source,
        out=out or Path(f"{source.name}-{recipe.method.label}"),
        recipe=recipe,
        family=family,
        before=spec,
        schedule=schedule,
        choice=choice,
        steps=steps,
        left_behind=left,
        warnings=(*_warnings(seen, recipe, schedule), *choice.written.notes),
    )


def _start(seen: Inspection, recipe: Recipe, replace_scaling: bool) -> RopeSpec:
    spec = seen.spec
    if seen.family.refuse:
        raise UnsupportedBake("a context extension", seen.family.title, seen.family.refuse, "or choose another model")
    if isinstance(recipe.method, AsIs):
        return spec
    if spec.scaled and not replace_scaling:
        raise RopeconvError(
            f"{seen.source.reference} is scaled already ({describe(spec.form)}); pass --replace to start from its "
            "unscaled RoPE, or --as-is to keep the scaling it has"
        )
    return spec.unscaled() if replace_scaling and spec.scaled else spec


def _inherit_mscale(recipe: Recipe, config: dict[str, Any], seen: Inspection) -> Recipe:
    """DeepSeek models were trained with their mscale pair: a new YaRN over them keeps it."""
    method = recipe.method
    found, _ = rope_dict(text_part(config, seen.family), seen.family, newest("transformers"))
    if not isinstance(method, YarnMethod) or method.mscale is not None or not found.get("mscale_all_dim"):
        return recipe
    mscale, everywhere = (number(found, key, 1.0) for key in ("mscale", "mscale_all_dim"))
    return replace(recipe, method=replace(method, mscale=mscale, mscale_all_dim=everywhere))


def _no_weights(source: Source) -> BadSource:
    names = [file.name for file in source.files()]
    binary = next((name for name in names if name.endswith(".bin") or name.endswith(".bin.index.json")), None)
    if binary:
        return BadSource(
            f"{source.reference} has its weights only as pickle ({binary}), which ropeconv does not open; load it once "
            "with transformers and save_pretrained it as safetensors"
        )
    if any(name.endswith(".safetensors") and "-of-" in name for name in names):
        return BadSource(f"{source.reference} has shards and no {INDEX} to say what they hold; fetch that file too")
    return BadSource(
        f"{source.reference} has no safetensors weights; "
        "give the complete folder, or its config.json alone to bake only that"
    )


def _steps(
    source: Source, choice: Choice, schedule: Schedule, all_files: bool
) -> tuple[tuple[Step, ...], tuple[str, ...]]:
    carried, left = source.carried(all_files)
    texts = {name: source.text(name) or "" for name in source.made_texts()}
    texts["config.json"] = jsontext.dump(choice.config, like=source.text("config.json") or "")
    tokenizer = raised(source.text(TOKENIZER), schedule.context)
    if tokenizer is not None:
        texts[TOKENIZER] = tokenizer
    made = {item.name: item for item in source.produced()}
    steps = [Step("write", name, len(text.encode()), text=text) for name, text in texts.items()]
    for file in carried:
        if file.name in made:
            steps.append(Step("convert", file.name, file.size, make=made[file.name].write))
        elif file.name not in texts:
            steps.append(Step("copy", file.name, file.size, file.sha256))
    return tuple(sorted(steps, key=lambda step: step.name)), tuple(file.name for file in left)


def _warnings(seen: Inspection, recipe: Recipe, schedule: Schedule) -> list[str]:
    keep = {"trained", "window", "custom-code", "stale-inv-freq"}
    found = [problem.message for problem in seen.problems if problem.code in keep]
    if schedule.context > schedule.original_context and not isinstance(recipe.method, AsIs):
        found.append("the scaling is static: prompts within the trained context see the changed frequencies too")
    if schedule.context == seen.spec.context and recipe.method.name == "theta" and recipe.context is None:
        found.append(f"the context stays {schedule.context}; pass --context to declare a longer one")
    if isinstance(recipe.method, AsIs):
        return found
    if seen.spec.scaled:
        found.append("the model was trained or tuned with the scaling that is being replaced")
    return found
