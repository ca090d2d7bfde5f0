"""Trains models and measures them, in processes; what is measured is kept, so that a stopped run
goes on.
"""

import hashlib
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch

from . import bound, factors, finetuning, methods, rotation, temperature, thetas
from .measuring import Numbers
from .text import Corpus
from .training import Training, train

Found = dict[str, dict[str, Numbers]]
"""The numbers of a model, by subject and row."""
SUBJECTS = {
    "methods": methods,
    "bound": bound,
    "thetas": thetas,
    "temperature": temperature,
    "factors": factors,
    "finetuning": finetuning,
    "rotation": rotation,
}
"""What is reproduced, by name: each names the models that it needs for a seed, measures them and
reports.
"""


@dataclass(frozen=True)
class Job:
    """A model to train, and the subjects that it is measured for."""

    training: Training
    subjects: tuple[str, ...]

    def key(self, corpus: Corpus) -> str:
        """A name for the file of its numbers, which another text, training or set of subjects does
        not have.
        """
        described = (
            f"{sorted(asdict(self.training).items())} {self.subjects} {corpus.sha256}"
            f" {torch.__version__}"
        )
        return hashlib.sha256(described.encode()).hexdigest()[:16]


def jobs(shape: Training, seeds: Sequence[int], subjects: Sequence[str]) -> list[Job]:
    """Return the models of a run, those of most subjects first. Subjects share equal models.

    Args:
        shape: The training of a plain model, whose shape all have.
        seeds: The seeds.
        subjects: The subjects, such as "finetuning".
    """
    subjects_by_training: dict[Training, list[str]] = {}
    for seed in seeds:
        for name in subjects:
            for training in SUBJECTS[name].trainings(replace(shape, seed=seed)):
                subjects_by_training.setdefault(training, []).append(name)
    found = [Job(training, tuple(names)) for training, names in subjects_by_training.items()]
    return sorted(found, key=lambda job: -len(job.subjects))


def measured(job: Job, corpus: Corpus, device: str, heard: Callable[[int, float], None]) -> Found:
    """Train the model of a job, and return what is measured of it, by subject.

    Args:
        job: The training, and the subjects.
        corpus: The documents.
        device: A device of torch.
        heard: Called with the step and its loss in training.
    """
    model = train(job.training, corpus.train, corpus.vocabulary, device, heard)
    return {name: SUBJECTS[name].measure(model, job.training, corpus) for name in job.subjects}


def run(job: Job, corpus: Corpus, device: str, folder: Path) -> tuple[Found, float]:
    """Return the numbers of a job, and the seconds that they took.

    They are read from the folder if an earlier run has written them, and else measured.

    Args:
        job: A training, and what is measured of its model.
        corpus: The documents.
        device: A device of torch.
        folder: Where the numbers are stored.
    """
    path = folder / f"{job.key(corpus)}.npz"
    if path.exists():
        return _read_numbers(path)
    if device == "cpu":
        torch.set_num_threads(1)
    # on a CPU the time of the process, so that a busy machine does not count
    clock = time.process_time if device == "cpu" else time.perf_counter
    began = clock()
    training = job.training
    log_n = ", log-n" if training.log_n else ""
    kind = (
        f"seed {training.seed}, {training.length} tokens, base"
        f" {training.base:g}{log_n}, rotated {training.rotated:g}"
    )

    def heard(step: int, loss: float) -> None:
        print(f"{kind}: step {step}, loss {loss:.3f}", flush=True)

    numbers_by_subject = measured(job, corpus, device, heard)
    seconds = clock() - began
    print(f"{kind}: {seconds:.0f} s", flush=True)

    # an array for each row, such as "methods|yarn"
    arrays = {}
    for subject, rows in numbers_by_subject.items():
        for row, numbers in rows.items():
            arrays[f"{subject}|{row}"] = numbers
    part = path.with_suffix(".part.npz")
    np.savez(part, seconds=np.array(seconds), **arrays)  # type: ignore[arg-type]
    os.replace(part, path)
    return numbers_by_subject, seconds


def _read_numbers(path: Path) -> tuple[Found, float]:
    """Return the numbers that `run` has stored, by subject and row, and their seconds."""
    stored = np.load(path)
    numbers: Found = {}
    for name in stored.files:
        subject, _, row = name.partition("|")
        if row:  # not "seconds"
            numbers.setdefault(subject, {})[row] = stored[name]
    return numbers, float(stored["seconds"])


def run_all(
    todo: Sequence[Job], corpus: Corpus, device: str, folder: Path, processes: int
) -> tuple[list[Found], float]:
    """Return the numbers of all jobs in their order, and the seconds of all together.

    Args:
        todo: The jobs.
        corpus: The documents.
        device: A device of torch.
        folder: Where numbers are stored, and those of an earlier run found.
        processes: How many run at a time, on a CPU.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if device != "cpu" or processes == 1:
        done = [run(job, corpus, device, folder) for job in todo]
    else:
        with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
            running = [pool.submit(run, job, corpus, device, folder) for job in todo]
            for future in as_completed(running):
                future.result()  # raises as soon as one fails
            done = [future.result() for future in running]
    return [numbers for numbers, _ in done], sum(seconds for _, seconds in done)
