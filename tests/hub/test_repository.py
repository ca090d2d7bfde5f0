"""Which repositories are completed, which are refused, and which are removed again."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from ..conftest import hashes
from ..support.hub_writing import WritingHub
from .test_push import Push, hub, push

__all__ = ["hub", "push"]
BAKE = ("apply", "base/tiny", "--yarn", "16", "--push")


def made(hub: WritingHub, name: str, **files: str) -> Path:
    """A repository as the Hub makes one, with more files in it."""
    folder = hub.repos[name] = hub.root / name
    folder.mkdir(parents=True)
    for file, text in {".gitattributes": "*.safetensors filter=lfs\n", **files}.items():
        (folder / file).write_text(text)
    return folder


def test_an_empty_repository_is_completed(push: Push, hub: WritingHub) -> None:
    folder = made(hub, "me/empty")
    done = push(*BAKE, "me/empty")
    assert done.returncode == 0, done.stderr
    assert (folder / "model.safetensors").is_file()


def test_an_empty_repository_is_made_private_where_that_is_asked_for(push: Push, hub: WritingHub) -> None:
    for name in ("me/empty", "me/open"):
        made(hub, name)
    assert push(*BAKE, "me/empty", "--private").returncode == 0
    assert push(*BAKE, "me/open").returncode == 0
    assert hub.private == {"me/empty"}


@pytest.mark.parametrize("name", ["model.bin", "README.md", "ropeconv.json"])
def test_a_repository_with_anything_else_is_refused_and_stays_as_it_is(name: str, push: Push, hub: WritingHub) -> None:
    folder = made(hub, "me/other", **{name: "{}"})
    before = hashes(folder)
    done = push(*BAKE, "me/other")
    assert (done.returncode, "exists; pass --exist-ok" in done.stderr) == (1, True), done.stderr
    assert hashes(folder) == before


def test_the_same_output_is_published_again_and_another_is_refused(push: Push, hub: WritingHub) -> None:
    assert push(*BAKE, "me/a").returncode == 0
    before = hashes(hub.repos["me/a"])
    again = push(*BAKE, "me/a")
    assert again.returncode == 0, again.stderr
    assert hashes(hub.repos["me/a"]) == before
    other = push("apply", "base/tiny", "--linear", "16", "--push", "me/a")
    assert (other.returncode, "exists; pass --exist-ok" in other.stderr) == (1, True)
    assert hashes(hub.repos["me/a"]) == before


def test_the_same_gguf_file_is_published_again_and_another_is_refused(
    push: Push, hub: WritingHub, tmp_path: Path
) -> None:
    from ..support.llamacpp import checkpoint

    checkpoint("llama", tmp_path / "source")
    for name, factor in (("one.gguf", "16"), ("two/one.gguf", "8")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        given = ("apply", "source", "--yarn", factor, "--to", "gguf", "--outtype", "f16", "-o", name, "-q")
        assert push(*given).returncode == 0
    for code, name in ((0, "one.gguf"), (0, "one.gguf"), (1, "two/one.gguf")):
        done = push("push", name, "me/gguf")
        assert done.returncode == code, done.stderr
    assert set(hub.stored) == {hashes(tmp_path)["one.gguf"]}


def test_a_commit_that_arrived_though_its_answer_was_lost_counts(push: Push, hub: WritingHub) -> None:
    hub.faults["lost"] = 1
    done = push(*BAKE, "me/lost")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == f"{hub.url}/me/lost/commit/{hub.commit('me/lost')}"
    assert (len(hub.messages), hub.deleted) == (1, [])


def test_a_repository_to_which_somebody_committed_is_not_removed(push: Push, hub: WritingHub) -> None:
    hub.faults["overtaken"] = 1
    done = push(*BAKE, "me/race")
    assert (done.returncode, "has changed while this was prepared" in done.stderr) == (1, True), done.stderr
    assert (hub.repos["me/race"] / "theirs.txt").read_text() == "of somebody else"
    assert hub.deleted == []


def test_an_output_of_weights_that_have_changed_since_is_not_published(
    push: Push, hub: WritingHub, llama: Path, tmp_path: Path
) -> None:
    given = ("apply", "model", "--yarn", "16", "-o", "out", "--push", "me/late")
    hub.faults["commit"] = 99
    assert push(*given).returncode == 1
    hub.faults["commit"] = 0
    weights = llama / "model.safetensors"
    trained = load_file(weights)
    trained["model.norm.weight"] += 1.0
    save_file(trained, weights, {"format": "pt"})
    done = push(*given)
    assert (done.returncode, "model.norm.weight of model.safetensors differs" in done.stderr) == (3, True), done.stderr
    assert "me/late" not in hub.repos or not (hub.repos["me/late"] / "model.safetensors").exists()
    assert push(*given, "--force").returncode == 0
    assert load_file(hub.repos["me/late"] / "model.safetensors")["model.norm.weight"].equal(
        trained["model.norm.weight"]
    )


@pytest.mark.parametrize("form", ["folder", "gguf"])
def test_an_output_that_was_written_and_not_published_is_published_by_the_same_command(
    form: str, push: Push, hub: WritingHub, tmp_path: Path
) -> None:
    from ..support.llamacpp import checkpoint

    hub.repos["base/words"] = checkpoint("llama", tmp_path / "words")
    out = {"folder": ("-o", "out"), "gguf": ("-o", "out.gguf", "--to", "gguf", "--outtype", "f16")}[form]
    given = ("apply", "base/words", "--yarn", "16", *out, "--push", "me/late")
    hub.faults["commit"] = 99
    assert push(*given).returncode == 1
    hub.faults["commit"] = 0
    before = hashes(tmp_path / "out") if form == "folder" else {}
    other = push("apply", "base/words", "--yarn", "8", *out, "--push", "me/late")
    assert (other.returncode, "exists; choose another place with -o" in other.stderr) == (1, True), other.stderr
    done = push(*given)
    assert (done.returncode, "is there from an earlier run" in done.stderr) == (0, True), done.stderr
    made = hashes(hub.repos["me/late"])
    if form == "folder":
        assert hashes(tmp_path / "out") == before
        assert made.items() >= {name: digest for name, digest in before.items() if name != "README.md"}.items()
        (tmp_path / "out" / "config.json").write_text("{}")
        changed = push(*given)
        assert (changed.returncode, "is not the file that ropeconv wrote" in changed.stderr) == (1, True)
    else:
        assert made["out-F16.gguf"] == hashes(tmp_path)["out.gguf"]
