"""Runs the program of a runtime on all questions, in the environment of the runtime."""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .environment import PROGRAMS, ROOT, Environment, LabRuntime

Answers = dict[str, dict[str, Any]]


def environment(runtime: LabRuntime, version: str) -> Environment:
    """The environment of a version, installed where it is not yet."""
    return runtime.install(version, ROOT / "runtimes" / f"{runtime.name}-{version}")


def answers(
    runtime: LabRuntime, version: str, questions: Iterable[dict[str, Any]], reuse: bool = False
) -> Answers:
    """What a version answers, by the id of the question.

    reuse: ask only what the last run was not asked. Raises RuntimeError where the program fails.
    """
    by_id = {question["id"]: question for question in questions}
    kept = ROOT / "answers" / f"{runtime.name}-{version}.jsonl"
    answers_by_id = (
        {key: answer for key, answer in read(kept).items() if key in by_id}
        if reuse and kept.exists()
        else {}
    )
    missing = [question for key, question in by_id.items() if key not in answers_by_id]
    if missing:
        answers_by_id |= _run(runtime, version, missing)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text("".join(json.dumps(answer) + "\n" for answer in answers_by_id.values()))
    if set(by_id) - set(answers_by_id):
        raise RuntimeError(
            f"{runtime.name} {version} left {len(set(by_id) - set(answers_by_id))} questions"
            " without an answer"
        )
    return answers_by_id


def _run(runtime: LabRuntime, version: str, questions: list[dict[str, Any]]) -> Answers:
    place = environment(runtime, version)
    with tempfile.TemporaryDirectory(prefix=f"lab-{runtime.name}-") as folder:
        questions_file = Path(folder) / "questions.jsonl"
        answers_file = Path(folder) / "answers.jsonl"
        questions_file.write_text("".join(json.dumps(question) + "\n" for question in questions))
        command = [
            str(place.python),
            str(PROGRAMS / runtime.program),
            str(questions_file),
            str(answers_file),
        ]
        done = subprocess.run(
            command, check=False, env=variables(place), capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"{runtime.name} {version} failed: {done.stderr[-2000:]}")
        return read(answers_file)


def read(path: Path) -> Answers:
    """The answers in a file, by the id of the question."""
    with open(path, encoding="utf-8") as lines:
        return {answer["id"]: answer for answer in map(json.loads, lines)}


def variables(place: Environment) -> dict[str, str]:
    """The environment variables of a program."""
    path = os.pathsep.join(map(str, place.path))
    return {
        **os.environ,
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        **dict(place.variables),
    }
