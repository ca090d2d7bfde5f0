"""From a plan and its sources to jobs: every combination, with the names of outputs and repositories."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..errors import UsageError
from ..evaluate.row import BASE, Row
from ..evaluate.texts.read import read_files
from ..hub.publish_options import repository
from .plan_file import RunPlan, TargetTable
from .sources import Named
from .unit import Job, NamedRecipe, Unit

CHAIN = ("apply", "validate", "push")
"""Tasks on one output, in their order."""


def jobs_of(plan: RunPlan, sources: Sequence[Named], folder: Path, out: Path) -> list[Job]:
    """The jobs of a plan: for each source one for every output, and one for its evaluation.

    plan: of the user. sources: of it. folder: that paths of the plan are relative to. out: of outputs. Raises
    UsageError where two outputs or repositories would have one name, and for texts that cannot be read.
    """
    rows = plan.rows
    labels = _labels([row for row in rows if row.recipe is not None])
    evaluated = _eval_settings(plan, folder) if "eval" in plan.tasks else None
    found = []
    for source in sources:
        for row in rows:
            for target in plan.targets:
                chain = _chain(plan, source, row, labels.get(row.name, ""), target, out)
                found += [Job(chain)] if chain else []
        if evaluated is not None:
            listed = rows if any(row.recipe is None for row in rows) else [Row(BASE), *rows]
            unit = Unit(
                task="eval", source=source.reference, name=source.name, identity=source.identity,
                recipes=tuple(_named(row) for row in listed), family=plan.family, settings=evaluated,
                out=str(out / "eval" / f"{source.name}.json"),
            )  # fmt: skip
            found.append(Job((unit,)))
    _refuse_twice([unit for job in found for unit in job.units], bool(plan.push and plan.push.exist_ok))
    return found


def _chain(plan: RunPlan, source: Named, row: Row, label: str, target: TargetTable, out: Path) -> tuple[Unit, ...]:
    """The units of one output."""
    stem = "-".join(filter(None, (source.name, label, target.name)))
    gguf = target.to == "gguf" or (target.to is None and source.reference.endswith(".gguf"))
    settings: dict[str, dict[str, Any]] = {"apply": {}, "validate": msgspec.to_builtins(plan.validate)}
    if plan.push is not None:
        known = {"name": source.name, "recipe": label, "target": target.name}
        kept = "apply" in plan.tasks
        to = _filled(plan.push.to, known)
        settings["push"] = {**msgspec.to_builtins(plan.push), "to": to, "kept": kept}
        if "push" in plan.tasks:
            target = target.published_by(to.partition("/")[0])
    return tuple(
        Unit(
            task=task, source=source.reference, name=source.name, identity=source.identity, recipes=(_named(row),),
            target=target, family=plan.family, settings=settings[task], out=str(out / (stem + ".gguf" * gguf)),
        )
        for task in CHAIN
        if task in plan.tasks
    )  # fmt: skip


def _named(row: Row) -> NamedRecipe:
    return NamedRecipe(row.name, None if row.recipe is None else row.recipe.to_dict())


def _labels(rows: Sequence[Row]) -> dict[str, str]:
    """The part of each recipe in names of outputs: as `apply` has it, or the whole text where two would be one."""
    short = {row.name: row.recipe.method.label for row in rows if row.recipe is not None}
    counts = Counter(short.values())
    return {
        name: label if counts[label] == 1 else re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-")
        for name, label in short.items()
    }


def _filled(template: str, known: dict[str, str]) -> str:
    """The repository of a template. Raises UsageError for unknown names in it, and where it is not owner/name."""
    unknown = [name for name in re.findall(r"{(.*?)}", template) if name not in known]
    if unknown:
        raise UsageError(f"push.to has {{{unknown[0]}}}; it takes {', '.join(f'{{{name}}}' for name in known)}")
    return repository(re.sub(r"{(.*?)}", lambda found: known[found[1]], template).rstrip("-"))


def _eval_settings(plan: RunPlan, folder: Path) -> dict[str, Any]:
    """[eval], with absolute paths and the digest of the texts."""
    assert plan.eval is not None
    names = [name if name.startswith("/") else str(folder / name) for name in plan.eval.text]
    digest = hashlib.sha256()
    for name, text in read_files(names):
        digest.update(f"{Path(name).name} {len(text)}\n{text}".encode(errors="surrogatepass"))
    return {**msgspec.to_builtins(plan.eval), "text": names, "sha256": digest.hexdigest()}


def _refuse_twice(units: Sequence[Unit], shared: bool) -> None:
    """Raises UsageError for two units with one place. shared: whether several may go into one repository."""
    outputs = Counter(unit.out for unit in units if unit.task in (CHAIN[0], "eval"))
    repositories = Counter(unit.settings["to"] for unit in units if unit.task == "push")
    for place, count in outputs.items():
        if count > 1:
            raise UsageError(f"{count} outputs would be {place}; give targets names that tell them apart")
    for place, count in repositories.items():
        if count > 1 and not shared:
            raise UsageError(
                f"{count} outputs would go to {place}; add {{name}}, {{recipe}} or {{target}} to push.to, or set "
                "exist_ok"
            )
