"""Carrying out a plan: what arrives, what is left behind, what an interruption leaves."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from queue import SimpleQueue

import pytest

from ropeconv.bake import Plan
from ropeconv.bake.execute import ApplyOptions, execute_plan
from ropeconv.bake.writing import files
from ropeconv.errors import Disagreement, Interrupted, RopeconvError
from ropeconv.receipts.receipt import CheckRecord
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe

from ..conftest import Run, hashes
from ..support.baking import apply, make_plan

YARN = Recipe(REGISTRY["yarn"](4.0))


def plan_of(folder: Path, out: Path, recipe: Recipe = YARN, **more: object) -> Plan:
    return make_plan(folder, recipe, out, **more)


class Killed(BaseException):
    """What no code catches, as a kill."""


def kill_at(call: int) -> Callable[[int], None]:
    """An `advance` that raises Killed when it is called for the given time."""
    calls = count(1)

    def stop(done: int) -> None:
        if next(calls) == call:
            raise Killed

    return stop


def furnish(folder: Path) -> None:
    """What a published folder holds beside its weights."""
    (folder / "tokenizer_config.json").write_text('{\n  "model_max_length": 64,\n  "unk_token": "<unk>"\n}\n')
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "LICENSE").write_text("terms")
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    (folder / "original").mkdir()
    (folder / "original" / "consolidated.00.pth").write_bytes(b"pickle")
    (folder / "model-Q4.gguf").write_bytes(b"GGUF")
    (folder / "assets").mkdir()
    (folder / "assets" / "picture.png").write_bytes(b"png")
    (folder / ".cache").mkdir()
    (folder / ".cache" / "lock").write_text("")


def test_what_arrives(llama: Path, tmp_path: Path) -> None:
    furnish(llama)
    before = hashes(llama)
    plan = plan_of(llama, tmp_path / "out")
    out = apply(plan)
    arrived = hashes(out)
    same = {"LICENSE", "assets/picture.png", "chat_template.jinja", "generation_config.json", "model.safetensors"}
    assert set(arrived) == same | {"config.json", "tokenizer_config.json", "ropeconv.json"}
    assert all(arrived[name] == before[name] for name in same)
    assert plan.skipped == ("model-Q4.gguf", "original/consolidated.00.pth", "pytorch_model.bin")
    assert hashes(llama) == before
    assert (out / "tokenizer_config.json").read_text() == '{\n  "model_max_length": 256,\n  "unk_token": "<unk>"\n}\n'
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out"]


def test_all_files_are_carried_when_asked(llama: Path, tmp_path: Path) -> None:
    furnish(llama)
    assert plan_of(llama, tmp_path / "out", all_files=True).skipped == ()


@pytest.mark.parametrize("limit", ["1000000000000000019884624838656", "1e30", "512", "-1", "null"])
def test_limits_of_the_tokenizer_that_stay(llama: Path, tmp_path: Path, limit: str) -> None:
    text = f'{{"model_max_length": {limit}}}'
    (llama / "tokenizer_config.json").write_text(text)
    apply(plan_of(llama, tmp_path / "out"))
    assert (tmp_path / "out" / "tokenizer_config.json").read_text() == text


def test_the_receipt(llama: Path, tmp_path: Path) -> None:
    plan = plan_of(llama, tmp_path / "out")
    check = CheckRecord("5", 1, 1.0)
    execute_plan(plan, ApplyOptions(checksum=True), verify=lambda folder: check)
    receipt = json.loads((tmp_path / "out" / "ropeconv.json").read_text())
    assert Recipe.from_dict(receipt["recipe"]) == YARN
    assert receipt["schedule"]["digest"] == plan.schedule.digest
    assert receipt["check"] == {"transformers": "5", "max_ulp": 1, "attention_factor": 1.0, "read_as": ""}
    files = {file["name"]: file["sha256"] for file in receipt["files"]}
    arrived = hashes(tmp_path / "out")
    del arrived["ropeconv.json"]
    assert files == arrived
    assert str(tmp_path) not in json.dumps(receipt)


def test_linked_files_share_their_blocks_and_changed_ones_do_not(llama: Path, tmp_path: Path) -> None:
    apply(plan_of(llama, tmp_path / "out"), link=True)
    linked = {name for name in os.listdir(llama) if (llama / name).samefile(tmp_path / "out" / name)}
    assert linked == {"generation_config.json", "model.safetensors"}


def test_a_disagreement_keeps_nothing(llama: Path, tmp_path: Path) -> None:
    def disagree(folder: Path) -> None:
        assert (folder / "config.json").exists()
        raise Disagreement("no")

    with pytest.raises(Disagreement):
        execute_plan(plan_of(llama, tmp_path / "out"), ApplyOptions(), verify=disagree)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, r"the disk is full; .* are needed at .*, free some or use -o"),
        (errno.EDQUOT, r"the disk is full; .* are needed at .*, free some or use -o"),
        (errno.EIO, r"cannot be written \(.*\); check the disk and its permissions, or choose another place with -o"),
    ],
)
def test_errors_of_the_disk_are_sentences(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, said: str
) -> None:
    def copy(source: Path, target: Path, advance: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files, "copy_file", copy)
    with pytest.raises(RopeconvError, match=said):
        apply(plan_of(llama, tmp_path / "out"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


def test_force_replaces_an_earlier_output_as_a_whole(llama: Path, tmp_path: Path) -> None:
    (llama / "LICENSE").write_text("terms")
    out = apply(plan_of(llama, tmp_path / "out"))
    (llama / "LICENSE").unlink()
    with pytest.raises(RopeconvError, match="replace it with --force"):
        apply(plan_of(llama, out))
    apply(plan_of(llama, out, Recipe(REGISTRY["linear"](2.0))), force=True)
    assert not (out / "LICENSE").exists()
    assert json.loads((out / "config.json").read_text())["rope_scaling"]["rope_type"] == "linear"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out"]


def test_an_interrupted_run_is_picked_up(llama: Path, tmp_path: Path) -> None:
    """Killed between files: the finished ones are not made again, the name does not appear before the end."""
    with pytest.raises(Killed):
        apply(plan_of(llama, tmp_path / "out"), advance=kill_at(2))
    assert not (tmp_path / "out").exists()
    partial = tmp_path / ".out.ropeconv-partial"
    finished = [path for path in partial.rglob("*") if path.name == "config.json"]
    stamps = {path.name: path.stat().st_mtime_ns for path in finished}
    assert stamps
    apply(plan_of(llama, tmp_path / "out"))
    assert {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in stamps} == stamps
    assert hashes(tmp_path / "out")["model.safetensors"] == hashes(llama)["model.safetensors"]
    assert not partial.exists()


def test_another_plan_does_not_pick_up_the_files_of_the_first(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        apply(plan_of(llama, tmp_path / "out", Recipe(REGISTRY["linear"](2.0))), advance=kill_at(2))
    assert list(tmp_path.glob(".out.ropeconv-partial/new/out/config.json"))
    apply(plan_of(llama, tmp_path / "out"))
    assert json.loads((tmp_path / "out" / "config.json").read_text())["rope_scaling"]["factor"] == 4.0


def test_a_killed_process_leaves_no_output(llama: Path, tmp_path: Path) -> None:
    with (llama / "big.txt").open("wb") as file:
        file.truncate(1 << 30)
    command = [sys.executable, "-m", "ropeconv", "apply", "model", "--yarn", "4", "-q"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not (tmp_path / ".model-yarn4.ropeconv-partial").exists():
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "model-yarn4").exists()
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "model-yarn4" / "big.txt").stat().st_size == 1 << 30


def test_shards_with_an_index_keep_their_names(llama: Path, tmp_path: Path) -> None:
    (llama / "model.safetensors").rename(llama / "model-00001-of-00001.safetensors")
    index = {"metadata": {}, "weight_map": {"lm_head.weight": "model-00001-of-00001.safetensors"}}
    (llama / "model.safetensors.index.json").write_text(json.dumps(index))
    out = apply(plan_of(llama, tmp_path / "out"))
    assert hashes(out)["model.safetensors.index.json"] == hashes(llama)["model.safetensors.index.json"]
    assert (out / "model-00001-of-00001.safetensors").exists()


def test_the_name_of_the_output(run: Run, llama: Path, tmp_path: Path) -> None:
    for flags, name in (
        (("--yarn", "16"), "model-yarn16"),
        (("--ntk-fixed", "2.5"), "model-ntk-fixed2.5"),
        (("--theta", "1e6"), "model-theta1000000"),
        (("--as-is",), "model-as-is"),
        (("--dynamic", "ntk:2", "--at", "256"), "model-dynamic-ntk2"),
    ):
        plan = json.loads(run("apply", "model", *flags, "--dry-run", "--json").stdout)
        assert plan["out"] == name


def test_a_copy_that_hangs_is_not_waited_for_and_moves_nothing(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a download may, when the run is stopped."""
    (llama / "second.bin").write_bytes(bytes(100))
    hangs, goes_on = threading.Event(), threading.Event()
    ended: SimpleQueue[BaseException] = SimpleQueue()
    copy = files.copy_file

    def slow(source: Path, target: Path, advance: Callable[[int], None]) -> None:
        if source.name != "second.bin":
            assert source.suffix != ".safetensors" or hangs.wait(60)
            copy(source, target, advance)
            return
        hangs.set()
        assert goes_on.wait(60)
        target.write_bytes(bytes(100))
        try:
            advance(100)
        except BaseException as problem:
            ended.put(problem)
            raise

    def stop(done: int) -> None:
        if hangs.is_set():
            raise Killed

    monkeypatch.setattr(files, "copy_file", slow)
    monkeypatch.setattr(files, "GRACE", 0.2)
    with pytest.raises(Killed):
        apply(plan_of(llama, tmp_path / "out", all_files=True), advance=stop)
    goes_on.set()
    assert isinstance(ended.get(timeout=60), Interrupted)
    assert not (tmp_path / "out").exists()
