"""`apply --adapter`, by what PEFT's own loader computes with the adapter alone."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from ropeconv.bake import companions
from ropeconv.inspection.adapter import other_base, read_adapter
from ropeconv.inspection.receipts.companion import read_companion
from ropeconv.inspection.receipts.receipt import SourceRecord
from ropeconv.inspection.receipts.storage import read_receipt
from ropeconv.models.folder import FolderSource
from ropeconv.models.hub import HubSource

from ..conftest import hashes
from ..support.adapters import logits, lora
from ..support.in_process import command
from ..support.models import TRAINED, make


def of_adapter_alone(folder: Path) -> Any:
    """Logits beyond the trained context of the base that adapter_config.json names, with the
    adapter.
    """
    import torch
    from peft import AutoPeftModelForCausalLM

    with torch.no_grad():
        tokens = torch.arange(2 * TRAINED)[None] % 97
        return AutoPeftModelForCausalLM.from_pretrained(folder)(tokens).logits[0, TRAINED:]


def test_the_adapter_brings_its_extended_base(llama: Path, tmp_path: Path) -> None:
    adapter = lora(llama, tmp_path / "lora")
    out = tmp_path / "extended"
    place = tmp_path / "extended-adapter"
    command(tmp_path, "apply", llama, "--yarn", "4", "-o", tmp_path / "alone", code=0)
    done = command(tmp_path, "apply", llama, "--yarn", "4", "-o", out, "--adapter", adapter)
    assert done.returncode == 0, done.stderr
    assert [read_receipt(path).target.adapter for path in (out, tmp_path / "alone")] == [
        "extended-adapter",
        "",
    ]
    assert f"{place}." in done.stderr
    expected = logits(out, adapter)
    assert (of_adapter_alone(place) - expected).abs().max() < 1e-5
    assert (of_adapter_alone(adapter) - expected).abs().max() > 1e-3
    before, after = (
        json.loads((path / "adapter_config.json").read_text()) for path in (adapter, place)
    )
    assert {key for key in before if before[key] != after[key]} == {"base_model_name_or_path"}
    same = [path.name for path in adapter.iterdir() if path.name != "adapter_config.json"]
    assert all((place / name).read_bytes() == (adapter / name).read_bytes() for name in same)
    command(
        tmp_path, "apply", llama, "--yarn", "8", "-o", out, "--adapter", adapter, "--force", code=0
    )
    receipt = read_companion(place)
    assert receipt is not None
    assert receipt.schedule == read_receipt(out).schedule.digest


def test_the_same_command_continues_after_it_was_stopped_between_the_two(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lora(llama, tmp_path / "lora")
    line = ("apply", "model", "--yarn", "4", "-o", "out", "--adapter", "lora")

    def stop(*given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(companions, "execute_plan", stop)
        command(tmp_path, *line, code=130)
    assert ((tmp_path / "out").is_dir(), (tmp_path / "out-adapter").exists()) == (True, False)
    document = json.loads(command(tmp_path, *line, "--json", code=0).stdout)
    assert document["adapter"] == "out-adapter"
    written = hashes(tmp_path)
    (tmp_path / "lora/README.md").write_text("another training")
    for options in ((), ("--force",)):
        assert "out-adapter exists; remove it" in command(tmp_path, *line, *options, code=1).stderr
    assert {name for name, digest in hashes(tmp_path).items() if written[name] != digest} == {
        "lora/README.md"
    }


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ("--adapter lora --to gguf --outtype f32 -o o.gguf", 2, "convert_lora_to_gguf.py"),
        ("--adapter lora --encoding weights -o o", 2, "choose another encoding"),
        ("--adapter model -o o", 2, "is not a PEFT adapter"),
        (
            "--adapter lora -o there",
            1,
            "there-adapter exists; remove it, or choose another place with -o",
        ),
        (
            "--adapter lora -o there --force",
            1,
            "there-adapter exists; remove it, or choose another place with -o",
        ),
        ("--adapter lora -o linked", 1, "linked-adapter exists; remove it"),
        ("--adapter lora --push me/x -o o", 2, "goes with one SOURCE and one output on this disk"),
        ("--adapter other -o o", 1, "give the adapter of this model"),
    ],
)
def test_what_is_refused_before_anything_is_written(
    options: str, code: int, words: str, llama: Path, tmp_path: Path
) -> None:
    lora(llama, tmp_path / "lora")
    (tmp_path / "there-adapter").mkdir()
    (tmp_path / "there-adapter/notes.txt").write_text("mine")
    (tmp_path / "linked-adapter").symlink_to(tmp_path / "nowhere")
    if "other" in options:
        lora(make("llama", tmp_path / "wide", hidden_size=64), tmp_path / "other")
    before = sorted(tmp_path.iterdir())
    done = command(tmp_path, "apply", "model", "--yarn", "4", *shlex.split(options))
    assert (done.returncode, words in done.stderr) == (code, True), done.stderr
    assert sorted(tmp_path.iterdir()) == before


COMMIT = "0123456789" * 4
OTHER = "9876543210" * 4


def hub(reference: str) -> HubSource:
    """A repository at COMMIT, without a Hub."""
    name, _, revision = reference.partition("@")
    source = HubSource(name, revision or None)
    source.commit = COMMIT
    source.text = lambda name: None  # type: ignore[method-assign]
    return source


def adapter_for(folder: Path, base: str | None, revision: str | None = None) -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"peft_type": "LORA", "base_model_name_or_path": base, "revision": revision}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return read_adapter(FolderSource(folder))


@pytest.mark.parametrize(
    ("source", "base", "revision", "differs"),
    [
        ("me/tiny", "me/tiny", None, False),
        ("me/tiny", "Me/Tiny", "main", False),
        ("me/tiny", "/train/models/tiny", None, False),
        ("me/tiny", None, None, False),
        ("me/tiny", "me/tiny", COMMIT, False),
        ("me/tiny", "me/tiny", COMMIT[:7], False),
        ("me/tiny@v1", "me/tiny", "v1", False),
        ("me/tiny", "you/tiny", None, True),
        ("me/tiny", "me/tiny-instruct", None, True),
        ("me/tiny", "me/tiny", OTHER, True),
        ("me/tiny@v1", "me/tiny", "v2", True),
    ],
)
def test_the_base_of_an_adapter_is_compared_with_a_repository(
    source: str, base: str | None, revision: str | None, differs: bool, tmp_path: Path
) -> None:
    adapter = adapter_for(tmp_path / "lora", base, revision)
    said = other_base(adapter, hub(source))
    assert bool(said) == differs, said
    assert (revision if revision in (OTHER, "v2") else base or "") in said or not differs


def test_the_base_of_an_adapter_is_compared_with_a_folder(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = FolderSource(llama)
    other = make("llama", tmp_path / "elsewhere" / llama.name)
    for base, differs in {
        str(llama): False,
        llama.name: False,
        f"elsewhere/../{llama.name}": False,
        f"somebody/{llama.name}": False,  # perhaps downloaded to a folder of that name
        str(other): True,
        "somebody/another": True,
    }.items():
        said = other_base(adapter_for(tmp_path / "lora", base), source)
        assert bool(said) == differs, (base, said)

    # a folder in the cache of the Hub has its name and commit
    cached = tmp_path / f"models--me--tiny/snapshots/{COMMIT}"
    make("llama", cached)
    for base, revision, differs in (
        ("me/tiny", None, False),
        ("me/tiny", COMMIT, False),
        ("me/tiny", OTHER, True),
        ("you/tiny", None, True),
    ):
        adapter = adapter_for(tmp_path / "lora", base, revision)
        assert bool(other_base(adapter, FolderSource(cached))) == differs, (base, revision)


def test_the_sources_of_a_source_are_its_names_too(llama: Path, tmp_path: Path) -> None:
    out = tmp_path / "two"
    command(tmp_path, "apply", llama, "--yarn", "2", "-o", out, code=0)
    receipt = json.loads((out / "ropeconv.json").read_text())
    record = SourceRecord(name="tiny", kind="hub", reference="me/tiny", commit=COMMIT)
    receipt["source"] = {"name": record.name, "kind": "hub", "reference": record.reference}
    receipt["source"]["commit"] = COMMIT
    assert record.repository == "me/tiny"
    (out / "ropeconv.json").write_text(json.dumps(receipt))
    for base, differs in {"me/tiny": False, "me/other": True}.items():
        adapter = adapter_for(tmp_path / "lora", base)
        assert bool(other_base(adapter, FolderSource(out))) == differs


def test_an_adapter_of_another_base_is_written_with_a_warning(llama: Path, tmp_path: Path) -> None:
    lora(llama, tmp_path / "lora")
    line = ("apply", "model", "--yarn", "4", "--adapter", "lora")
    assert "was trained on" not in command(tmp_path, *line, "--dry-run", code=0).stderr
    settings = json.loads((tmp_path / "lora/adapter_config.json").read_text())
    settings["base_model_name_or_path"] = "somebody/another-llama"
    (tmp_path / "lora/adapter_config.json").write_text(json.dumps(settings))
    done = command(tmp_path, *line, "-o", "out", code=0)
    assert "was trained on somebody/another-llama" in " ".join(done.stderr.split())
    assert (tmp_path / "out-adapter").is_dir()


def test_an_adapter_beside_the_weights_is_not_scaled(llama: Path, tmp_path: Path) -> None:
    """transformers loads it on top of the weights, so only they could have the factor."""
    lora(llama, llama)
    line = ("apply", "model", "--yarn", "4", "--attention-factor", "1.3", "-o", "out")
    done = command(tmp_path, *line, "--encoding", "weights", code=2)
    assert "adapter" in done.stderr
    assert not (tmp_path / "out").exists()
    command(tmp_path, *line, "--encoding", "native", code=0)
    assert (tmp_path / "out/adapter_model.safetensors").exists()
    (llama / "adapter_model.safetensors").unlink()  # then nothing is loaded
    command(tmp_path, *line, "--encoding", "weights", "--force", code=0)
