"""llama.cpp in processes: losses of many sequences on one load, whether it loads a file, and how a
process ends.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

import ropeconv
from ropeconv.engines import llamacpp as loading
from ropeconv.engines.engine import Progress
from ropeconv.engines.llamacpp import LlamaCppEngine
from ropeconv.engines.llamacpp_program import LoadedModel, Message
from ropeconv.rope.errors import RopeconvError

from ..support.baking import changed_weights, make_plan, recipe_of
from ..support.llamacpp import bake, checkpoint
from ..support.models import TRAINED, VOCABULARY

pytest.importorskip("llama_cpp")
HANGS = "import time; time.sleep(600)"


def replace_llamacpp(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr(loading, "COMMAND", [sys.executable, "-c", code])


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> LlamaCppEngine:
    folder = tmp_path_factory.mktemp("process")
    bake(checkpoint("llama", folder / "source"), recipe_of("yarn", 4.0), folder / "model.gguf")
    return LlamaCppEngine(folder / "model.gguf", threads=1)


@pytest.mark.parametrize(
    ("variable", "threads"), [("3", 3), ("5,2", 5), ("", None), ("many", None), ("0", None)]
)
def test_threads_are_those_of_openmp(
    monkeypatch: pytest.MonkeyPatch, variable: str, threads: int | None
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    load = LlamaCppEngine(Path("model.gguf")).load
    assert load.threads == (threads or len(os.sched_getaffinity(0)))


def ids(length: int, seed: int = 3) -> list[int]:
    return list(np.random.default_rng(seed).integers(4, VOCABULARY, length).tolist())


def test_losses_are_the_cross_entropy_of_the_logits_also_beyond_the_trained_context(
    engine: LlamaCppEngine,
) -> None:
    text = ids(5 * TRAINED)
    targets = [1, TRAINED, TRAINED + 1, 3 * TRAINED, 5 * TRAINED - 2, 5 * TRAINED - 1]
    heard = list[int]()
    with engine.opened():
        losses = engine.token_losses(text, targets, Progress(advance=heard.append))
        logits = torch.as_tensor(engine.logits(text, [target - 1 for target in targets])).double()
        shifted = engine.token_losses(text[1:], [target - 1 for target in targets[1:]])
    labels = torch.tensor([text[target] for target in targets])
    np.testing.assert_allclose(
        losses.loss, torch.nn.functional.cross_entropy(logits, labels, reduction="none"), 1e-6
    )
    assert losses.right.tolist() == (logits.argmax(-1) == labels).tolist()
    assert sum(heard) == len(text)
    assert (
        np.abs(shifted.loss - losses.loss[1:]).max() > 0.01
    )  # the control: another beginning is another context


def test_a_sequence_has_the_same_losses_whatever_was_read_before_it(engine: LlamaCppEngine) -> None:
    short = ids(100)
    long = ids(6 * TRAINED, seed=4)
    alone = [engine.token_losses(text, range(1, len(text))) for text in (short, long)]
    with engine.opened():
        running = engine.process
        order = [short, short, long, short, long, long]
        runs = [engine.token_losses(text, range(1, len(text))) for text in order]
        assert engine.process is running
    for run, text in zip(runs, order, strict=True):
        np.testing.assert_array_equal(
            (run.loss, run.right), (alone[text is long].loss, alone[text is long].right)
        )


def test_a_token_that_does_not_exist_is_a_sentence_and_the_end(engine: LlamaCppEngine) -> None:
    with engine.opened():
        with pytest.raises(
            RopeconvError, match=r"llama.cpp cannot run model.gguf: .*invalid token"
        ):
            engine.token_losses([5, VOCABULARY + 1000, 7], [2])
        with pytest.raises(RopeconvError, match="has ended after a failure"):
            engine.token_losses([5, 6, 7], [2])
    assert len(engine.token_losses([5, 6, 7], [2]).loss) == 1  # another process


CALLER = """
import sys
from pathlib import Path
from ropeconv.engines.llamacpp import LlamaCppEngine
engine = LlamaCppEngine(Path(sys.argv[1]), threads=1)
with engine.opened():
    print(engine.process.process.pid, flush=True)
    while True:
        engine.token_losses([5 + k % 300 for k in range(20000)], [19999])
"""


def test_the_process_ends_with_a_caller_that_is_killed_in_the_middle_of_a_sequence(
    engine: LlamaCppEngine,
) -> None:
    command = [sys.executable, "-c", CALLER, str(engine.path)]
    caller = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL)
    assert caller.stdout is not None
    child = int(caller.stdout.readline())
    assert runs(child)
    os.kill(caller.pid, signal.SIGKILL)
    caller.wait()
    until = time.monotonic() + 20
    while runs(child) and time.monotonic() < until:
        time.sleep(0.05)
    assert not runs(child)


def runs(process: int) -> bool:
    """Whether a process is there, and not only waits for its end to be noticed."""
    try:
        return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False


def test_a_loader_that_hangs_is_ended_and_nothing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = checkpoint("llama", tmp_path / "source")
    plan = make_plan(
        source, recipe_of("yarn", 4.0), tmp_path / "out.gguf", to="gguf", outtype="f32"
    )
    monkeypatch.setattr(loading, "available", lambda: True)
    replace_llamacpp(monkeypatch, HANGS)
    monkeypatch.setattr(loading, "LONGEST", 0.5)
    before = time.monotonic()
    with pytest.raises(
        RopeconvError,
        match=r"llama.cpp cannot run .* did not load within 0.5 seconds; .*nothing was",
    ):
        ropeconv.apply(plan)
    assert time.monotonic() - before < 60
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == ["source"]


def test_one_that_fails_is_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: LlamaCppEngine
) -> None:
    assert loading.why_not_run(engine.path) == ("", "")
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    assert "failed to load model" in loading.why_not_run(tmp_path / "a.gguf")[0]
    replace_llamacpp(monkeypatch, "import sys; sys.exit('error: no tensors')")
    assert loading.why_not_run(tmp_path / "a.gguf") == ("error: no tensors", "")
    assertion = (
        "import os, sys; sys.stderr.write('/tmp/build/ggml/ops.cpp:9: GGML_ASSERT(a) failed');"
        " os.abort()"
    )
    replace_llamacpp(monkeypatch, assertion)
    assert (
        loading.why_not_run(tmp_path / "a.gguf")[0]
        == "ops.cpp:9: GGML_ASSERT(a) failed (ended by signal 6)"
    )


def test_a_slow_file_and_one_larger_than_the_memory_are_only_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF" * 500)
    answer = msgspec.Raw(msgspec.json.encode(LoadedModel(8, (), False)))
    loaded = msgspec.json.encode(Message(answer=answer)).decode()
    replace_llamacpp(monkeypatch, f"print({loaded!r}, flush=True);{HANGS}")
    monkeypatch.setattr(loading, "LONGEST", 2.0)
    slow = "llama.cpp loaded the file and decoded no five tokens within 2 seconds"
    assert loading.why_not_run(tmp_path / "a.gguf") == ("", slow)
    monkeypatch.setattr(loading, "_memory", lambda: 1999)
    large = "the file (2.0 kB) is larger than the memory, so llama.cpp only loaded it"
    assert loading.why_not_run(tmp_path / "a.gguf") == ("", large)


def test_a_file_whose_weights_are_too_large_for_its_type_has_no_name(tmp_path: Path) -> None:
    """Infinity in F16, from which llama.cpp computes NaN; in F32 the same checkpoint is written."""
    source = checkpoint("llama", tmp_path / "source")
    changed_weights(source, "model.layers.0.mlp.down_proj", 1e9)
    yarn = recipe_of("yarn", 4.0)
    with pytest.raises(RopeconvError, match=r"it computes NaN, .*nothing was kept"):
        ropeconv.apply(make_plan(source, yarn, tmp_path / "out.gguf", to="gguf", outtype="f16"))
    assert not (tmp_path / "out.gguf").exists()
    assert (
        ropeconv.apply(
            make_plan(source, yarn, tmp_path / "out.gguf", to="gguf", outtype="f32")
        ).reason
        == ""
    )
