"""HF Jobs, for those without a GPU: every item is a job on machines of the Hub, with its result in a repository.

https://huggingface.co/docs/huggingface_hub/guides/jobs. A job runs `python -m ropeconv.run.remote`, so an item is a
`Job` of a plan, and what comes back is JSON.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ...errors import UsageError
from ...evaluate.texts.read import read_files
from ...failures import reason
from ...hub.publish_options import repository
from ..exchange import Question, name_of, read_answer
from ..unit import Job
from .executor import Executor, Factory, Failure, Pool, lost

if TYPE_CHECKING:
    from huggingface_hub import HfApi

AT_ONCE = 8
POLL = 5.0
"""Seconds between two looks at the jobs."""
OVER = ("COMPLETED", "CANCELED", "ERROR", "DELETED")
TASKS = ("eval", "push")
"""What leaves its result on the Hub, or in the answer."""


class HfJobs(Executor):
    """Machines of the Hub.

    place: the repository of questions and answers, made private where it is not there. flavor: of the machines.
    requirement: what is installed there, such as "ropeconv[validate]". timeout: of a job, such as "2h".
    """

    def __init__(self, place: str, flavor: str, requirement: str, timeout: str, at_once: int = 0) -> None:
        if not place:
            raise UsageError('HF Jobs leave results in a repository; add repository = "me/runs" to [executor]')
        self.place, self.flavor, self.requirement, self.timeout = repository(place), flavor, requirement, timeout
        self.at_once = at_once or AT_ONCE

    @contextmanager
    def pool(self, factory: Factory, retries: int = 2) -> Iterator[Pool]:
        from huggingface_hub import HfApi

        api = HfApi(library_name="ropeconv")
        api.create_repo(self.place, private=True, exist_ok=True)
        jobs = Jobs(api, self, retries)
        try:
            yield jobs
        finally:
            jobs.cancel()


class Jobs(Pool):
    """Jobs of the Hub. api: its client. at: where they run. retries: as in `Executor.pool`."""

    def __init__(self, api: HfApi, at: HfJobs, retries: int) -> None:
        self.api, self.at, self.retries = api, at, retries
        self.pending: dict[int, str] = {}
        self.sent: dict[str, str] = {}

    def run(self, items: Sequence[Job]) -> Generator[tuple[int, Any], None, None]:
        """As in `Pool`; items are jobs of a plan."""
        left, tries = list(range(len(items))), [0] * len(items)
        while left or self.pending:
            while left and len(self.pending) < self.at.at_once:
                index = left.pop(0)
                tries[index] += 1
                try:
                    self.pending[index] = self._start(items[index])
                except Exception as problem:
                    yield index, Failure(reason(problem))
            for index, name in list(self.pending.items()):
                if self.api.inspect_job(job_id=name).status.stage not in OVER:
                    continue
                del self.pending[index]
                found = self._answer(items[index])
                if found is not None:
                    yield index, found
                elif tries[index] <= self.retries:
                    left.append(index)
                else:
                    yield index, lost(tries[index])
            if self.pending:
                time.sleep(POLL)

    def _start(self, job: Job) -> str:
        """Starts a job, and returns its id. Raises UsageError for one that cannot run there."""
        first = job.units[0]
        if any(unit.task not in TASKS or unit.settings.get("kept") for unit in job.units):
            raise UsageError("HF Jobs keep no outputs; leave apply and validate out, since push publishes without them")
        if Path(first.source).exists():
            raise UsageError(f"{first.source} is on this disk, and HF Jobs see the Hub alone; push it first")
        listed = read_files(first.settings["text"]) if "text" in first.settings else []
        texts = {self._sent(text): Path(name).name for name, text in listed}
        self._upload(f"questions/{name_of(job)}.json", msgspec.json.encode(Question(job, texts)))
        started = self.api.run_uv_job(
            "python", script_args=["-m", "ropeconv.run.remote", self.at.place, name_of(job)],
            dependencies=[self.at.requirement], flavor=self.at.flavor, timeout=self.at.timeout,
            secrets={"HF_TOKEN": self.api.token or _token()}, labels={"ropeconv": name_of(job)},
        )  # fmt: skip
        return str(started.id)

    def _sent(self, text: str) -> str:
        """The name of a text in the repository, which gets it once."""
        digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
        if digest not in self.sent:
            self.sent[digest] = f"texts/{digest}.txt"
            self._upload(self.sent[digest], text.encode(errors="surrogatepass"))
        return self.sent[digest]

    def _upload(self, name: str, data: bytes) -> None:
        self.api.upload_file(path_or_fileobj=data, path_in_repo=name, repo_id=self.at.place)

    def _answer(self, job: Job) -> Any:
        """The lines of a job, whose files are put where they belong here; None where it left none."""
        with suppress(Exception):
            path = self.api.hf_hub_download(self.at.place, f"answers/{name_of(job)}.json", force_download=True)
            return read_answer(job, Path(path).read_bytes())
        return None

    def cancel(self) -> None:
        """Cancels jobs that have not ended."""
        for name in self.pending.values():
            with suppress(Exception):
                self.api.cancel_job(job_id=name)
        self.pending.clear()


def _token() -> str:
    from huggingface_hub import get_token

    return get_token() or ""
