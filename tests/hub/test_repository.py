"""Repositories: which are completed, refused and removed again, what a dry run says, and profiles
as branches.
"""

import json
from pathlib import Path

import pytest
from huggingface_hub import hf_hub_download

from ..conftest import hashes
from ..support.hub_writing import WritingHub
from .conftest import BAKE, WEIGHTS, Push, card_of


def made(hub: WritingHub, name: str, **files: str) -> Path:
    """A repository as the Hub makes one, with more files in it."""
    folder = hub.repos[name] = hub.root / name
    folder.mkdir(parents=True)
    for file, text in {".gitattributes": "*.safetensors filter=lfs\n", **files}.items():
        (folder / file).write_text(text)
    return folder


@pytest.mark.parametrize("name", ["model.bin", "README.md", "ropeconv.json"])
def test_a_repository_with_anything_else_is_refused_and_stays_as_it_is(
    name: str, push: Push, hub: WritingHub
) -> None:
    folder = made(hub, "me/other", **{name: "{}"})
    before = hashes(folder)
    push(f"{BAKE} --push me/other", 1, "exists; choose another name, or run `ropeconv push OUTPUT")
    assert hashes(folder) == before


def test_the_same_output_is_published_again_and_another_is_refused(
    push: Push, hub: WritingHub
) -> None:
    push(f"{BAKE} --push me/a")
    before = hashes(hub.repos["me/a"])
    push(f"{BAKE} --push me/a")
    push(
        "apply base/tiny --linear 16 --push me/a",
        1,
        "exists; choose another name, or run `ropeconv push OUTPUT",
    )
    assert hashes(hub.repos["me/a"]) == before


def test_a_commit_that_arrived_though_its_answer_was_lost_counts(
    push: Push, hub: WritingHub
) -> None:
    hub.faults["lost"] = 1
    done = push(f"{BAKE} --push me/lost")
    assert (
        done.stdout.strip().splitlines()[-1] == f"{hub.url}/me/lost/commit/{hub.commit('me/lost')}"
    )
    assert (len(hub.messages), hub.deleted) == (1, [])


def test_a_repository_to_which_somebody_committed_is_not_removed(
    push: Push, hub: WritingHub
) -> None:
    hub.faults["overtaken"] = 1
    push(f"{BAKE} --push me/race", 1, "has changed while this was prepared")
    assert (hub.repos["me/race"] / "theirs.txt").read_text() == "of somebody else"
    assert hub.deleted == []


@pytest.mark.parametrize(
    "out", ["-o out", "-o out.gguf --to gguf --outtype f16"], ids=["folder", "gguf"]
)
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
    digests = hashes(hub.repos["me/late"])
    if "gguf" in out:
        assert digests["out-F16.gguf"] == hashes(tmp_path)["out.gguf"]
        return
    assert hashes(tmp_path / "out") == before
    assert (
        digests.items()
        >= {name: digest for name, digest in before.items() if name != "README.md"}.items()
    )
    (tmp_path / "out" / "config.json").write_text("{}")
    push(line, 1, "is not the file that ropeconv wrote")


def test_a_plan_is_previewed_and_nothing_is_sent(
    push: Push, hub: WritingHub, tmp_path: Path
) -> None:
    shown = push(f"{BAKE} --push me/tiny-1k --dry-run").stdout
    assert "Would write" not in shown
    assert ("me/tiny-1k" in hub.repos, hub.received) == (False, 0)
    assert {path.name for path in tmp_path.iterdir()} <= {"model", "hub", "home"}
    for words in (
        "Repository me/tiny-1k (new, public)",
        "config.json",
        "upload",
        f"copied from base/tiny at {hub.commit('base/tiny')[:7]}",
        "Base model: base/tiny. Licence: llama3.1",
        'asks for "Built with Llama"',
        "README.md:\n",
        "## Runtime support",
        "ropeconv apply base/tiny --yarn 16",
    ):
        assert words in shown, words
    plan = json.loads(push(f"{BAKE} --push me/tiny-1k --dry-run --json").stdout)["publication"]
    assert (plan["exists"], plan["private"], plan["blocked"], plan["license"]) == (
        False,
        False,
        None,
        "llama3.1",
    )
    assert {file["name"] for file in plan["copies"]} >= {"model.safetensors", "LICENSE"}
    assert {file["name"] for file in plan["uploads"]} >= {
        "config.json",
        "ropeconv.json",
        "README.md",
    }
    push(f"{BAKE} --push me/tiny-1k -q")
    names = {path.name for path in hub.repos["me/tiny-1k"].iterdir()}
    assert names - {".gitattributes"} == {
        file["name"] for key in ("uploads", "copies") for file in plan[key]
    }
    assert plan["card"] == card_of(hub, "me/tiny-1k")
    restored = push("restore me/tiny-1k -o back")
    assert "did not copy them: README.md" in restored.stderr
    source = hashes(hub.repos["base/tiny"])
    assert hashes(tmp_path / "back") == {
        name: digest for name, digest in source.items() if name in names - {"README.md"}
    }


REPOSITORY = "me/tiny-profiles"


@pytest.mark.parametrize("given", ["", "-o out"])
def test_branches_have_their_own_configs_and_copies_of_the_hub(
    given: str, push: Push, hub: WritingHub, llama: Path, tmp_path: Path
) -> None:
    line = f"profiles base/tiny base yarn:4 yarn:16 --push {REPOSITORY} {given}"
    planned = push(f"{line} --dry-run")
    assert (
        f"Would publish {REPOSITORY}: main, yarn4, yarn16" in planned.stdout,
        REPOSITORY in hub.repos,
    ) == (True, 0)
    done = push(line)
    assert (hub.stored, hub.received < 200_000, hub.branches) == ({}, True, ["yarn4", "yarn16"])
    assert len([text for text in done.stdout.splitlines() if "/commit/" in text]) == 3
    for revision, context in {"main": 64, "yarn4": 256, "yarn16": 1024}.items():
        config = json.loads(
            Path(hf_hub_download(REPOSITORY, "config.json", revision=revision)).read_text()
        )
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
    push(
        "profiles base/tiny base yarn:4 --push me/taken",
        1,
        "me/taken exists; choose another name, or run `ropeconv push OUTPUT",
    )
    assert hub.branches == []
