"""Plans for tests, and a place with three tiny models and a text."""

import json
from pathlib import Path
from typing import Any

from ropeconv.features.run.jobs import Job, jobs_of, named_sources
from ropeconv.features.run.plan_file import read_plan

EVAL = '[eval]\ntext = ["text.txt"]\nlengths = "1/2T,1T,4T"\nwindows = 4\ntargets = 8\n'


def lines(folder: Path, name: str = "plan") -> list[dict[str, Any]]:
    text = (folder / name / "journal.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()[1:]]


def jobs_in(place: Path) -> list[Job]:
    plan = read_plan(place / "plan.toml")
    return jobs_of(plan, named_sources(plan.sources, place), place, place / "plan")
