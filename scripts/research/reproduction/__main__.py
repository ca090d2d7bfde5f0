"""Trains small models from scratch on text at hand, and measures on them what papers on context
extension report.

Prints the tables beside the published figures, with errors over models and documents, and says of
each difference whether it is decided. Writes results.json, results.md and a picture per subject
into --out.
"""

import argparse
import json
import os
import platform
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import transformers

import ropeconv

from .measuring import Numbers
from .report import Report
from .running import SUBJECTS, Found, Job, jobs, run_all
from .text import Corpus, corpus, files, manual
from .training import Training

LONGEST = 2048  # tokens of the longest sequences


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the values of the command line, and refuse those that make no sense."""
    training = Training()
    parser = argparse.ArgumentParser(
        prog="python -m scripts.research.reproduction",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only", default=",".join(SUBJECTS), help=f"subjects, of {','.join(SUBJECTS)}"
    )
    parser.add_argument("--seeds", type=int, default=4, help="models of each kind (4)")
    parser.add_argument(
        "--steps", type=int, default=training.steps, help=f"of training ({training.steps})"
    )
    parser.add_argument("--documents", type=int, default=24, help="that are measured on (24)")
    parser.add_argument(
        "--text",
        type=Path,
        nargs="+",
        default=[],
        help="files, instead of Python's own documentation",
    )
    parser.add_argument("--device", default="cpu", help="of torch (cpu)")
    parser.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        help="models at a time on a CPU (one a core)",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("build/reproduction"), help="folder of the results"
    )
    parser.add_argument(
        "--renew", action="store_true", help="renew docs/tables/reproducing.txt, and the pictures"
    )
    given = parser.parse_args(arguments)
    given.only = tuple(given.only.split(","))
    unknown = [name for name in given.only if name not in SUBJECTS]
    if unknown:
        parser.error(f"--only {unknown[0]} is not known; choose from {', '.join(SUBJECTS)}")
    if min(given.seeds, given.steps, given.documents, given.jobs) < 1:
        parser.error("--seeds, --steps, --documents and --jobs are at least 1")
    return given


def stacked(done: Sequence[tuple[Job, Found]], subject: str) -> dict[str, Numbers]:
    """Return the numbers of a subject by row, with the models as the first axis.

    Args:
        done: All jobs with what was measured, in the order of the seeds.
        subject: The subject.
    """
    rows: dict[str, list[Numbers]] = {}
    for _, measured in done:
        for name, numbers in measured.get(subject, {}).items():
            rows.setdefault(name, []).append(numbers)
    return {name: np.stack(numbers) for name, numbers in rows.items()}


def reports(
    done: Sequence[tuple[Job, Found]], training: Training, subjects: Sequence[str]
) -> list[Report]:
    """Return the reports of subjects.

    Args:
        done: The jobs with what was measured.
        training: The training of a plain model.
        subjects: The subjects.
    """
    ordered = sorted(done, key=lambda pair: pair[0].training.seed)
    return [SUBJECTS[subject].report(stacked(ordered, subject), training) for subject in subjects]


def written(pages: Sequence[Report], settings: dict[str, object], out: Path) -> str:
    """Write results.json, results.md and the pictures, and return the text of the page.

    Args:
        pages: The reports.
        settings: The facts that a reader has to know, as `facts` returns them.
        out: The folder.
    """
    sections = []
    for page in pages:
        picture = page.draw(out)
        sections.append(f"{page.markdown()}\n![{page.title}]({picture.name})\n")
    text = "\n".join(sections)
    (out / "results.md").write_text(text, "utf-8")
    data = settings | {page.name: page.to_dict() for page in pages}
    (out / "results.json").write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    return text


def renew(docs: Path, pages: Sequence[Report]) -> None:
    """Replace the tables of subjects in `tables/reproducing.txt`, and their pictures.

    Args:
        docs: The folder of the documentation.
        pages: The reports.
    """
    tables = docs / "tables" / "reproducing.txt"
    known = tables.read_text("utf-8") if tables.exists() else ""
    tables.write_text(replaced(known, "\n".join(report.markdown() for report in pages)), "utf-8")
    for report in pages:
        report.draw(docs / "pictures", "reproducing-")


def replaced(text: str, sections: str) -> str:
    """Return Markdown in which sections (###) are replaced by others with the same title.

    New ones are added at the end.

    Args:
        text: The present text.
        sections: The sections that replace those in it.
    """
    by_title = {}
    for part in (text, sections):
        for section in re.split(r"^(?=### )", part, flags=re.MULTILINE):
            if section.strip():
                title, _, _ = section.partition("\n")
                by_title[title] = section.rstrip() + "\n"
    return "\n".join(by_title.values())


def facts(
    read: Corpus, training: Training, given: argparse.Namespace, seconds: float
) -> dict[str, object]:
    """Return what a reader of the numbers has to know: versions, the device, and the sizes.

    Args:
        read: The tokens.
        training: The training of a plain model.
        given: The command line.
        seconds: The time that all models took; of one core, on a CPU.
    """
    shape = {name: getattr(training, name) for name in ("hidden", "layers", "heads", "head_dim")}
    return {
        "ropeconv": ropeconv.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "device": given.device,
        "seeds": given.seeds,
        "steps": training.steps,
        "shape": shape,
        "trained_length": training.length,
        "tokens_trained_on": len(read.train),
        "documents": len(read.names),
        "vocabulary": read.vocabulary,
        "tokens_sha256": read.sha256,
        "model_seconds": round(seconds),
    }


def main(arguments: list[str] | None = None) -> int:
    """Train the models that are missing, measure them, and write the results and pictures."""
    given = options(arguments)
    # the processes share the cores; threads of numpy and torch in each would fight over them
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    began = time.perf_counter()
    given.out.mkdir(parents=True, exist_ok=True)
    training = replace(Training(), steps=given.steps)
    texts = files(given.text) if given.text else manual()
    read = corpus(texts, LONGEST + 1, given.documents, bytes_per_token=3)
    todo = jobs(training, range(given.seeds), given.only)
    print(
        f"{len(read.train):,} tokens to train on, {len(read.names)} documents, {len(todo)} models",
        flush=True,
    )

    measured, seconds = run_all(todo, read, given.device, given.out / "measured", given.jobs)
    pages = reports(list(zip(todo, measured, strict=True)), training, given.only)
    print(written(pages, facts(read, training, given, seconds), given.out))
    if given.renew:
        renew(Path(__file__).parents[3] / "docs", pages)
    wall_time = time.perf_counter() - began
    print(f"{wall_time:.0f} s; wrote {given.out}/results.json, results.md and pictures")
    return 0


if __name__ == "__main__":
    sys.exit(main())
