"""ropeconv.json: what was done to a checkpoint, in a form that can be checked and repeated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..bake.plan import Plan
from ..encode import Choice
from ..formats import jsontext
from ..formats.digest import sha256
from ..rope.recipe import Recipe
from ..rope.schedule import Schedule
from ..sources.source import Origin
from ..version import __version__


def receipt(plan: Plan, folder: Path, check: dict[str, Any] | None, checksum: bool) -> str:
    """The receipt of a finished folder.

    sha256 is there for every file that was written, and for copied ones where the source told it or with `checksum`
    (for copies with ranges changed only with that):
    hashing 100 GB that the kernel has just copied would take longer than copying them.
    """
    files = []
    for step in plan.steps:
        path = folder / step.name
        there = path.exists()  # else it is left where it is, for the Hub to copy
        told = step.sha256 if not there or (step.action in ("copy", "patch") and not checksum) else sha256(path)
        size = path.stat().st_size if there else step.size
        origin = {"origin": step.origin} if step.origin else {}
        files.append({"name": step.name, "action": step.action, "size": size, "sha256": told, **origin})
    data = plan.to_dict()
    source = {key: value for key, value in data["source"].items() if key != "reference" or plan.source.kind != "folder"}
    return jsontext.dump(
        {
            "ropeconv": __version__,
            "source": {"name": plan.source.name, **source},
            "family": data["family"],
            "recipe": data["recipe"],
            "before": data["before"],
            "encoding": data["encoding"],
            "fold": data["fold"],
            "in_config": data["in_config"],
            "steps": data["steps"],
            "schedule": data["schedule"],
            "effective_length": data["effective_length"],
            "runtimes": data["runtimes"],
            "files": files,
            "check": check,
            "validation": None,
        }
    )


def embedded(source: Origin, recipe: Recipe, schedule: Schedule, choice: Choice) -> str:
    """The receipt that a GGUF file carries among its keys, on one line."""
    repository = {"reference": source.reference} if source.commit else {}
    return json.dumps(
        {
            "ropeconv": __version__,
            "source": {"name": source.name, "kind": source.kind, "commit": source.commit, **repository},
            "recipe": recipe.to_dict(),
            "encoding": choice.encoding,
            "steps": choice.steps_to_dict(),
            "schedule": schedule.digest,
            "runtimes": {verdict.runtime: verdict.word for verdict in choice.verdicts},
        }
    )
