"""Checkpoints on the Hub, through the real client and the real command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..conftest import Run, hashes
from ..support.gguf_files import write
from ..support.hub_server import Hub, serving


@pytest.fixture
def hub(llama: Path) -> Iterator[Hub]:
    """A Hub with one Llama, with its weights in two formats."""
    (llama / "pytorch_model.bin").write_bytes(b"x" * 10_000)
    (llama / "tokenizer_config.json").write_text('{"model_max_length": 64}')
    with serving() as running:
        running.repos["me/tiny"] = llama
        yield running


def test_planning_fetches_only_small_files(run: Run, hub: Hub, tmp_path: Path) -> None:
    done = run("apply", "me/tiny", "--yarn", "4", "--dry-run", "--json", env=hub.environment(tmp_path / "home"))
    plan = json.loads(done.stdout)
    assert plan["source"] == {"reference": "me/tiny", "kind": "hub", "commit": hub.commit("me/tiny")}
    assert plan["out"] == "tiny-yarn4"
    assert plan["skipped"] == ["pytorch_model.bin"]
    assert set(hub.sent) == {"config.json", "generation_config.json", "tokenizer_config.json"}


def test_inspect_reads_the_beginning_of_a_large_tokenizer(run: Run, hub: Hub, llama: Path, tmp_path: Path) -> None:
    text = '{"version": "1.0", "truncation": {"max_length": 32}, "model": {"vocab": {"' + "x" * (4 << 20) + '": 0}}}'
    (llama / "tokenizer.json").write_text(text)
    (llama / "generation_config.json").write_text('{"max_length": 16}')
    done = run("inspect", "me/tiny", "--json", env=hub.environment(tmp_path / "home"))
    messages = [problem["message"] for problem in json.loads(done.stdout)["problems"]]
    assert [message.split(", below")[0] for message in messages] == [
        "generation_config.json has max_length = 16", "tokenizer.json has truncation.max_length = 32",
    ]  # fmt: skip
    assert 0 < hub.sent["tokenizer.json"] < len(text) // 10


def test_applying_fetches_the_rest_once_without_pickles(run: Run, hub: Hub, llama: Path, tmp_path: Path) -> None:
    environment = hub.environment(tmp_path / "home")
    done = run("apply", "me/tiny", "--yarn", "4", "-q", env=environment)
    assert done.returncode == 0, done.stderr
    arrived, source = hashes(tmp_path / "tiny-yarn4"), hashes(llama)
    assert arrived["model.safetensors"] == source["model.safetensors"]
    assert "pytorch_model.bin" not in arrived
    assert "pytorch_model.bin" not in hub.sent
    receipt = json.loads((tmp_path / "tiny-yarn4" / "ropeconv.json").read_text())
    assert receipt["source"] == {
        "name": "tiny", "reference": "me/tiny", "kind": "hub", "commit": hub.commit("me/tiny"), "family": "",
    }  # fmt: skip
    listed = {file["name"]: file["sha256"] for file in receipt["files"]}
    assert listed["model.safetensors"] == source["model.safetensors"]
    sent = dict(hub.sent)
    again = run("apply", "me/tiny", "--linear", "4", "-q", env=environment)
    assert again.returncode == 0, again.stderr
    assert hub.sent == sent


def test_the_local_folder_is_that_of_the_config_whatever_lies_deeper(hub: Hub, llama: Path, tmp_path: Path) -> None:
    (llama / "zz").mkdir()
    (llama / "zz" / "notes.txt").write_text("last by name, and in a folder of its own")
    program = (
        "from ropeconv.engines.transformers.load import folder_of\n"
        "from ropeconv.sources import open_checkpoint\n"
        "with folder_of(open_checkpoint('me/tiny')) as folder:\n"
        "    print(folder)"
    )
    environment = {**os.environ, **hub.environment(tmp_path / "home")}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    folder = Path(done.stdout.strip())
    assert (folder / "config.json").is_file(), done.stderr
    assert (folder / "model.safetensors").is_file()
    assert (folder / "zz" / "notes.txt").is_file()


def test_a_dropped_connection_is_taken_up_again(run: Run, hub: Hub, llama: Path, tmp_path: Path) -> None:
    environment = hub.environment(tmp_path / "home")
    assert run("inspect", "me/tiny", env=environment).returncode == 0
    hub.sent.clear()
    hub.dropped = 1
    done = run("apply", "me/tiny", "--yarn", "4", "-q", env=environment)
    assert done.returncode == 0, done.stderr
    assert hashes(tmp_path / "tiny-yarn4")["model.safetensors"] == hashes(llama)["model.safetensors"]
    assert hub.dropped == 0


def test_a_warm_cache_serves_offline(run: Run, hub: Hub, tmp_path: Path) -> None:
    environment = hub.environment(tmp_path / "home")
    assert run("apply", "me/tiny", "--yarn", "4", "-q", env=environment).returncode == 0
    offline = {**environment, "HF_HUB_OFFLINE": "1"}
    done = run("apply", "me/tiny", "--linear", "4", "-q", env=offline)
    assert done.returncode == 0, done.stderr
    cold = run("inspect", "me/tiny", env={**offline, "HF_HOME": str(tmp_path / "other")})
    assert cold.returncode == 1
    assert "HF_HUB_OFFLINE is set" in cold.stderr


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("me/absent", "there is no such repository, or it is private"),
        ("me/tiny@v9", "the repository has no such revision"),
        ("me/gated", "accept its terms on the Hub"),
    ],
)
def test_what_cannot_be_had(run: Run, hub: Hub, llama: Path, tmp_path: Path, reference: str, words: str) -> None:
    hub.repos["me/gated"] = llama
    hub.gated.add("me/gated")
    done = run("apply", reference, "--yarn", "4", env={**hub.environment(tmp_path / "home"), "HF_TOKEN": ""})
    assert done.returncode == 1
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.glob("*yarn*"))


def test_a_token_opens_what_is_gated_and_is_written_nowhere(run: Run, hub: Hub, llama: Path, tmp_path: Path) -> None:
    hub.repos["me/gated"] = llama
    hub.gated.add("me/gated")
    environment = {**hub.environment(tmp_path / "home"), "HF_TOKEN": "hf_secret"}
    done = run("apply", "me/gated@v2", "--yarn", "4", "-q", env=environment)
    assert done.returncode == 0, done.stderr
    assert "hf_secret" not in done.stdout + done.stderr + (tmp_path / "gated-yarn4" / "ropeconv.json").read_text()


def test_stale_frequencies_are_seen_in_the_index(run: Run, hub: Hub, llama: Path, tmp_path: Path) -> None:
    (llama / "model.safetensors").rename(llama / "model-00001-of-00001.safetensors")
    names = [f"model.layers.0.self_attn.{name}" for name in ("q_proj.weight", "k_proj.weight", "rotary_emb.inv_freq")]
    index = {"weight_map": dict.fromkeys(names, "model-00001-of-00001.safetensors")}
    (llama / "model.safetensors.index.json").write_text(json.dumps(index))
    done = run("inspect", "me/tiny", "--json", env=hub.environment(tmp_path / "home"))
    assert [problem["code"] for problem in json.loads(done.stdout)["problems"]] == ["stale-inv-freq"]
    assert not [name for name in hub.sent if name.endswith(".safetensors")]


def test_file_names_that_climb_out(run: Run, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ..support import hub_server

    hostile = lambda root, path: {**row(root, path), "rfilename": "../outside.txt"}  # noqa: E731
    row = hub_server.row
    monkeypatch.setattr(hub_server, "row", lambda r, p: hostile(r, p) if p.suffix == ".bin" else row(r, p))
    done = run("apply", "me/tiny", "--yarn", "4", "--all-files", env=hub.environment(tmp_path / "home"))
    assert done.returncode == 1
    assert "'../outside.txt', outside itself" in done.stderr
    assert not list(tmp_path.glob("*yarn*"))


def test_no_hub_at_all(run: Run, tmp_path: Path) -> None:
    environment = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
    done = run("inspect", "me/tiny", env=environment)
    assert done.returncode == 1
    assert "the Hub cannot be reached" in done.stderr
    assert "Traceback" not in done.stderr


def test_metas_layout_on_the_hub(run: Run, hub: Hub, tmp_path: Path) -> None:
    from .test_meta import release

    release(tmp_path / "release", dtype="bfloat16")
    hub.repos["meta-llama/Llama-2-7b"] = tmp_path / "release"
    environment = hub.environment(tmp_path / "home")
    plan = json.loads(
        run("apply", "meta-llama/Llama-2-7b", "--yarn", "16", "--dry-run", "--json", env=environment).stdout
    )
    assert plan["schedule"]["context"] == 65536
    assert set(hub.sent) == {"params.json", "tokenizer.model"}
    done = run("apply", "meta-llama/Llama-2-7b", "--yarn", "16", "-q", env=environment)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "Llama-2-7b-yarn16" / "model.safetensors").exists()
    done = run("bound", "meta-llama/Llama-2-7b", "--weights", env=environment)
    assert (done.returncode, "cannot be read in part from the Hub" in done.stderr) == (1, True), done.stderr
    offline = run("inspect", "meta-llama/Llama-2-7b", "--json", env={**environment, "HF_HUB_OFFLINE": "1"})
    assert offline.returncode == 0, offline.stderr
    assert json.loads(offline.stdout)["source"]["commit"] == hub.commit("meta-llama/Llama-2-7b")


def test_a_gguf_file_of_a_repository_with_all_its_shards(run: Run, hub: Hub, llama: Path, tmp_path: Path) -> None:
    (llama / "quants").mkdir()
    write(llama / "quants" / "tiny-Q8_0.gguf", split=2)
    environment = hub.environment(tmp_path / "home")
    name = "quants/tiny-Q8_0-00001-of-00002.gguf"
    seen = json.loads(run("inspect", f"me/tiny/{name}", "--json", env=environment).stdout)
    assert seen["source"] == {"reference": f"me/tiny/{name}", "kind": "gguf", "commit": hub.commit("me/tiny")}
    assert set(hub.sent) == {name, name.replace("00001-of", "00002-of")}
    done = run("apply", f"hf://me/tiny@main/{name}", "--yarn", "4", "-q", env=environment)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.glob("*.gguf")) == [
        "tiny-Q8_0-yarn4-00001-of-00002.gguf", "tiny-Q8_0-yarn4-00002-of-00002.gguf",
    ]  # fmt: skip
    assert not any(path.is_symlink() for path in tmp_path.glob("*.gguf"))
    offline = run("inspect", f"me/tiny/{name}", env={**environment, "HF_HUB_OFFLINE": "1"})
    assert offline.returncode == 0, offline.stderr
    in_place = run("apply", f"me/tiny/{name}", "--yarn", "4", "--in-place", env=environment)
    assert in_place.returncode == 1
    assert f"me/tiny/{name} is on the Hub, and --in-place changes a file of this disk" in in_place.stderr
    missing = run("inspect", "me/tiny/other.gguf", env=environment)
    assert missing.returncode == 1
    assert missing.stderr == "ropeconv: me/tiny has no file other.gguf; check its name on the Hub\n"
    local = run("inspect", "model/nowhere/other.gguf", env=environment)
    assert "does not exist" in local.stderr
