"""A Hub with one Llama, and the command line that publishes to it."""

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..support.hub_server import talk_to
from ..support.hub_writing import WritingHub, serving_writes
from ..support.in_process import Done, command

Push = Callable[..., Done]
BASE_CARD = """---
license: llama3.1
language: [en, de]
datasets: [some/data]
pipeline_tag: text-generation
tags: [base-tag]
---
# The base
SECRET PROSE
"""
BAKE = "apply base/tiny --yarn 16"
WEIGHTS = "model.safetensors"


@pytest.fixture
def hub(llama: Path, tmp_path: Path) -> Iterator[WritingHub]:
    """A Hub with base/tiny, which has a card and a licence."""
    (llama / "README.md").write_text(BASE_CARD)
    (llama / "LICENSE").write_text("Terms")
    (llama / "tokenizer_config.json").write_text('{"model_max_length": 64}')
    with serving_writes(tmp_path / "hub") as running:
        running.repos["base/tiny"] = llama
        yield running


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Of models as small as these, threads wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def push(hub: WritingHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Push:
    """Runs a command, which ends with `code`, and with `says` on stderr."""
    talk_to(hub, tmp_path / "home" / "hub", monkeypatch)
    monkeypatch.setattr("ropeconv.hub.publish.WAITS", (0.0, 0.0))

    def run(line: str, code: int = 0, says: str = "") -> Done:
        done = command(tmp_path, *shlex.split(line), code=code)
        assert says in done.stderr, done.stderr
        return done

    return run


def card_of(hub: WritingHub, repo: str) -> str:
    return (hub.repos[repo] / "README.md").read_text()
