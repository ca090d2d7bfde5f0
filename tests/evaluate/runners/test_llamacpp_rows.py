"""Rows on a GGUF file in llama.cpp lose what the same rows lose on its source in transformers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from ropeconv.engines.llamacpp import LlamaCppEngine
from ropeconv.engines.transformers.load import load_stock
from ropeconv.errors import RopeconvError, UnsupportedBake, UsageError
from ropeconv.evaluate.row import Row, parse_rows
from ropeconv.evaluate.runners import Opening, llamacpp, open_runner
from ropeconv.evaluate.runners.llamacpp import HowToRun, LlamaCppRunner, given_at_loading
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe

from ...support.llamacpp import bake, checkpoint
from .reading import LENGTH, TRAINED, distance, ids, losses_of

pytest.importorskip("llama_cpp")
SAME, APART = 0.01, 1.0
"""Nats by which the loss of a token may differ between runtimes, and by which rows of these tiny models differ."""
AT_LOADING, COPIED = ("base", "yarn:4", "linear:4", "ntk:4"), ("mixed:4", "by-parts:4", "linear:4:log_n=full")
BASE = [Row("base")]
ROWS = ",".join((*AT_LOADING, *COPIED))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a checkpoint and the same model as GGUF."""
    folder = tmp_path_factory.mktemp("rows")
    checkpoint("llama", folder / "source")
    bake(folder / "source", Recipe(REGISTRY["as-is"]()), folder / "source.gguf")
    return folder


@pytest.fixture(scope="module")
def read(made: Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The losses of all rows in transformers and in llama.cpp."""
    return losses_of(made / "source", ROWS), losses_of(made / "source.gguf", ROWS)


@pytest.mark.parametrize("row", [*AT_LOADING, *COPIED])
def test_both_runtimes_lose_the_same_on_every_token_and_no_other_row_does(row: str, read: tuple) -> None:
    here, there = read
    assert max(distance(here[row], there[row])) < SAME
    for other in there.keys() - {row}:
        assert distance(here[row], there[other])[1] > APART, other


def test_base_is_the_cross_entropy_of_whole_logits(made: Path, read: tuple) -> None:
    model, text = load_stock(made / "source", "cpu"), torch.tensor([ids()])
    with torch.no_grad():
        logits = model(input_ids=text, use_cache=False).logits[0, :-1].double()
    wanted = torch.nn.functional.cross_entropy(logits, text[0, 1:], reduction="none").numpy()
    for found in read:
        assert np.abs(found["base"] - wanted).max() < SAME
        assert np.abs(found["yarn:4"] - wanted).max() > APART


def runner_of(made: Path, opened: Opening | None = None) -> LlamaCppRunner:
    with open_runner(opened or Opening(str(made / "source.gguf"), BASE)) as (runner, _):
        assert isinstance(runner, LlamaCppRunner)
        return runner


def test_what_keys_express_is_given_at_loading_and_reads_as_the_copy_does(made: Path, tmp_path: Path) -> None:
    runner, (row,) = runner_of(made), parse_rows("yarn:4:beta_fast=32")
    given = given_at_loading(runner.plan(row).edit, runner.file)
    assert given is not None
    assert given["llama.rope.scaling.type"] == ("str", "yarn")
    copy = runner._copy(row, tmp_path)
    exact, text = HowToRun(exact=True), ids()
    one, other = (
        e.token_losses(text, [LENGTH - 1]).loss for e in (exact.engine(runner.file.path, given), exact.engine(copy))
    )
    assert one == other
    without = dict(given)
    del without["llama.rope.scaling.type"]
    assert abs(one - exact.engine(runner.file.path, without).token_losses(text, [LENGTH - 1]).loss) > 1e-3


@pytest.mark.parametrize("row", COPIED)
def test_what_they_do_not_express_is_not(made: Path, row: str) -> None:
    runner = runner_of(made)
    assert given_at_loading(runner.plan(parse_rows(row)[0]).edit, runner.file) is None


def test_a_row_that_the_file_cannot_have_says_why_when_it_is_planned(tmp_path: Path) -> None:
    bake(checkpoint("gemma3_text", tmp_path / "source"), Recipe(REGISTRY["as-is"]()), tmp_path / "source.gguf")
    runner = runner_of(tmp_path)
    with pytest.raises(UnsupportedBake, match="nothing names an arbitrary frequency vector"):
        runner.schedule(parse_rows("mixed:4")[0])
    assert runner.schedule(parse_rows("yarn:4")[0]).context == 4 * TRAINED
    here, there = (losses_of(tmp_path / name, "base,yarn:4") for name in ("source", "source.gguf"))  # with windows
    for row, other in (("base", "yarn:4"), ("yarn:4", "base")):
        assert max(distance(here[row], there[row])) < 5e-3
        assert distance(here[row], there[other])[1] > 0.05


def test_an_extended_file_is_evaluated_as_it_is_and_extended_from_its_unscaled_state(made: Path, read: tuple) -> None:
    baked = made / "yarn.gguf"
    if not baked.exists():
        bake(made / "source.gguf", Recipe(REGISTRY["yarn"](4.0)), baked)
    found = losses_of(baked, "base,linear:4")
    assert max(distance(found["base"], read[1]["yarn:4"])) < SAME
    assert max(distance(found["linear:4"], read[1]["linear:4"])) < SAME


def test_nothing_is_left_of_a_copy_also_when_the_run_is_killed(made: Path, tmp_path: Path) -> None:
    program = (
        "import sys, time\n"
        "from ropeconv.evaluate.row import parse_rows\n"
        "from ropeconv.evaluate.runners import Opening, open_runner\n"
        "with open_runner(Opening(sys.argv[1], parse_rows('mixed:4'))) as (runner, rows):\n"
        "    with runner.engine(rows[0]) as engine:\n"
        "        print('open', flush=True)\n"
        "        time.sleep(60)\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", program, str(made / "source.gguf")]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert running.stdout is not None
    assert running.stdout.readline() == "open\n"
    assert list(tmp_path.rglob("row.gguf"))
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    time.sleep(0.2)
    again = program.replace("time.sleep(60)", "pass")
    subprocess.run([sys.executable, "-c", again, str(made / "source.gguf")], check=True, env=environment, timeout=100)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_room_for_a_copy_is_a_sentence(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llamacpp, "free_bytes", lambda folder: 1000)
    monkeypatch.setattr(llamacpp, "same_blocks", lambda source, folder: False)
    runner = runner_of(made)
    said = r"mixed:4 needs a copy of .* 1.0 kB are free in .*; set TMPDIR to"
    with pytest.raises(RopeconvError, match=said), runner.engine(parse_rows("mixed:4")[0]):
        pass
    assert not list(Path(tempfile.gettempdir()).glob(f"ropeconv-{os.getuid()}-{os.getpid()}-*/files/row.gguf"))


@pytest.mark.parametrize("adds", [False, True])
def test_the_tokenizer_is_that_of_the_file_with_what_it_puts_first(tmp_path: Path, adds: bool) -> None:
    source, text = checkpoint("llama", tmp_path / "source"), "A wörd, and another.\n"
    settings = tmp_path / "source" / "tokenizer_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "add_bos_token": adds}))
    bake(source, Recipe(REGISTRY["as-is"]()), tmp_path / "source.gguf")
    with open_runner(Opening(str(tmp_path / "source.gguf"), BASE)) as (runner, _):
        tokenizer = runner.tokenizer
        assert tokenizer.prefix == ((1,) if adds else ())
        found = tokenizer.encode(text)
        assert tokenizer.decode(found) == text
        assert len(tokenizer.encode("<s>")) > 1  # text that looks like a special token is text
    with open_runner(Opening(str(source), BASE)) as (runner, _):
        assert runner.tokenizer.encode(text) == found


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"device_map": "auto"}, "--device-map is for checkpoints"),
        ({"device": "cuda"}, "built without a GPU"),
        ({"dtype": "bfloat16"}, "give float16 or float32"),
        ({"trust_remote_code": True}, "nothing here does"),
        ({"family": "llama"}, "names its architecture itself"),
    ],
)
def test_options_that_are_for_others(made: Path, options: dict, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        runner_of(made, Opening(str(made / "source.gguf"), BASE, **options))


def test_another_row_or_another_file_has_another_digest(made: Path, tmp_path: Path) -> None:
    runner = runner_of(made)
    digests = {runner.digest(row) for row in parse_rows(ROWS)}
    assert len(digests) == len(parse_rows(ROWS))
    other = tmp_path / "source.gguf"
    other.write_bytes((made / "source.gguf").read_bytes())
    assert runner_of(tmp_path).source != runner.source
    assert runner_of(made).source == runner.source
    with pytest.raises(UsageError, match="evaluate it by itself"):
        runner.schedule(Row("there", url="http://localhost:8000"))


def test_the_default_precision_is_that_of_llama_cpp_itself(made: Path) -> None:
    assert runner_of(made).dtype == "F32 with float16 keys and values"
    exact = runner_of(made, Opening(str(made / "source.gguf"), BASE, dtype="float32"))
    assert exact.dtype == "F32 with float32 keys and values"
    text = ids(64)
    one, other = (
        LlamaCppEngine(made / "source.gguf", cache=cache, plain=plain).token_losses(text, [63]).loss[0]
        for cache, plain in (("f16", False), ("f32", True))
    )
    assert 0 < abs(one - other) < 0.5
