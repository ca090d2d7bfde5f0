"""Which repositories are completed, which are refused, and which are removed again."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..conftest import hashes
from ..support.hub_writing import WritingHub
from .conftest import BAKE, Push


def made(hub: WritingHub, name: str, **files: str) -> Path:
    """A repository as the Hub makes one, with more files in it."""
    folder = hub.repos[name] = hub.root / name
    folder.mkdir(parents=True)
    for file, text in {".gitattributes": "*.safetensors filter=lfs\n", **files}.items():
        (folder / file).write_text(text)
    return folder


@pytest.mark.parametrize("name", ["model.bin", "README.md", "ropeconv.json"])
def test_a_repository_with_anything_else_is_refused_and_stays_as_it_is(name: str, push: Push, hub: WritingHub) -> None:
    folder = made(hub, "me/other", **{name: "{}"})
    before = hashes(folder)
    push(f"{BAKE} --push me/other", 1, "exists; pass --create-pr")
    assert hashes(folder) == before


def test_the_same_output_is_published_again_and_another_is_refused(push: Push, hub: WritingHub) -> None:
    push(f"{BAKE} --push me/a")
    before = hashes(hub.repos["me/a"])
    push(f"{BAKE} --push me/a")
    push("apply base/tiny --linear 16 --push me/a", 1, "exists; pass --create-pr")
    assert hashes(hub.repos["me/a"]) == before


def test_a_commit_that_arrived_though_its_answer_was_lost_counts(push: Push, hub: WritingHub) -> None:
    hub.faults["lost"] = 1
    done = push(f"{BAKE} --push me/lost")
    assert done.stdout.strip().splitlines()[-1] == f"{hub.url}/me/lost/commit/{hub.commit('me/lost')}"
    assert (len(hub.messages), hub.deleted) == (1, [])


def test_a_repository_to_which_somebody_committed_is_not_removed(push: Push, hub: WritingHub) -> None:
    hub.faults["overtaken"] = 1
    push(f"{BAKE} --push me/race", 1, "has changed while this was prepared")
    assert (hub.repos["me/race"] / "theirs.txt").read_text() == "of somebody else"
    assert hub.deleted == []


@pytest.mark.parametrize("out", ["-o out", "-o out.gguf --to gguf --outtype f16"], ids=["folder", "gguf"])
def test_an_output_that_was_written_and_not_published_is_published_by_the_same_command(
    out: str, push: Push, hub: WritingHub, tmp_path: Path
) -> None:
    from ..support.llamacpp import checkpoint

    hub.repos["base/words"] = checkpoint("llama", tmp_path / "words")
    line = f"apply base/words --yarn 16 {out} --push me/late"
    hub.faults["commit"] = 99
    push(line, 1)
    hub.faults["commit"] = 0
    before = hashes(tmp_path / "out")
    push(line.replace("--yarn 16", "--yarn 8"), 1, "exists; choose another place with -o")
    push(line, 0, "is complete from an earlier run")
    made = hashes(hub.repos["me/late"])
    if "gguf" in out:
        assert made["out-F16.gguf"] == hashes(tmp_path)["out.gguf"]
        return
    assert hashes(tmp_path / "out") == before
    assert made.items() >= {name: digest for name, digest in before.items() if name != "README.md"}.items()
    (tmp_path / "out" / "config.json").write_text("{}")
    push(line, 1, "is not the file that ropeconv wrote")
