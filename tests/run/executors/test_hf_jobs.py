"""HF Jobs against an endpoint of this machine, which runs each job as a process that knows only the Hub."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from ropeconv.errors import UsageError
from ropeconv.run.executors import executor_of
from ropeconv.run.executors.hf_jobs import HfJobs
from ropeconv.run.plan_file import ExecutorTable

from ...support.hub_server import running, talk_to
from ...support.hub_writing import WritingHub, writing
from ...support.in_process import Done, command
from ..plans import EVAL, lines, models, plan_text

OWNER = {"id": "1", "name": "me", "type": "user"}
JOBS = '[executor]\non = "hf-jobs"\nrepository = "me/runs"\nflavor = "a10g-small"\n'


class JobsHub(WritingHub):
    """started: specifications of jobs. processes: of them. killed: how many jobs end before they begin."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.started: list[dict[str, Any]] = []
        self.processes: list[subprocess.Popen[bytes] | None] = []
        self.killed = 0


def serving_jobs(hub: JobsHub, home: Path) -> type[BaseHTTPRequestHandler]:
    class Handler(writing(hub)):  # type: ignore[misc]
        def do_GET(self) -> None:
            parts = self.path.strip("/").split("/")
            if parts[:3] == ["api", "jobs", "me"]:
                self.job(int(parts[3]))
            else:
                super().do_GET()

        def do_POST(self) -> None:
            if self.path != "/api/jobs/me":
                super().do_POST()
                return
            said = json.loads(self.read())
            hub.started.append(said)
            command = [sys.executable, *said["command"][said["command"].index("python") + 1 :]]
            keep = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME") if name in os.environ}
            env = {**keep, **hub.environment(home), **said["secrets"], "OMP_NUM_THREADS": "1"}
            hub.killed -= 1
            hub.processes.append(None if hub.killed >= 0 else subprocess.Popen(command, env=env, cwd=home.parent))
            self.job(len(hub.processes) - 1)

        def job(self, number: int) -> None:
            process = hub.processes[number]
            code = -9 if process is None else process.poll()
            stage = "RUNNING" if code is None else "COMPLETED" if code == 0 else "ERROR"
            said = {"id": str(number), "status": {"stage": stage, "message": None}, "owner": OWNER}
            self.json(200, {**said, "createdAt": "2026-01-01T00:00:00.000Z", "flavor": "cpu-basic", "environment": {}})

    return Handler


@pytest.fixture
def hub(tmp_path: Path, tiny: Callable[[str], Path]) -> Iterator[JobsHub]:
    place = models(tmp_path / "there", tiny("llama"), "a")
    hub = JobsHub(tmp_path / "hub")
    hub.repos["base/a"] = place / "models" / "a"
    (tmp_path / "text.txt").write_text((place / "text.txt").read_text())
    (tmp_path / "jobs").mkdir()
    with running(hub, serving_jobs(hub, tmp_path / "jobs" / "home")):
        yield hub
        for process in filter(None, hub.processes):
            process.kill()


@pytest.fixture
def run(hub: JobsHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """Runs a plan, which ends with `code`."""
    talk_to(hub, tmp_path / "home" / "hub", monkeypatch)

    def run(tasks: str, more: str, source: str, code: int = 0) -> Done:
        (tmp_path / "plan.toml").write_text(plan_text(tasks, more + JOBS, f'"{source}"', '"yarn:4"'))
        return command(tmp_path, "run", "plan.toml", code=code)

    return run


def test_an_evaluation_and_a_push_run_there_and_their_results_are_here(
    run: Callable[..., Done], hub: JobsHub, tmp_path: Path
) -> None:
    given = ("eval push", EVAL + '[push]\nto = "me/{name}-{recipe}"\n', "base/a")
    hub.killed = 1
    run(*given)
    assert len(hub.started) == 3, "the first job was killed and tried again"
    for one in hub.started:
        assert (one["flavor"], one["timeoutSeconds"]) == ("a10g-small", 7200)
        assert one["command"][:6] == ["uv", "run", "--with", "ropeconv[validate]", "python", "-m"]
        assert one.pop("secrets")["HF_TOKEN"] == "hf_sesame"
        assert "hf_sesame" not in json.dumps(one)
    assert ("me/runs" in hub.private, "me/a-yarn4" in hub.repos) == (True, True)
    found = json.loads((tmp_path / "plan" / "eval" / "a.json").read_text())
    assert ([row["name"] for row in found["rows"]], found["texts"]) == (["base", "yarn:4"], ["text.txt"])
    assert sorted(one["task"] for one in lines(tmp_path)) == ["eval", "push"]
    run(*given)
    assert len(hub.started) == 3


def test_what_cannot_run_there_is_told(run: Callable[..., Done], hub: JobsHub, tmp_path: Path) -> None:
    for given, said in (
        (("eval", EVAL, "there/models/a"), "is on this disk, and HF Jobs see the Hub alone; push it first"),
        (("apply", "", "base/a"), "HF Jobs keep no outputs; leave apply and validate out"),
    ):
        assert said in run(*given, code=1).stdout
    assert hub.started == []
    with pytest.raises(UsageError, match="HF Jobs leave results in a repository; add repository"):
        executor_of("hf-jobs", ExecutorTable(), folder=tmp_path)
    assert isinstance(executor_of("hf-jobs", ExecutorTable(repository="me/x"), folder=tmp_path), HfJobs)
