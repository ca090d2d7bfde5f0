"""Asks a version of a runtime all questions, by the program that `ropeconv probe` runs too.

`answers` is the function to read first. The program runs in the environment of the version.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ropeconv.engines.probes.installed import FOLDER

from .completions import complete
from .environment import PROGRAMS, ROOT, Environment, LabRuntime

Answers = dict[str, dict[str, Any]]
NOT_IMPORTED = "it cannot be imported: "
"""How an answer begins where the runtime does not run at all."""


def environment(runtime: LabRuntime, version: str) -> Environment:
    """Return the environment of a version, installed where it is not yet."""
    return runtime.install(version, ROOT / "runtimes" / f"{runtime.name}-{version}")


def answers(
    runtime: LabRuntime,
    version: str,
    questions: Iterable[dict[str, Any]],
    reuse: bool = False,
    kind: str = "",
) -> Answers:
    """Return what a version answers, by the id of the question.

    Args:
        runtime: The runtime.
        version: Its version.
        questions: As `Cell.question` makes them.
        reuse: Whether to ask only what the last run was not asked.
        kind: Part of the name of the file with the answers; empty for questions without options.

    Raises:
        RuntimeError: Where the program fails.
    """
    by_id = {question["id"]: question for question in questions}
    kept = ROOT / "answers" / f"{runtime.name}-{version}{kind}.jsonl"
    answers_by_id: Answers = {}
    if reuse and kept.exists():
        known = read(kept)
        answers_by_id = {key: answer for key, answer in known.items() if key in by_id}
    missing = [question for key, question in by_id.items() if key not in answers_by_id]
    if missing:
        answers_by_id |= run(runtime, version, missing)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text("".join(json.dumps(answer) + "\n" for answer in answers_by_id.values()))
    unanswered = len(set(by_id) - set(answers_by_id))
    if unanswered:
        raise RuntimeError(f"{runtime.name} {version} left {unanswered} questions without answer")
    return answers_by_id


def run(runtime: LabRuntime, version: str, questions: list[dict[str, Any]]) -> Answers:
    """Run the program of a runtime on questions. Raises RuntimeError where it fails."""
    place = environment(runtime, version)
    orders = {}
    with tempfile.TemporaryDirectory(prefix=f"lab-{runtime.name}-") as folder:
        asked = Path(folder, "questions.jsonl")
        answered = Path(folder, "answers.jsonl")
        with asked.open("w", encoding="utf-8") as lines:
            for question in questions:
                config, order = complete(question["config"], runtime.name)
                orders[question["id"]] = order
                lines.write(json.dumps({**question, "config": config}) + "\n")

        command = [str(place.python), str(FOLDER / "run_probe.py"), runtime.program]
        with asked.open() as given, answered.open("w") as out:
            done = subprocess.run(
                command,
                check=False,
                env=variables(place),
                stdin=given,
                stdout=out,
                stderr=subprocess.PIPE,
                text=True,
            )
        if done.returncode:
            raise RuntimeError(f"{runtime.name} {version} failed: {done.stderr[-2000:]}")
        by_id = read(answered)

    for key, answer in by_id.items():
        if answer.get("unseen", "").startswith(NOT_IMPORTED):
            raise RuntimeError(f"{runtime.name} {version}: {answer['unseen']}")
        if orders[key] and "layers" in answer:
            answer["layers"] = [answer["layers"][number] for number in orders[key]]
    return by_id


def read(path: Path) -> Answers:
    """Return the answers in a file, by the id of the question."""
    with path.open(encoding="utf-8") as lines:
        return {answer["id"]: answer for answer in map(json.loads, lines)}


def variables(place: Environment) -> dict[str, str]:
    """Return the environment variables of a program."""
    path = os.pathsep.join(map(str, (*place.path, PROGRAMS)))
    return {
        **os.environ,
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        **dict(place.variables),
    }
