"""Runs one job of a plan on a machine of HF Jobs: `python -m ropeconv.run.remote REPOSITORY NAME`.

The question is in the repository, and so is the answer afterwards. Both are JSON.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import msgspec

from .exchange import Answer, Question
from .running import TaskWorker
from .unit import Job, Unit


def answer(question: Question, folder: Path, texts: dict[str, Path]) -> Answer:
    """Runs a job. question: with it. folder: for its files. texts: where those of the question are."""
    named = []
    for stored, name in question.texts.items():
        path = folder / "texts" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(texts[stored].read_bytes())
        named.append(str(path))
    units = tuple(_of_there(unit, folder, named) for unit in question.job.units)
    lines = TaskWorker()(Job(units))
    done = {line.task for line in lines if not line.failed}
    results = {one.task: Path(one.out).read_text("utf-8") for one in units if one.task == "eval" and "eval" in done}
    return Answer(lines, results)


def _of_there(unit: Unit, folder: Path, texts: list[str]) -> Unit:
    settings = unit.settings | ({"text": texts} if "text" in unit.settings else {})
    return msgspec.structs.replace(unit, out=str(folder / Path(unit.out).name), settings=settings)


def main(repository: str, name: str) -> None:
    """Answers a question. repository: that has it. name: of it."""
    from huggingface_hub import HfApi

    api = HfApi(library_name="ropeconv")

    def fetched(stored: str) -> Path:
        return Path(api.hf_hub_download(repository, stored))

    question = msgspec.json.decode(fetched(f"questions/{name}.json").read_bytes(), type=Question)
    with tempfile.TemporaryDirectory() as folder:
        found = answer(question, Path(folder), {stored: fetched(stored) for stored in question.texts})
    api.upload_file(path_or_fileobj=msgspec.json.encode(found), path_in_repo=f"answers/{name}.json", repo_id=repository)


if __name__ == "__main__":
    main(*sys.argv[1:])
