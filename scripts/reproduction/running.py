"""Trains models and measures them, in processes; what is measured is kept, so that a stopped run goes on."""

from __future__ import annotations

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
"""What was measured, by subject and row."""
SUBJECTS = {
    "methods": methods, "bound": bound, "thetas": thetas, "temperature": temperature, "factors": factors,
    "finetuning": finetuning, "rotation": rotation,
}  # fmt: skip
"""What is reproduced, by name: each names the models that it needs for a seed, measures them and reports."""


@dataclass(frozen=True)
class Job:
    """A model to train, and the subjects that it is measured for."""

    how: Training
    subjects: tuple[str, ...]

    def key(self, corpus: Corpus) -> str:
        """A name for the file of its numbers, which another text, training or set of subjects does not have."""
        described = f"{sorted(asdict(self.how).items())} {self.subjects} {corpus.sha256} {torch.__version__}"
        return hashlib.sha256(described.encode()).hexdigest()[:16]


def jobs(how: Training, seeds: Sequence[int], subjects: Sequence[str]) -> list[Job]:
    """The models of a run, those of most subjects first. how: their common shape. Subjects share equal models."""
    wanted: dict[Training, list[str]] = {}
    for seed in seeds:
        for name in subjects:
            for training in SUBJECTS[name].trainings(replace(how, seed=seed)):
                wanted.setdefault(training, []).append(name)
    return sorted((Job(how, tuple(names)) for how, names in wanted.items()), key=lambda job: -len(job.subjects))


def measured(job: Job, corpus: Corpus, device: str, heard: Callable[[int, float], None]) -> Found:
    """Trains the model of a job and measures it. device: of torch. heard: called with step and loss in training."""
    model = train(job.how, corpus.train, corpus.vocabulary, device, heard)
    return {name: SUBJECTS[name].measure(model, job.how, corpus) for name in job.subjects}


def run(job: Job, corpus: Corpus, device: str, folder: Path) -> tuple[Found, float]:
    """The numbers of a job, from the folder where they are there; and the seconds that they took."""
    path = folder / f"{job.key(corpus)}.npz"
    if path.exists():
        stored = np.load(path)
        found: Found = {}
        for name in stored.files:
            subject, _, row = name.partition("|")
            if row:
                found.setdefault(subject, {})[row] = stored[name]
        return found, float(stored["seconds"])
    if device == "cpu":
        torch.set_num_threads(1)
    clock = time.process_time if device == "cpu" else time.perf_counter  # a busy machine does not count
    began = clock()
    how = job.how
    kind = f"seed {how.seed}, {how.length} tokens, base {how.base:g}{', log-n' * how.log_n}, rotated {how.rotated:g}"
    found = measured(job, corpus, device, lambda step, loss: print(f"{kind}: step {step}, loss {loss:.3f}", flush=True))
    seconds = clock() - began
    print(f"{kind}: {seconds:.0f} s", flush=True)
    arrays = {f"{subject}|{row}": numbers for subject, rows in found.items() for row, numbers in rows.items()}
    part = path.with_suffix(".part.npz")
    np.savez(part, seconds=np.array(seconds), **arrays)  # type: ignore[arg-type]
    os.replace(part, path)
    return found, seconds


def run_all(
    todo: Sequence[Job], corpus: Corpus, device: str, folder: Path, processes: int
) -> tuple[list[Found], float]:
    """The numbers of all jobs in their order, and the seconds of all. processes: that run at a time, on a CPU."""
    folder.mkdir(parents=True, exist_ok=True)
    if device != "cpu" or processes == 1:
        done = [run(job, corpus, device, folder) for job in todo]
    else:
        with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
            running = [pool.submit(run, job, corpus, device, folder) for job in todo]
            for one in as_completed(running):
                one.result()
            done = [one.result() for one in running]
    return [found for found, _ in done], sum(seconds for _, seconds in done)
