"""Plans for tests, and a place with three tiny models and a text."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from ropeconv.run.jobs import Job, jobs_of, named_sources
from ropeconv.run.plan_file import read_plan

from ..support.llamacpp import tokenizer_json

EVAL = '[eval]\ntext = ["text.txt"]\nlengths = "1/2T,1T,4T"\nwindows = 4\ntargets = 8\n'
SETTINGS = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}


def models(folder: Path, tiny: Path, names: str = "abc") -> Path:
    """A folder with copies of a tiny model that have a tokenizer, and a text."""
    for name in names:
        model = folder / "models" / name
        model.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-r", str(tiny), str(model)], check=True)
        (model / "tokenizer.json").write_text(tokenizer_json())
        (model / "tokenizer_config.json").write_text(json.dumps(SETTINGS))
    words = Path(__file__).with_name("test_run.py").read_text().split()
    (folder / "text.txt").write_text(" ".join(f"{word} {word[::-1]}" for word in words))
    return folder


def plan_text(tasks: str, more: str = "", sources: str = '"models/?"', recipes: str = '"yarn:4", "mixed:4"') -> str:
    listed = ", ".join(f'"{task}"' for task in tasks.split())
    return f"sources = [{sources}]\nrecipes = [{recipes}]\ntasks = [{listed}]\n{more}"


def lines(folder: Path, name: str = "plan") -> list[dict[str, Any]]:
    """The lines of a journal, without the first."""
    text = (folder / name / "journal.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()[1:]]


def jobs_in(place: Path) -> list[Job]:
    """The jobs of the plan in a folder."""
    plan = read_plan(place / "plan.toml")
    return jobs_of(plan, named_sources(plan.sources, place), place, place / "plan")
