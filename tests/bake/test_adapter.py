"""`apply --adapter`, by what PEFT's own loader computes with the adapter alone."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from ropeconv.bake import companions
from ropeconv.inspection.receipts.companion import read_companion
from ropeconv.inspection.receipts.storage import read_receipt

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
