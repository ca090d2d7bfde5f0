"""Many repositories with another config alone: published, resumed after a kill, slowed down by a busy Hub."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest

from ropeconv.errors import UsageError
from ropeconv.run.sources import named_sources
from ropeconv.sources.hub import HubSource

from ..conftest import run_in
from ..support.hub_writing import WritingHub, serving_writes
from ..support.waiting import until
from .plans import lines, plan_text

COUNT = 8
PUSH = '[push]\nto = "me/{name}-{recipe}"\n[limits]\njobs = 2\n'


@pytest.fixture
def hub(tmp_path: Path, llama: Path) -> Iterator[WritingHub]:
    """A Hub with several sources."""
    (llama / "README.md").write_text("---\nlicense: apache-2.0\n---\n# The base\n")
    with serving_writes(tmp_path / "hub") as running:
        running.repos |= {f"base/m{number}": llama for number in range(COUNT)}
        yield running


def environment(hub: WritingHub, tmp_path: Path) -> dict[str, str]:
    return {**hub.environment(tmp_path / "home"), "HF_TOKEN": "hf_sesame"}


def plan(folder: Path, sources: str, more: str = PUSH) -> None:
    (folder / "plan.toml").write_text(plan_text("push", more, sources, '"yarn:4"'))


@pytest.mark.nightly
def test_a_killed_run_of_many_repositories_publishes_each_once(hub: WritingHub, tmp_path: Path) -> None:
    plan(tmp_path, ", ".join(f'"base/m{number}"' for number in range(COUNT)))
    env = environment(hub, tmp_path)
    shown = run_in(tmp_path, "run", "plan.toml", "--dry-run", env=env)
    for words in (
        f"{COUNT} units of {COUNT} sources to run",
        f"outputs have 0.0 B, {COUNT} repositories are published.",
    ):
        assert words in shown.stdout
    assert hub.messages == []
    running = subprocess.Popen(
        [sys.executable, "-m", "ropeconv", "run", "plan.toml", "-q"], cwd=tmp_path, env={**os.environ, **env}
    )
    until(lambda: len(hub.messages) >= COUNT // 2, "half of the commits")
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    before = lines(tmp_path)
    assert 0 < len(before) < COUNT
    done = run_in(tmp_path, "run", "plan.toml", env=env)
    assert done.returncode == 0, done.stderr
    assert lines(tmp_path)[: len(before)] == before
    assert sorted(Counter(one["key"] for one in lines(tmp_path)).values()) == [1] * COUNT
    assert sorted(name for name in hub.repos if name.startswith("me/")) == sorted(
        f"me/m{number}-yarn4" for number in range(COUNT)
    )
    assert len(hub.messages) <= COUNT + 2  # what the two workers had in hand may be committed again
    assert hub.stored == {}
    assert json.loads((hub.repos["me/m7-yarn4"] / "config.json").read_text())["max_position_embeddings"] == 256
    page = (tmp_path / "plan" / "report.html").read_text()
    urls = [one["result"]["url"] for one in lines(tmp_path)]
    assert [url for url in urls if "/commit/" not in url or url not in page] == []


def test_a_query_and_a_collection_are_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    class Api:
        def __init__(self, **given: object) -> None:
            pass

        def whoami(self) -> dict[str, str]:
            return {"name": "base"}

        def list_models(self, **given: object) -> list[object]:
            asked.append(given)
            return [SimpleNamespace(id="base/m2"), SimpleNamespace(id="base/m1")] if given["author"] else []

        def get_collection(self, slug: str) -> object:
            asked.append(slug)
            items = [("base/m3", "model"), ("base/data", "dataset"), ("base/m1", "model")]
            return SimpleNamespace(items=[SimpleNamespace(item_id=id, item_type=kind) for id, kind in items])

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(HubSource, "files", lambda self: setattr(self, "commit", "c" * 40) or ())
    found = named_sources(["author:me search:m tag:x", "collection:base/all-1"], tmp_path)
    assert [one.reference for one in found] == [f"base/{name}@{'c' * 40}" for name in ("m1", "m2", "m3")]
    assert asked == [{"author": "base", "search": "m", "filter": ["x"]}, "base/all-1"]
    with pytest.raises(UsageError, match="the source 'search:none' gives no model"):
        named_sources(["search:none"], tmp_path)


def test_a_busy_hub_is_waited_for_as_long_as_it_asks(hub: WritingHub, tmp_path: Path) -> None:
    plan(tmp_path, '"base/m1"')
    hub.faults["busy"] = 2
    done = run_in(tmp_path, "run", "plan.toml", env=environment(hub, tmp_path))
    assert done.returncode == 0, done.stderr + done.stdout
    assert (len(hub.refused), "me/m1-yarn4" in hub.repos) == (2, True)
