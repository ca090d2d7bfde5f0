"""Rows on a GGUF file in llama.cpp lose what the same rows lose on its source in transformers."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ropeconv.engines.llamacpp import LlamaCppEngine
from ropeconv.errors import UnsupportedBake, UsageError
from ropeconv.features.evaluation.runners.llamacpp import LlamaCppRunner, engine_options
from ropeconv.features.evaluation.runners.opening import open_runner
from ropeconv.features.evaluation.runners.runner import RunnerRequest
from ropeconv.verbs.rows import Row, parse_rows

from ....support.llamacpp import checkpoint
from ....support.tiny_gguf import make as make_gguf
from .reading import Losses, baked, distance, losses_of

pytest.importorskip("llama_cpp")
SAME, APART = 0.01, 1.0
"""Nats by which the loss of a token may differ between runtimes, and by which rows of these tiny
models differ.
"""
AT_LOADING = ("base", "yarn:4", "linear:4")
COPIED = ("mixed:4", "linear:4:log_n=full")
BASE = [Row("base")]
ROWS = ",".join((*AT_LOADING, *COPIED))


def as_gguf(source: Path) -> Path:
    return baked(source, "as-is", source.with_suffix(".gguf"), to="gguf", outtype="f32")


@pytest.fixture(scope="module")
def gguf(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return baked(
        models / "source",
        "as-is",
        tmp_path_factory.mktemp("rows") / "x.gguf",
        to="gguf",
        outtype="f32",
    )


@pytest.fixture(scope="module")
def read(models: Path, gguf: Path) -> tuple[Losses, Losses]:
    """The losses of all rows in transformers and in llama.cpp."""
    return losses_of(models / "source", ROWS), losses_of(gguf, ROWS)


def runner_of(path: Path, **options: Any) -> LlamaCppRunner:
    with open_runner(RunnerRequest(str(path), BASE, **options)) as (runner, _):
        assert isinstance(runner, LlamaCppRunner)
        return runner


def test_both_runtimes_lose_the_same_on_every_token_and_no_other_row_does(
    read: tuple[Losses, Losses],
) -> None:
    here, there = read
    for row in (*AT_LOADING, *COPIED):
        assert max(distance(here[row], there[row])) < SAME
        assert [other for other in there if distance(here[row], there[other])[1] < APART] == [row]


def test_a_row_that_the_file_cannot_have_says_why_when_it_is_planned(tmp_path: Path) -> None:
    source = checkpoint("gemma3_text", tmp_path / "source")
    runner = runner_of(as_gguf(source))
    with pytest.raises(UnsupportedBake, match="frequency vector"):
        runner.digest(parse_rows("mixed:4")[0])
    here, there = (
        losses_of(path, "base,yarn:4") for path in (source, runner.file.path)
    )  # with windows
    for row, other in (("base", "yarn:4"), ("yarn:4", "base")):
        assert max(distance(here[row], there[row])) < 5e-3
        assert distance(here[row], there[other])[1] > 0.05


@pytest.mark.parametrize("arch", ["llada", "gemma-embedding", "llama-embed"])
@pytest.mark.parametrize("is_output", [True, False])
def test_a_file_that_predicts_no_next_token_has_no_loss(
    arch: str, is_output: bool, tmp_path: Path
) -> None:
    path = make_gguf(arch, tmp_path / "source.gguf")
    if is_output:
        path = baked(path, "yarn:4", tmp_path / "output.gguf")
    rows = [] if is_output else BASE
    with (
        pytest.raises(UsageError, match="both directions"),
        open_runner(RunnerRequest(str(path), rows)),
    ):
        pass


def test_an_extended_file_is_evaluated_as_it_is_and_extended_from_its_unscaled_state(
    gguf: Path, tmp_path: Path, read: tuple[Losses, Losses]
) -> None:
    losses = losses_of(baked(gguf, "yarn:4", tmp_path / "yarn.gguf"), "base,linear:4")
    assert max(distance(losses["base"], read[1]["yarn:4"])) < SAME
    assert max(distance(losses["linear:4"], read[1]["linear:4"])) < SAME


def test_the_source_of_an_output_is_converted_with_the_types_of_the_output(
    models: Path, tmp_path: Path
) -> None:
    """An output of the same RoPE loses the same as its source; other types lose otherwise."""
    types = {
        "outtype": "q4_0",
        "tensor_type": ("blk=f32",),
        "output_tensor_type": "f32",
        "token_embedding_type": "f32",
    }
    output = baked(models / "source", "as-is", tmp_path / "mixed.gguf", to="gguf", **types)
    losses = losses_of(output, against=str(models / "source"))
    assert list(losses) == ["base", "mixed"]
    assert distance(losses["base"], losses["mixed"]) == (0, 0)
    coarse = baked(models / "source", "as-is", tmp_path / "q4.gguf", to="gguf", outtype="q4_0")
    assert max(distance(losses["base"], losses_of(coarse, "base")["base"])) > SAME


KEPT_OPEN = """
import sys
from ropeconv.verbs.rows import parse_rows
from ropeconv.features.evaluation.runners.runner import RunnerRequest
from ropeconv.features.evaluation.runners.opening import open_runner
with open_runner(RunnerRequest(sys.argv[1], parse_rows('mixed:4'))) as (runner, rows), runner.engine(rows[0]):
    print('open', flush=True)
    sys.stdin.read()
"""


def test_nothing_is_left_of_a_copy_also_when_the_run_is_killed(gguf: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [
        sys.executable,
        "-c",
        KEPT_OPEN,
        str(gguf),
    ]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as running:
        assert running.stdout.readline() == "open\n"
        assert list(tmp_path.rglob("row.gguf"))
        running.kill()
    subprocess.run(command, stdin=subprocess.DEVNULL, check=True, env=environment, timeout=100)
    assert list(tmp_path.iterdir()) == []


def test_the_tokenizer_is_that_of_the_file_with_what_it_puts_first(tmp_path: Path) -> None:
    source = checkpoint("llama", tmp_path / "source")
    text = "A wörd, and another.\n"
    settings = source / "tokenizer_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "add_bos_token": True}))
    with open_runner(RunnerRequest(str(as_gguf(source)), BASE)) as (runner, _):
        tokens = runner.tokenizer.encode(text)
        assert (runner.tokenizer.decode(tokens), runner.tokenizer.prefix) == (text, (1,))
        assert (
            len(runner.tokenizer.encode("<s>")) > 1
        )  # text that looks like a special token is text
    with open_runner(RunnerRequest(str(source), BASE)) as (runner, _):
        assert runner.tokenizer.encode(text) == tokens


def test_options_that_are_for_others_are_refused(gguf: Path) -> None:
    with pytest.raises(UsageError, match="built without a GPU"):
        runner_of(gguf, device="cuda")
    with pytest.raises(UsageError, match="give --dtype float16 or float32"):
        runner_of(gguf, dtype="bfloat16")


def test_threads_that_are_given_are_stronger_than_openmp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    options = engine_options(RunnerRequest("model.gguf", [], threads=7), offloads=False)
    assert LlamaCppEngine(Path("model.gguf"), **options).load.threads == 7
