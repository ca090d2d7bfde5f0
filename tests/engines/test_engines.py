"""One interface to every way of running a model: what each gives, and that they give the same."""

from pathlib import Path

import numpy as np
import pytest

from ropeconv.engines.engine import Engine, Progress
from ropeconv.engines.llamacpp import LlamaCppEngine
from ropeconv.engines.transformers.engine import TransformersEngine
from ropeconv.engines.transformers.load import DeviceSpec
from ropeconv.rope.errors import RopeconvError

from ..support.baking import apply, make_plan, recipe_of
from ..support.models import TRAINED, VOCABULARY

CPU = DeviceSpec("cpu", "float32")


def ids(length: int) -> list[int]:
    return list(np.random.default_rng(3).integers(4, VOCABULARY, length).tolist())


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[TransformersEngine, LlamaCppEngine]:
    """One model, extended four times, in transformers and in llama.cpp."""
    from ..support.llamacpp import checkpoint

    root = tmp_path_factory.mktemp("engines")
    source, recipe = checkpoint("llama", root / "source"), recipe_of("yarn", 4.0)
    folder = apply(make_plan(source, recipe, root / "out"))
    gguf = apply(make_plan(source, recipe, root / "out.gguf", to="gguf", outtype="f32"))
    return TransformersEngine.load(folder, CPU), LlamaCppEngine(gguf)


def test_both_generate_the_same_tokens(both: tuple[Engine, Engine]) -> None:
    text = ids(2 * TRAINED)
    left, right = (engine.generate(text, 12) for engine in both)
    common = min(len(left), len(right))  # the two formats name different tokens that end a text
    assert left[:common] == right[:common]
    assert common >= 4
    assert both[0].generate(text[:-1], 12) != left


def test_chunks_change_nothing_but_rounding_and_are_heard_of(both: tuple[TransformersEngine, Engine]) -> None:
    engine, text = both[0], ids(3 * TRAINED)
    kept, heard = list(range(len(text))), list[int]()
    whole = engine.logits(text, kept)
    engine.chunk = 50
    parts = engine.logits(text, kept, Progress(advance=heard.append))
    engine.chunk = 4096
    assert heard == [50, 50, 50, 42]
    assert float((whole - parts).abs().max() / whole.std()) < 1e-3


def test_a_file_that_llama_cpp_refuses_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(RopeconvError, match=r"llama.cpp cannot run bad.gguf: "):
        LlamaCppEngine(tmp_path / "bad.gguf").logits([1, 2], [1])
