"""One interface to every way of running a model: what each gives, and that they give the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ropeconv.engines import Engine, Progress
from ropeconv.engines.llamacpp import LlamaCppEngine
from ropeconv.engines.servers.connect import PROTOCOLS
from ropeconv.engines.transformers import DeviceSpec, TransformersEngine
from ropeconv.errors import RopeconvError
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe

from ..support.baking import apply, make_plan
from ..support.models import COMMON, TRAINED, VOCABULARY, by_transformers
from ..support.plain_llama import write_llama

CPU = DeviceSpec("cpu", "float32")
METHODS = {"hidden_states": 3, "logits": 2, "top_log_probs": 2, "token_losses": 2, "generate": 2}


def ids(length: int) -> list[int]:
    found: list[int] = torch.randint(4, VOCABULARY, (length,), generator=torch.Generator().manual_seed(3)).tolist()
    return found


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[TransformersEngine, LlamaCppEngine]:
    """One model, extended four times, in transformers and in llama.cpp."""
    from ..support.llamacpp import checkpoint

    root = tmp_path_factory.mktemp("engines")
    source, recipe = checkpoint("llama", root / "source"), Recipe(REGISTRY["yarn"](4.0))
    folder = apply(make_plan(source, recipe, root / "out"))
    gguf = apply(make_plan(source, recipe, root / "out.gguf", to="gguf", outtype="f32"))
    return TransformersEngine.load(folder, CPU), LlamaCppEngine(gguf)


def test_both_give_the_same_logits_beyond_the_trained_context(both: tuple[Engine, Engine]) -> None:
    text, kept = ids(4 * TRAINED), [TRAINED, 2 * TRAINED, 4 * TRAINED - 1]
    left, right = (torch.as_tensor(engine.logits(text, kept)) for engine in both)
    assert left.shape == (3, VOCABULARY)
    assert float((left - right[:, :VOCABULARY]).abs().max() / left.std()) < 1e-3
    moved = torch.as_tensor(both[0].logits(text[1:], [k - 1 for k in kept]))
    assert float((left - moved).abs().max() / left.std()) > 0.1


def test_both_generate_the_same_tokens(both: tuple[Engine, Engine]) -> None:
    text = ids(2 * TRAINED)
    left, right = (engine.generate(text, 12) for engine in both)
    common = min(len(left), len(right))  # the two formats name different tokens that end a text
    assert left[:common] == right[:common]
    assert common >= 4
    assert both[0].generate(text[:-1], 12) != left


def test_hidden_states_through_the_head_are_the_logits(both: tuple[TransformersEngine, Engine]) -> None:
    engine, text, kept = both[0], ids(2 * TRAINED), [5, 2 * TRAINED - 1]
    hidden = engine.hidden_states(text, range(len(text)), kept)
    assert torch.equal(engine.head(hidden), torch.as_tensor(engine.logits(text, kept)))


def test_chunks_change_nothing_but_rounding_and_are_heard_of(both: tuple[TransformersEngine, Engine]) -> None:
    engine, text = both[0], ids(3 * TRAINED)
    kept, heard = list(range(len(text))), list[int]()
    whole = engine.logits(text, kept)
    engine.chunk = 50
    parts = engine.logits(text, kept, Progress(advance=heard.append))
    engine.chunk = 4096
    assert heard == [50, 50, 50, 42]
    assert float((whole - parts).abs().max() / whole.std()) < 1e-3


def test_what_llama_cpp_is_given_at_loading_replaces_what_the_file_says(both: tuple[Engine, LlamaCppEngine]) -> None:
    text, last = ids(2 * TRAINED), [2 * TRAINED - 1]
    told = LlamaCppEngine(both[1].path, {"llama.rope.scaling.type": ("str", "none")})
    as_it_is, unscaled = (torch.as_tensor(engine.logits(text, last)) for engine in (both[1], told))
    assert float((as_it_is - unscaled).abs().max() / as_it_is.std()) > 0.1


@pytest.mark.parametrize("kind", [TransformersEngine, LlamaCppEngine, *PROTOCOLS])
def test_what_an_engine_does_not_give_it_says(kind: type[Engine]) -> None:
    engine: Any = object.__new__(kind)
    engine.runtime = "some engine 1"
    for method, arguments in METHODS.items():
        output = "tokens" if method == "generate" else method
        overridden = getattr(kind, method) is not getattr(Engine, method)
        assert overridden == (output in kind.gives), (kind, method)
        if not overridden:
            said = f"some engine 1 (gives no {output}, only|{kind.lacks.get(output)})"
            with pytest.raises(RopeconvError, match=said):
                getattr(engine, method)(*[[1]] * arguments)


def test_the_llama_that_numpy_makes_is_what_its_class_makes(tmp_path: Path) -> None:
    """In an environment without torch the tests have that one."""
    from safetensors.torch import load_file

    settings = {**COMMON, "attention_bias": True, "mlp_bias": True}
    by_transformers("llama", tmp_path / "class", settings, 0)
    (tmp_path / "numpy").mkdir()
    write_llama(tmp_path / "numpy", settings)
    configs = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("class", "numpy")]
    assert configs[0] | {"transformers_version": configs[1]["transformers_version"]} == configs[1]
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("class", "numpy"))
    assert {name: one.shape for name, one in first.items()} == {name: one.shape for name, one in second.items()}
    for name, one in first.items():
        assert float(second[name].std()) == pytest.approx(float(one.std()), rel=0.05), name
    logits = TransformersEngine.load(tmp_path / "numpy", CPU).logits(ids(2 * TRAINED), [2 * TRAINED - 1])
    assert torch.as_tensor(logits).isfinite().all()


def test_losses_are_refused_where_the_model_has_seen_the_tokens(tiny: Callable[[str], Path]) -> None:
    pytest.importorskip("transformers.models.diffusion_gemma")
    engine = TransformersEngine.load(tiny("diffusion_gemma"), CPU)
    with pytest.raises(RopeconvError, match="has seen each token that it would predict; evaluate it on its own task"):
        engine.token_losses(ids(40), [20])


def test_a_file_that_llama_cpp_refuses_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(RopeconvError, match=r"llama.cpp cannot run bad.gguf: "):
        LlamaCppEngine(tmp_path / "bad.gguf").logits([1, 2], [1])
