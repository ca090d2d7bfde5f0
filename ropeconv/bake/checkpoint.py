"""Plans from one checkpoint folder to another."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..encode import ConfigChoice, choose
from ..encode.fold.placement import Side
from ..encode.fold.shards import FoldDtype, dtype_notes, folded_shards, grown_index
from ..errors import BadSource, UsageError
from ..families import Family
from ..families.config import text_part
from ..formats import jsontext
from ..formats.index import INDEX
from ..formats.safetensors import Tensor
from ..formats.tokenizer_config import raised
from ..inspection.inspect import TOKENIZER, ConfigInspection, inspect_config
from ..rope.errors import RecipeError
from ..rope.methods.parts import YarnMethod
from ..rope.recipe import Recipe
from ..rope.schedule import Schedule
from ..runtimes.read_config import number, rope_dict
from ..runtimes.runtime import find, newest, version_key
from ..sources import Source
from .extra_shard import added
from .plan import Plan, Step, start_spec, warnings


@dataclass(frozen=True)
class CheckpointPlan(Plan):
    """A plan whose output is a folder in Hugging Face's layout."""

    source: Source
    choice: ConfigChoice

    def origin(self, step: Step) -> Path | None:
        """The local file that a step copies; None where it copies nothing."""
        return self.source.path(step.origin or step.name) if step.action == "copy" else None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, stable: what `--json` prints."""
        said = self.choice.in_config
        return super().to_dict() | {
            "fold": self.choice.fold.to_dict() if self.choice.fold else None,
            "in_config": {
                "written_as": self.choice.written_as,
                "attention_factor": said.attention_factor,
                "softmax_scale": said.softmax_scale,
            },
        }

    def predicted(self, version: str) -> str:
        """The verdict word for one version of transformers, "unknown" where the tables do not reach."""
        if not version:
            return "unknown"
        since = self.choice.family.since.get("transformers")
        if since and version_key(since) > version_key(version):
            return "refused"
        try:
            return self.choice.word(find(f"transformers@{version}")[0])
        except RecipeError:
            return "unknown"


def checkpoint_plan(
    source: Source,
    recipe: Recipe,
    out: Path | None = None,
    encoding: str = "auto",
    runtimes: tuple[str, ...] = (),
    replace_scaling: bool = False,
    all_files: bool = False,
    side: Side = "k",
    allow_approximate: bool = False,
    fold_dtype: FoldDtype = "stored",
) -> CheckpointPlan:
    """Decides everything: schedule, encoding, verdicts, files.

    Raises BadSource for a damaged source, UnsupportedBake for what cannot be expressed, RopeconvError for a
    model that is scaled already without `replace_scaling`.
    """
    seen = inspect_config(source)
    if source.kind != "config" and not source.weights():
        raise _no_weights(source)
    config, family = source.config(), seen.family
    spec = start_spec(seen, recipe, replace_scaling)
    recipe = inherit_mscale(recipe, config, seen)
    schedule = recipe.schedule(spec)
    choice = choose(
        schedule, spec, family, config, encoding, runtimes, lambda: _tensors(source), side, allow_approximate
    )
    if choice.family is not family:
        _refuse_other_tokens(source, choice.family)
    if choice.context != schedule.context:
        schedule = replace(schedule, context=choice.context)
    steps, left = _steps(source, choice, schedule, all_files, fold_dtype)
    return CheckpointPlan(
        source=source,
        out=out or Path(f"{source.name}-{recipe.method.label}"),
        recipe=recipe,
        name=family.name,
        before=spec,
        schedule=schedule,
        choice=choice,
        steps=steps,
        left_behind=left,
        warnings=(*warnings(seen, recipe, schedule), *choice.notes, *dtype_notes(fold_dtype)),
    )


def inherit_mscale(recipe: Recipe, config: dict[str, Any], seen: ConfigInspection) -> Recipe:
    """DeepSeek models were trained with their mscale pair: a new YaRN over them keeps it."""
    method = recipe.method
    found, _ = rope_dict(text_part(config, seen.family), seen.family, newest("transformers"))
    if not isinstance(method, YarnMethod) or method.mscale is not None or not found.get("mscale_all_dim"):
        return recipe
    mscale, everywhere = (number(found, key, 1.0) for key in ("mscale", "mscale_all_dim"))
    return replace(recipe, method=replace(method, mscale=mscale, mscale_all_dim=everywhere))


def _refuse_other_tokens(source: Source, other: Family) -> None:
    """Raises BadSource where another model type would cut text otherwise: tokenizer.model is read by its class."""
    names = {file.name for file in source.files()}
    if "tokenizer.model" in names and "tokenizer.json" not in names:
        raise BadSource(
            f"{source.reference} has tokenizer.model and no tokenizer.json, and transformers reads that otherwise in a "
            f"{other.name} model; load the tokenizer once and save_pretrained it, which writes tokenizer.json"
        )


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


def _tensors(source: Source) -> dict[str, Tensor]:
    """Every tensor of a checkpoint, from the headers."""
    if source.kind == "meta":
        raise UsageError("Meta's layout is folded in two steps: apply it to a folder first, then fold that")
    return source.tensors


def _steps(
    source: Source, choice: ConfigChoice, schedule: Schedule, all_files: bool, fold_dtype: FoldDtype
) -> tuple[tuple[Step, ...], tuple[str, ...]]:
    carried, left = source.carried(all_files)
    texts = {name: source.text(name) or "" for name in source.made_texts()}
    texts["config.json"] = jsontext.dump(choice.config, like=source.text("config.json") or "")
    tokenizer = raised(source.text(TOKENIZER), schedule.context)
    if tokenizer is not None:
        texts[TOKENIZER] = tokenizer
    texts |= choice.texts
    made = {item.name: item for item in source.produced()}
    folded = folded_shards(source, choice.fold, fold_dtype)
    extra = added(source, choice.added)
    texts |= extra.texts or grown_index(source, choice.fold, fold_dtype)
    steps = [*extra.steps, *(Step("write", name, len(text.encode()), text=text) for name, text in texts.items())]
    for file in carried:
        if file.name in folded:
            steps.append(folded[file.name])
        elif file.name in made:
            steps.append(Step("convert", file.name, file.size, make=made[file.name].write))
        elif file.name not in texts:
            name = extra.renamed.get(file.name, file.name)
            steps.append(Step("copy", name, file.size, file.sha256, origin=file.name))
    return tuple(sorted(steps, key=lambda step: step.name)), tuple(file.name for file in left)
