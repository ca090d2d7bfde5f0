"""Publishing, through the real client and the real command line, on a Hub of this machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ropeconv.hub.upload_set import conventional

from ..conftest import Run, hashes
from ..support.hub_writing import WritingHub, serving_writes

Push = Callable[..., "subprocess.CompletedProcess[str]"]
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


@pytest.fixture
def hub(llama: Path, tmp_path: Path) -> Iterator[WritingHub]:
    """A Hub with one Llama of two shards' worth of files, a card, and a licence."""
    (llama / "README.md").write_text(BASE_CARD)
    (llama / "LICENSE").write_text("Terms")
    (llama / "tokenizer_config.json").write_text('{"model_max_length": 64}')
    with serving_writes(tmp_path / "hub") as running:
        running.repos["base/tiny"] = llama
        yield running


@pytest.fixture
def push(run: Run, hub: WritingHub, tmp_path: Path) -> Push:
    environment = {**hub.environment(tmp_path / "home"), "HF_TOKEN": "hf_sesame"}
    return lambda *arguments, **more: run(*arguments, env={**environment, **more})


def test_a_config_travels_and_weights_do_not(push: Push, hub: WritingHub, llama: Path, tmp_path: Path) -> None:
    done = push("apply", "base/tiny", "--yarn", "16", "--push", "me/tiny-1k")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == f"{hub.url}/me/tiny-1k/commit/{hub.commit('me/tiny-1k')}"
    assert "model.safetensors" not in hub.sent
    assert (hub.received < 100_000, hub.stored) == (True, {})
    assert not list(tmp_path.glob("tiny*"))
    made = hub.repos["me/tiny-1k"]
    assert hashes(made)["model.safetensors"] == hashes(llama)["model.safetensors"]
    assert hashes(made)["LICENSE"] == hashes(llama)["LICENSE"]
    assert json.loads((made / "config.json").read_text())["max_position_embeddings"] == 1024
    receipt = json.loads((made / "ropeconv.json").read_text())
    assert receipt["source"]["commit"] == hub.commit("base/tiny")
    listed = {file["name"]: file["sha256"] for file in receipt["files"]}
    assert listed["model.safetensors"] == hashes(llama)["model.safetensors"]
    loads = "import sys; from transformers import AutoModelForCausalLM as A; A.from_pretrained(sys.argv[1])"
    subprocess.run([sys.executable, "-c", loads, str(made)], check=True, capture_output=True)


def test_several_shards(push: Push, hub: WritingHub, llama: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(llama)
    model.save_pretrained(tmp_path / "shards", max_shard_size="300KB")
    (tmp_path / "shards" / "config.json").write_bytes((llama / "config.json").read_bytes())
    hub.repos["base/shards"] = tmp_path / "shards"
    done = push("apply", "base/shards", "--yarn", "16", "--push", "me/shards")
    assert done.returncode == 0, done.stderr
    made, source = hashes(hub.repos["me/shards"]), hashes(tmp_path / "shards")
    shards = [name for name in source if name.endswith(".safetensors")]
    assert len(shards) > 2
    assert {name: made[name] for name in shards} == {name: source[name] for name in shards}
    assert hub.received < 100_000
    assert sum(hub.sent.values()) < 100_000
    loads = "import sys; from transformers import AutoModelForCausalLM as A; A.from_pretrained(sys.argv[1])"
    environment = {**os.environ, **hub.environment(tmp_path / "clean"), "HF_TOKEN": "hf_sesame"}
    command = [sys.executable, "-c", loads, "me/shards"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr


def test_a_fold_sends_the_changed_shard_alone(push: Push, hub: WritingHub, llama: Path) -> None:
    done = push("apply", "base/tiny", "--yarn", "16", "--encoding", "weights", "--push", "me/folded")
    assert done.returncode == 0, done.stderr
    made = hashes(hub.repos["me/folded"])
    assert made["model.safetensors"] != hashes(llama)["model.safetensors"]
    assert set(hub.stored) == {made["model.safetensors"]}


@pytest.mark.parametrize("encoding", ["native", "weights", "ministral3", "buffers"])
def test_a_plan_reads_headers_alone(encoding: str, push: Push, hub: WritingHub, tmp_path: Path) -> None:
    given = ("--encoding", encoding, *(("--log-n", "full") if encoding in ("ministral3", "buffers") else ()))
    done = push("apply", "base/tiny", "--yarn", "16", *given, "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    assert (
        hub.sent.get("model.safetensors", 0)
        <= 2 * 65536
        < (hub.repos["base/tiny"] / "model.safetensors").stat().st_size
    )
    assert not list((tmp_path / "home").rglob("*.safetensors"))


def test_a_folder_that_was_baked_before(push: Push, hub: WritingHub) -> None:
    assert push("apply", "base/tiny", "--yarn", "16", "-o", "out", "-q").returncode == 0
    done = push("push", "out", "me/later")
    assert done.returncode == 0, done.stderr
    assert hub.stored == {}
    assert (hub.repos["me/later"] / "model.safetensors").is_file()
    assert "# later" in (hub.repos["me/later"] / "README.md").read_text()


def test_a_link_out_of_the_output_is_refused_and_hidden_files_stay(push: Push, hub: WritingHub, tmp_path: Path) -> None:
    assert push("apply", "model", "--yarn", "16", "-o", "out", "-q").returncode == 0
    (tmp_path / "key").write_text("a key")
    (tmp_path / "out" / ".env").write_text("a password")
    (tmp_path / "out" / "notes.txt").write_text("notes")
    (tmp_path / "out" / "more.txt").symlink_to(tmp_path / "key")
    done = push("push", "out", "me/linked")
    assert done.returncode == 1
    assert "more.txt leads to" in done.stderr
    assert "outside the checkpoint" in done.stderr
    assert "me/linked" not in hub.repos
    (tmp_path / "out" / "more.txt").unlink()
    done = push("push", "out", "me/linked")
    assert done.returncode == 0, done.stderr
    names = hashes(hub.repos["me/linked"])
    assert ("notes.txt" in names, ".env" in names) == (True, False)


def test_a_folder_of_local_files(push: Push, hub: WritingHub, llama: Path) -> None:
    for given in (("apply", "model", "--yarn", "16", "--push", "me/direct"), ("push", "out", "me/folder")):
        if given[0] == "push":
            assert push("apply", "model", "--yarn", "16", "-o", "out", "-q").returncode == 0
        done = push(*given)
        assert done.returncode == 0, done.stderr
        made = hashes(hub.repos[given[-1]])
        assert made["model.safetensors"] == hashes(llama)["model.safetensors"]
        assert "SECRET PROSE" not in (hub.repos[given[-1]] / "README.md").read_text()


@pytest.mark.parametrize("why", ["region", "no xet"])
def test_where_the_hub_does_not_copy(why: str, push: Push, hub: WritingHub, llama: Path) -> None:
    if why == "region":
        hub.faults["region"] = 1
    else:
        hub.no_xet.add("base/tiny")
    done = push("apply", "base/tiny", "--yarn", "16", "--push", "me/far")
    assert done.returncode == 0, done.stderr
    assert "fetching and uploading them" in done.stderr
    assert hashes(hub.repos["me/far"])["model.safetensors"] == hashes(llama)["model.safetensors"]
    assert len(hub.stored) == 1


def test_the_card(push: Push, hub: WritingHub) -> None:
    from huggingface_hub import ModelCard

    done = push("apply", "base/tiny", "--yarn", "16", "--push", "me/tiny-1k", "--token", "hf_other")
    assert done.returncode == 0, done.stderr
    assert 'asks for "Built with Llama"' in done.stderr
    text = (hub.repos["me/tiny-1k"] / "README.md").read_text()
    data = ModelCard(text).data
    assert (data.base_model, data.base_model_relation) == ("base/tiny", "finetune")
    assert (data.license, data.language, data.pipeline_tag) == ("llama3.1", ["en", "de"], "text-generation")
    assert data.tags == ["base-tag", "ropeconv", "yarn", "long-context"]
    for words in (
        "extended to 1,024 tokens", "Peng et al. 2023", "Not fine-tuned", hub.commit("base/tiny"),
        "vllm serve me/tiny-1k", "ropeconv apply base/tiny --yarn 16\n", "| context | 64 | 1,024 |",
        "| exact | transformers 4.51-5.8 and 5.10-5.23, exllamav3 1.4",
    ):  # fmt: skip
        assert words in text, words
    assert "SECRET PROSE" not in text
    assert "Effective length" not in text
    everything = done.stdout + done.stderr + text + (hub.repos["me/tiny-1k"] / "ropeconv.json").read_text()
    assert "hf_other" not in everything
    assert "hf_sesame" not in everything
    python = text.split("```python")[1].split("```")[0]
    compile(python, "snippet", "exec")


def test_a_card_is_bold_only_about_what_became_worse(push: Push, hub: WritingHub) -> None:
    done = push("apply", "base/tiny", "--theta", "12000", "--context", "2k", "--push", "me/longer")
    assert done.returncode == 0, done.stderr
    text = (hub.repos["me/longer"] / "README.md").read_text()
    receipt = json.loads((hub.repos["me/longer"] / "ropeconv.json").read_text())
    assert 724 < receipt["effective_length"] < 2047  # the source's frequencies reach 724
    assert "**Effective length" not in text
    assert f"| all of it | {receipt['effective_length']} |" in text
    done = push("apply", "base/tiny", "--theta", "20", "--push", "me/lower")
    assert done.returncode == 0, done.stderr
    text = (hub.repos["me/lower"] / "README.md").read_text()
    receipt = json.loads((hub.repos["me/lower"] / "ropeconv.json").read_text())
    assert f"**Effective length {receipt['effective_length']}, worse than the source's" in text


def test_a_card_of_ones_own_stays(push: Push, hub: WritingHub) -> None:
    assert push("apply", "base/tiny", "--yarn", "16", "--push", "me/a", "-q").returncode == 0
    card = hub.repos["me/a"] / "README.md"
    card.write_text("# Mine\n")
    hub.version["me/a"] += 1
    done = push("apply", "base/tiny", "--yarn", "8", "--push", "me/a", "--exist-ok")
    assert (done.returncode, card.read_text()) == (0, "# Mine\n"), done.stderr
    assert "stays; --overwrite-card" in done.stderr
    done = push("apply", "base/tiny", "--yarn", "8", "--push", "me/a", "--exist-ok", "--overwrite-card")
    assert (done.returncode, "Not fine-tuned" in card.read_text()) == (0, True)
    assert push("apply", "base/tiny", "--yarn", "16", "-o", "out", "-q").returncode == 0
    Path(hub.root.parent / "out" / "README.md").write_text("# Also mine\n")
    assert push("push", "out", "me/b", "--ignore-receipt").returncode == 0
    assert (hub.repos["me/b"] / "README.md").read_text() == "# Also mine\n"


def test_who_may_see_it(push: Push, hub: WritingHub) -> None:
    assert push("apply", "base/tiny", "--yarn", "16", "--push", "me/open", "-q").returncode == 0
    assert push("apply", "base/tiny", "--yarn", "16", "--push", "me/closed", "--private", "-q").returncode == 0
    hub.gated.add("base/tiny")
    done = push("apply", "base/tiny", "--yarn", "16", "--push", "me/gated")
    assert "is made private; --public makes it public" in done.stderr
    assert push("apply", "base/tiny", "--yarn", "16", "--push", "me/public", "--public", "-q").returncode == 0
    given = ("apply", "base/tiny", "--yarn", "16", "--push", "me/token", "--token", "hf_other", "-q")
    assert push(*given, HF_TOKEN="").returncode == 0
    assert hub.private == {"me/closed", "me/gated", "me/token"}
    both = push("push", "out", "me/x", "--private", "--public")
    assert (both.returncode, "contradict" in both.stderr) == (2, True)


def test_what_goes_wrong_leaves_nothing(push: Push, hub: WritingHub) -> None:
    def refused(words: str, *more: str, code: int = 1, **environment: str) -> None:
        done = push("apply", "base/tiny", "--yarn", "16", "--push", "me/new", *more, **environment)
        assert (done.returncode, words in done.stderr) == (code, True), done.stderr
        assert "me/new" not in hub.repos

    hub.faults["race"] = 1
    refused("has changed while this was prepared")
    hub.faults["commit"] = 99
    refused("the Hub answered with an error")
    hub.faults["commit"] = 1  # is tried again
    assert push("apply", "base/tiny", "--yarn", "16", "--push", "me/second", "-q").returncode == 0
    hub.faults["cut"] = 99
    refused("the Hub cannot be reached")
    hub.faults["cut"] = 1
    assert push("apply", "base/tiny", "--yarn", "16", "--push", "me/third", "-q").returncode == 0
    hub.faults["commit"] = 0
    hub.faults["put"] = 99
    refused("the Hub", "--encoding", "weights")
    hub.faults["put"] = 1  # is tried again
    given = ("apply", "base/tiny", "--yarn", "16", "--encoding", "weights", "--push", "me/late", "-q")
    assert push(*given).returncode == 0
    hub.faults["put"] = 0
    refused("log in", HF_TOKEN="")
    (hub.repos["base/tiny"] / "README.md").write_text("---\nlicense: cc-by-nd-4.0\n---\n")
    hub.version["base/tiny"] = 1
    refused("allows no derivatives")
    done = push("apply", "base/tiny", "--yarn", "16", "--push", "new")
    assert (done.returncode, "write owner/name" in done.stderr) == (2, True)


def test_an_existing_repository(push: Push, hub: WritingHub) -> None:
    assert push("apply", "base/tiny", "--yarn", "16", "--push", "me/a", "-q").returncode == 0
    again = push("apply", "base/tiny", "--yarn", "8", "--push", "me/a")
    assert (again.returncode, "exists; pass --exist-ok" in again.stderr) == (1, True)
    assert "me/a" in hub.repos
    hub.faults["commit"] = 99
    assert push("apply", "base/tiny", "--yarn", "8", "--push", "me/a", "--exist-ok", "-q").returncode == 1
    assert "me/a" in hub.repos, "what was there before stays"
    hub.faults["commit"] = 0
    pull = push("apply", "base/tiny", "--yarn", "8", "--push", "me/a", "--create-pr", "--commit-message", "Longer")
    assert pull.returncode == 0, pull.stderr
    assert pull.stdout.strip().splitlines()[-1].endswith("/me/a/discussions/1")
    assert (hub.pulls, hub.messages[-1]) == (["me/a"], "Longer")
    branch = push("apply", "base/tiny", "--yarn", "8", "--push", "me/a", "--exist-ok", "--revision", "longer")
    assert (branch.returncode, hub.branches) == (0, ["longer"]), branch.stderr


def test_offline(push: Push, hub: WritingHub) -> None:
    assert push("apply", "base/tiny", "--yarn", "16", "-o", "out", "-q").returncode == 0
    done = push("push", "out", "me/a", HF_HUB_OFFLINE="1")
    assert (done.returncode, "HF_HUB_OFFLINE is set" in done.stderr) == (1, True), done.stderr
    assert "me/a" not in hub.repos


def test_own_code_is_said_and_runtimes_that_do_not_run_it_are_not(push: Push, hub: WritingHub) -> None:
    given = ("apply", "base/tiny", "--yarn", "16", "--log-n", "clamped", "--encoding", "buffers")
    assert push(*given, "--push", "me/own", "-q").returncode == 0
    text = (hub.repos["me/own"] / "README.md").read_text()
    assert "trust_remote_code=True" in text
    assert "vllm serve" not in text
    made = hashes(hub.repos["me/own"])
    assert "model-rope.safetensors" in made
    assert push(*given, "-o", "own", "-q").returncode == 0
    hub.stored.clear()
    done = push("push", "own", "me/again")
    assert done.returncode == 0, done.stderr
    assert set(hub.stored) == {made["model-rope.safetensors"]}, "the renamed shard is copied on the Hub"
    again = hashes(hub.repos["me/again"])
    assert {name: again[name] for name in made if name != "README.md"}.items() >= {
        (name, digest) for name, digest in made.items() if name.endswith((".safetensors", "config.json", ".py"))
    }


def test_a_gguf_file(push: Push, hub: WritingHub, tmp_path: Path) -> None:
    from ..support.llamacpp import checkpoint

    checkpoint("llama", tmp_path / "source")
    given = ("apply", "source", "--yarn", "16", "--to", "gguf", "--outtype", "f16", "-o", "tiny-F16.gguf", "-q")
    assert push(*given).returncode == 0
    done = push("push", "tiny-F16.gguf", "me/tiny-gguf")
    assert done.returncode == 0, done.stderr
    text = (hub.repos["me/tiny-gguf"] / "README.md").read_text()
    assert "llama-server -hf me/tiny-gguf" in text
    assert "library_name: gguf" in text
    assert "extended to 1,024 tokens" in text
    assert set(hub.stored) == {hashes(tmp_path)["tiny-F16.gguf"]}
    for kind in ("Q8_0", "F32"):
        made = ("--outtype", kind.lower(), "-o", f"tiny-{kind}.gguf", "-q")
        assert push("apply", "source", "--yarn", "16", "--to", "gguf", *made).returncode == 0
    done = push("push", "tiny-Q8_0.gguf", "tiny-F32.gguf", "me/tiny-gguf", "--exist-ok")
    assert done.returncode == 0, done.stderr
    text = (hub.repos["me/tiny-gguf"] / "README.md").read_text()
    assert all(f"[tiny-{kind}.gguf](./tiny-{kind}.gguf)" in text for kind in ("F16", "Q8_0", "F32"))
    other = ("apply", "source", "--yarn", "8", "--to", "gguf", "--outtype", "f32", "-o", "other.gguf", "-q")
    assert push(*other).returncode == 0
    mixed = push("push", "tiny-F16.gguf", "other.gguf", "me/mixed")
    assert (mixed.returncode, "are not of one recipe" in mixed.stderr) == (1, True)


@pytest.mark.parametrize(
    ("name", "file_type", "wanted"),
    [
        ("Tiny-8B-Q8_0-yarn16.gguf", 7, "Tiny-8B-yarn16-Q8_0.gguf"),
        ("Tiny-8B-yarn16-Q4_K_M.gguf", 15, "Tiny-8B-yarn16-Q4_K_M.gguf"),
        ("tiny.q4_k_m.gguf", 15, "tiny.q4_k_m.gguf"),
        ("tiny-yarn16.gguf", 1, "tiny-yarn16-F16.gguf"),
        ("tiny-yarn16-00002-of-00003.gguf", 0, "tiny-yarn16-F32-00002-of-00003.gguf"),
        ("tiny-yarn16.gguf", None, "tiny-yarn16.gguf"),
    ],
)
def test_names_of_gguf_files(name: str, file_type: int | None, wanted: str) -> None:
    assert conventional(name, file_type) == wanted


def test_a_gguf_file_of_a_base_on_the_hub(push: Push, hub: WritingHub, tmp_path: Path) -> None:
    from huggingface_hub import ModelCard

    from ..support.llamacpp import checkpoint

    hub.repos["base/words"] = checkpoint("llama", tmp_path / "words")
    (tmp_path / "words" / "README.md").write_text(BASE_CARD)
    (tmp_path / "words" / "LICENSE.txt").write_text("Terms")
    made = ("--to", "gguf", "--outtype", "q8_0", "-o", "words-Q8_0.gguf")
    done = push("apply", "base/words", "--yarn", "16", *made, "--push", "hf://me/words-gguf")
    assert done.returncode == 0, done.stderr
    repo = hub.repos["me/words-gguf"]
    data = ModelCard((repo / "README.md").read_text()).data
    assert (data.base_model, data.base_model_relation, data.license) == ("base/words", "quantized", "llama3.1")
    assert (repo / "LICENSE.txt").read_text() == "Terms"
    assert not (repo / "model.safetensors").exists()
    assert "## Validation" not in (repo / "README.md").read_text()
    f32 = ("--to", "gguf", "--outtype", "f32", "-o", "words-F32.gguf")
    assert push("apply", "words", "--yarn", "16", *f32, "-q").returncode == 0
    assert push("validate", "words-F32.gguf", "--against", "words", "--tokens", "512", "-q").returncode == 0
    assert push("push", "words-F32.gguf", "me/proved").returncode == 0
    text = (hub.repos["me/proved"] / "README.md").read_text()
    assert "Agrees everywhere" in text
    assert "llama.cpp (llama-cpp-python" in text
    assert {path.name for path in hub.repos["me/proved"].iterdir()} >= {"words-F32.gguf", "README.md", "validation.png"}
    (tmp_path / "words-F32.gguf").write_bytes((tmp_path / "words-F32.gguf").read_bytes() + bytes(32))
    assert push("push", "words-F32.gguf", "me/changed").returncode == 0
    assert "## Validation" not in (hub.repos["me/changed"] / "README.md").read_text()


def test_validation_stands_in_the_card(push: Push, hub: WritingHub) -> None:
    given = ("apply", "base/tiny", "--yarn", "16", "-o", "out", "--validate", "cpu", "--push", "me/proved")
    done = push(*given)
    assert done.returncode == 0, done.stderr
    text = (hub.repos["me/proved"] / "README.md").read_text()
    assert "Agrees everywhere, and the unscaled source does not." in text
    assert "| 512-1,023 |" in text
    assert "](validation.png)" in text
    assert (hub.repos["me/proved"] / "validation.png").read_bytes().startswith(b"\x89PNG")
    assert done.stdout.strip().splitlines()[-1].startswith(f"{hub.url}/me/proved/commit/")


def test_json(push: Push, hub: WritingHub) -> None:
    done = push("apply", "base/tiny", "--yarn", "16", "--push", "me/a", "--json", "-q")
    assert json.loads(done.stdout)["published"] == f"{hub.url}/me/a/commit/{hub.commit('me/a')}"
    assert done.stderr == ""


def test_edited_files_are_not_published(push: Push, hub: WritingHub, tmp_path: Path) -> None:
    assert push("apply", "base/tiny", "--yarn", "16", "-o", "out", "-q").returncode == 0
    (tmp_path / "out" / "config.json").write_text("{}")
    done = push("push", "out", "me/edited")
    assert (done.returncode, "pass --ignore-receipt" in done.stderr) == (1, True)
    missing = push("push", "nothing", "me/edited")
    assert (missing.returncode, "neither a folder nor a GGUF file" in missing.stderr) == (1, True)


def test_changed_weights_by_xet(push: Push, hub: WritingHub, tmp_path: Path) -> None:
    """Xet's own client cuts files into chunks, and stores those that were not there before."""
    hub.cas = tmp_path / "cas"
    hub.cas.mkdir()

    def stored() -> int:
        return sum(path.stat().st_size for path in tmp_path.joinpath("cas").rglob("*") if path.is_file())

    given = ("apply", "base/tiny", "--yarn", "16", "--encoding", "weights")
    done = push(*given, "-o", "out", "-q", HF_HUB_DISABLE_XET="0")
    assert done.returncode == 0, done.stderr
    digest, size = (
        hashes(tmp_path / "out")["model.safetensors"],
        (tmp_path / "out" / "model.safetensors").stat().st_size,
    )
    for number, name in enumerate(("me/one", "me/two")):
        done = push("push", "out", name, HF_HUB_DISABLE_XET="0")
        assert done.returncode == 0, done.stderr
        assert hub.in_cas == {digest}
        if number == 0:
            first = stored()
            assert first > 0.8 * size
    assert stored() - first < 0.1 * size
    assert hub.stored == {}


def test_what_goes_up_is_counted_before_it_does(push: Push, hub: WritingHub) -> None:
    done = push("apply", "base/tiny", "--yarn", "4", "--push", "me/copied")
    assert re.search(r"^\d files to upload, \d to copy on the Hub from base/tiny\.$", done.stderr, re.MULTILINE)
    assert push("apply", "model", "--yarn", "4", "-o", "out", "-q").returncode == 0
    done = push("push", "out", "me/uploaded")
    assert re.search(r"^\d files to upload\.$", done.stderr, re.MULTILINE), done.stderr


def test_where_nothing_may_go_through_here_the_hub_has_to_copy(
    hub: WritingHub, llama: Path, tmp_path: Path, push: Push
) -> None:
    """As in a Space that moves no weights."""
    program = (
        "from ropeconv import METHODS, Recipe, Target, make_plan, open_source\n"
        "from ropeconv.hub.publish import publish\nfrom ropeconv.hub.publish_options import PublishOptions\n"
        "from ropeconv.hub.staged import staged\n"
        "plan = make_plan(open_source('base/tiny'), Recipe(METHODS['yarn'](16.0)), Target())\n"
        "with staged(plan) as (_, what):\n"
        "    publish(what, PublishOptions(repo_id='me/light', through_here=False))\n"
    )
    environment = {**os.environ, **hub.environment(tmp_path / "home"), "HF_TOKEN": "hf_sesame"}
    hub.faults["region"] = 1
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert "and they may not go through here" in done.stderr
    assert ("me/light" in hub.repos, hub.sent.get("model.safetensors", 0)) == (False, 0)
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "me/light" in hub.repos
