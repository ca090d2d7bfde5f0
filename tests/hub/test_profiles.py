"""Profiles in one repository: the first one is main, the others are branches, and no weights are moved."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from huggingface_hub import hf_hub_download

from ..conftest import hashes
from ..support.hub_writing import WritingHub
from .conftest import WEIGHTS, Push

REPOSITORY = "me/tiny-profiles"


@pytest.mark.parametrize("given", ["", "-o out"])
def test_branches_have_their_own_configs_and_copies_of_the_hub(
    given: str, push: Push, hub: WritingHub, llama: Path, tmp_path: Path
) -> None:
    line = f"profiles base/tiny base yarn:4 yarn:16 --push {REPOSITORY} {given}"
    planned = push(f"{line} --dry-run")
    assert (f"Would publish {REPOSITORY}: main, yarn4, yarn16" in planned.stdout, REPOSITORY in hub.repos) == (True, 0)
    done = push(line)
    assert (hub.stored, hub.received < 200_000, hub.branches) == ({}, True, ["yarn4", "yarn16"])
    assert len([text for text in done.stdout.splitlines() if "/commit/" in text]) == 3
    for revision, context in {"main": 64, "yarn4": 256, "yarn16": 1024}.items():
        config = json.loads(Path(hf_hub_download(REPOSITORY, "config.json", revision=revision)).read_text())
        assert config["max_position_embeddings"] == context
        root = hub.repos[hub.at(REPOSITORY, revision)]
        assert hashes(root)[WEIGHTS] == hashes(llama)[WEIGHTS]
        card = (root / "README.md").read_text()
        named = [f'"{REPOSITORY}", revision="{revision}"' in card, f"--revision {revision}" in card]
        assert named == [revision != "main"] * 2
        command = f"| 1,024 | `vllm serve {REPOSITORY} --revision yarn16 --max-model-len 1024` |"
        assert (command in card) is (revision == "main")
    assert [path.name for path in tmp_path.glob("out")] == (["out"] if given else [])
    if not given:
        push(line)  # the same command completes what is there


def test_a_repository_with_other_contents_gets_no_branches(push: Push, hub: WritingHub) -> None:
    push("apply base/tiny --yarn 8 --push me/taken -q")
    push("profiles base/tiny base yarn:4 --push me/taken", 1, "me/taken exists; pass --create-pr")
    assert hub.branches == []
