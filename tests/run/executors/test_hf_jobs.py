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

from ...conftest import run_in
from ...support.hub_server import running
from ...support.hub_writing import WritingHub, writing
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


def test_an_evaluation_and_a_push_run_there_and_their_results_are_here(hub: JobsHub, tmp_path: Path) -> None:
    text = plan_text("eval push", EVAL + '[push]\nto = "me/{name}-{recipe}"\n' + JOBS, '"base/a"', '"yarn:4"')
    (tmp_path / "plan.toml").write_text(text)
    env = {**hub.environment(tmp_path / "home"), "HF_TOKEN": "hf_sesame"}
    hub.killed = 1
    done = run_in(tmp_path, "run", "plan.toml", env=env)
    assert done.returncode == 0, done.stderr + done.stdout
    assert len(hub.started) == 3, "the first job was killed and tried again"
    assert {(one["flavor"], one["timeoutSeconds"], one["secrets"]["HF_TOKEN"]) for one in hub.started} == {
        ("a10g-small", 7200, "hf_sesame")
    }
    assert hub.started[0]["command"][:6] == [
        "uv", "run", "--with", "ropeconv[validate]", "python", "-m",
    ]  # fmt: skip
    assert "hf_sesame" not in json.dumps([{**one, "secrets": None} for one in hub.started])
    assert "me/runs" in hub.private
    assert "me/a-yarn4" in hub.repos
    found = json.loads((tmp_path / "plan" / "eval" / "a.json").read_text())
    assert [row["name"] for row in found["rows"]] == ["base", "yarn:4"]
    assert found["texts"] == ["text.txt"]
    assert sorted(one["task"] for one in lines(tmp_path)) == ["eval", "push"]
    again = run_in(tmp_path, "run", "plan.toml", env=env)
    assert (again.returncode, len(hub.started)) == (0, 3), again.stderr


def test_what_cannot_run_there_is_told(hub: JobsHub, tmp_path: Path) -> None:
    env = {**hub.environment(tmp_path / "home"), "HF_TOKEN": "hf_sesame"}
    (tmp_path / "plan.toml").write_text(plan_text("eval", EVAL + JOBS, '"there/models/a"', '"yarn:4"'))
    done = run_in(tmp_path, "run", "plan.toml", env=env)
    assert done.returncode == 1
    assert "is on this disk, and HF Jobs see the Hub alone; push it first" in done.stdout
    (tmp_path / "plan.toml").write_text(plan_text("apply", JOBS, '"base/a"', '"yarn:4"'))
    done = run_in(tmp_path, "run", "plan.toml", env=env)
    assert "HF Jobs keep no outputs; leave apply and validate out" in done.stdout
    assert hub.started == []
    with pytest.raises(UsageError, match="HF Jobs leave results in a repository; add repository"):
        executor_of("hf-jobs", ExecutorTable(), folder=tmp_path)
    assert isinstance(executor_of("hf-jobs", ExecutorTable(repository="me/x"), folder=tmp_path), HfJobs)
