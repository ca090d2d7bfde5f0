"""Sources of the Hub, and a publication that a busy Hub slows down."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest

from ropeconv.errors import UsageError
from ropeconv.models.hub import HubSource
from ropeconv.run.jobs import named_sources

from ..conftest import run_in
from ..support.hub_writing import WritingHub, serving_writes
from .plans import plan_text

PUSH = '[push]\nto = "me/{name}-{recipe}"\n[limits]\njobs = 2\n'


@pytest.fixture
def hub(tmp_path: Path, llama: Path) -> Iterator[WritingHub]:
    """A Hub with a source."""
    (llama / "README.md").write_text("---\nlicense: apache-2.0\n---\n# The base\n")
    with serving_writes(tmp_path / "hub") as running:
        running.repos["base/m1"] = llama
        yield running


def test_a_query_and_a_collection_are_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queries: list[object] = []

    class Api:
        def __init__(self, **given: object) -> None:
            pass

        def whoami(self) -> dict[str, str]:
            return {"name": "base"}

        def list_models(self, **given: object) -> list[object]:
            queries.append(given)
            return [SimpleNamespace(id="base/m2"), SimpleNamespace(id="base/m1")] if given["author"] else []

        def get_collection(self, slug: str) -> object:
            queries.append(slug)
            items = [("base/m3", "model"), ("base/data", "dataset"), ("base/m1", "model")]
            return SimpleNamespace(items=[SimpleNamespace(item_id=id, item_type=kind) for id, kind in items])

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(HubSource, "files", lambda self: setattr(self, "commit", "c" * 40) or ())
    sources = named_sources(["author:me search:m tag:x", "collection:base/all-1"], tmp_path)
    assert [source.reference for source in sources] == [f"base/{name}@{'c' * 40}" for name in ("m1", "m2", "m3")]
    assert queries == [{"author": "base", "search": "m", "filter": ["x"]}, "base/all-1"]
    with pytest.raises(UsageError, match="the source 'search:none' matches no model"):
        named_sources(["search:none"], tmp_path)


def test_a_busy_hub_is_waited_for_as_long_as_it_asks(hub: WritingHub, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(plan_text("push", PUSH, '"base/m1"', '"yarn:4"'))
    hub.faults["busy"] = 2
    done = run_in(tmp_path, "run", "plan.toml", env={**hub.environment(tmp_path / "home"), "HF_TOKEN": "hf_sesame"})
    assert done.returncode == 0, done.stderr + done.stdout
    assert (len(hub.refused), "me/m1-yarn4" in hub.repos) == (2, True)
