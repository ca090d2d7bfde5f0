"""Plans for tests, and a place with three tiny models and a text."""

import json
from pathlib import Path
from typing import Any

from ropeconv.features.run.jobs import Job, jobs_of, named_sources
from ropeconv.features.run.plan_file import read_plan

EVAL = '[eval]\ntext = ["text.txt"]\nlengths = "1/2T,1T,4T"\nwindows = 4\ntargets = 8\n'


def models(folder: Path, names: str = "abc") -> Path:
    """A folder with tiny models that have a tokenizer, and a text."""
    from ...support.llamacpp import (
        checkpoint,  # not in the workers that tests start, where torch takes seconds
    )

    for name in names:
        checkpoint("llama", folder / "models" / name)
    words = Path(__file__).with_name("test_run.py").read_text().split()
    (folder / "text.txt").write_text(" ".join(f"{word} {word[::-1]}" for word in words))
    return folder


def plan_text(
    tasks: str, more: str = "", sources: str = '"models/?"', recipes: str = '"yarn:4", "mixed:4"'
) -> str:
    listed = ", ".join(f'"{task}"' for task in tasks.split())
    return f"sources = [{sources}]\nrecipes = [{recipes}]\ntasks = [{listed}]\n{more}"


def lines(folder: Path, name: str = "plan") -> list[dict[str, Any]]:
    text = (folder / name / "journal.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()[1:]]


def jobs_in(place: Path) -> list[Job]:
    plan = read_plan(place / "plan.toml")
    return jobs_of(plan, named_sources(plan.sources, place), place, place / "plan")
