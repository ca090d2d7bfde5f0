"""Checkpoints on the Hub, through the real client and the real command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from ropeconv.cli.process import explained

from ..conftest import Run, hashes
from ..support.baking import YARN, apply, inspected, make_plan, recipe_of
from ..support.hub_server import Hub, serving, talk_to

MODEL = "model.safetensors"


@pytest.fixture
def hub(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub with one Llama, with its weights in two formats, which this process and commands talk to."""
    (llama / "pytorch_model.bin").write_bytes(b"x" * 10_000)
    (llama / "tokenizer_config.json").write_text('{"model_max_length": 64}')
    with serving() as running:
        running.repos["me/tiny"] = llama
        talk_to(running, tmp_path / "home" / "hub", monkeypatch)
        yield running


Done = CompletedProcess[str]


@pytest.fixture
def online(run: Run, hub: Hub, tmp_path: Path) -> Callable[..., Done]:
    """The command line with that Hub, in the folder of the test. more: of the environment."""

    def start(*arguments: str, **more: str) -> Done:
        return run(*arguments, env={**hub.environment(tmp_path / "home"), **more})

    return start


def test_planning_fetches_only_small_files(online: Callable[..., Done], hub: Hub) -> None:
    plan = json.loads(online("apply", "me/tiny", "--yarn", "4", "--dry-run", "--json").stdout)
    assert plan["source"] == {"reference": "me/tiny", "kind": "hub", "commit": hub.commit("me/tiny")}
    assert (plan["out"], plan["skipped"]) == ("tiny-yarn4", ["pytorch_model.bin"])
    assert set(hub.sent) == {"config.json", "generation_config.json", "tokenizer_config.json"}


def problems(reference: str) -> list[dict[str, Any]]:
    return list(inspected(reference).to_dict()["problems"])


def test_inspect_reads_the_beginning_of_a_large_tokenizer(hub: Hub, llama: Path) -> None:
    text = '{"version": "1.0", "truncation": {"max_length": 32}, "model": {"vocab": {"' + "x" * (4 << 20) + '": 0}}}'
    (llama / "tokenizer.json").write_text(text)
    (llama / "generation_config.json").write_text('{"max_length": 16}')
    assert [problem["message"].split(", below")[0] for problem in problems("me/tiny")] == [
        "generation_config.json has max_length = 16", "tokenizer.json has truncation.max_length = 32",
    ]  # fmt: skip
    assert 0 < hub.sent["tokenizer.json"] < len(text) // 10


def test_applying_fetches_the_rest_once_without_pickles(
    online: Callable[..., Done], hub: Hub, llama: Path, tmp_path: Path
) -> None:
    """Also where a connection is dropped, and offline when all is cached."""
    hub.dropped = 1
    out = apply(make_plan("me/tiny", YARN, tmp_path / "out"))
    assert hub.dropped == 0
    arrived, source = hashes(out), hashes(llama)
    assert arrived[MODEL] == source[MODEL]
    assert "pytorch_model.bin" not in {*arrived, *hub.sent}
    receipt = json.loads((out / "ropeconv.json").read_text())
    assert receipt["source"] == {
        "name": "tiny", "reference": "me/tiny", "kind": "hub", "commit": hub.commit("me/tiny"), "family": "",
    }  # fmt: skip
    assert {file["name"]: file["sha256"] for file in receipt["files"]}[MODEL] == source[MODEL]
    sent = dict(hub.sent)
    apply(make_plan("me/tiny", recipe_of("linear", 4.0), tmp_path / "again"))
    assert hub.sent == sent
    offline = online("inspect", "me/tiny", HF_HUB_OFFLINE="1")
    assert offline.returncode == 0, offline.stderr
    cold = online("inspect", "me/tiny", HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path / "other"))
    assert (cold.returncode, "HF_HUB_OFFLINE is set" in cold.stderr) == (1, True)


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("me/absent", "the repository does not exist, or it is private"),
        ("me/tiny@v9", "the repository does not have this revision"),
        ("me/gated", "accept its terms on the Hub"),
        ("me/tiny/other.gguf", "me/tiny has no file other.gguf; check its name on the Hub"),
        ("model/nowhere/other.gguf", "does not exist"),
    ],
)
def test_what_cannot_be_had(
    reference: str, words: str, hub: Hub, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "")
    monkeypatch.chdir(tmp_path)
    hub.repos["me/gated"] = llama
    hub.gated.add("me/gated")
    with pytest.raises(Exception) as problem:
        make_plan(reference, YARN)
    assert words in explained(problem.value)[0]
