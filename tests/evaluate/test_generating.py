"""Runs that generate answers, and runs whose numbers are not finite."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from ropeconv.engines import Engine, Progress
from ropeconv.engines.transformers import DeviceSpec, TransformersEngine
from ropeconv.engines.transformers.finite import first_not_finite
from ropeconv.evaluate.asked import Asked
from ropeconv.evaluate.case import EVAL
from ropeconv.evaluate.measures import REGISTRY
from ropeconv.evaluate.outcome import Outcome
from ropeconv.evaluate.row import Row
from ropeconv.evaluate.run import run_units
from ropeconv.evaluate.runners import Runner
from ropeconv.evaluate.texts.documents import Texts
from ropeconv.evaluate.texts.of_checkpoint import CheckpointTokenizer
from ropeconv.evaluate.units import all_cases, plan_units
from ropeconv.formats.journal import Journal

from .reading import ANSWERS, Reader, WordTokenizer, prose


class OneEngine(Runner):
    """The same engine for every row. model: the engine. texts: with the tokenizer."""

    runtime, source, trained = "test 1", "a source", 512

    def __init__(self, model: Engine, texts: Texts) -> None:
        self.model, self.tokenizer = model, texts.tokenizer

    def schedule(self, row: Row) -> None:
        return None

    def digest(self, row: Row) -> str:
        return row.name

    @contextmanager
    def engine(self, row: Row) -> Iterator[Engine]:
        yield self.model


def outcome(folder: Path, model: Engine, texts: Texts, asked: Asked, name: str = "passkey") -> Outcome:
    runner, found = OneEngine(model, texts), Outcome({})
    journal = Journal(folder / "journal.jsonl", EVAL, runner.source)
    units = plan_units([Row("base")], all_cases([REGISTRY[name]], texts, asked), runner, found)
    with journal:
        run_units(units, runner, journal, Progress(), found)
    return found


def test_generated_answers_are_compared_as_text(tmp_path: Path) -> None:
    texts, asked = prose(WordTokenizer()), Asked((1500,), 512, windows=2, depths=3, generate=True)
    for window, expected in ((1 << 30, [1.0, 1.0, 1.0]), (800, [0.0, None, 1.0])):
        folder = tmp_path / str(window)
        found = outcome(folder, Reader(texts.tokenizer, ANSWERS["passkey"], window), texts, asked)
        assert {one.metric for one in found.observations["base"]} == {"accuracy"}
        by_depth = {one.depth: one.value for one in found.observations["base"]}
        wanted = dict(zip((0.0, 0.5, 1.0), expected, strict=True))
        assert {depth: by_depth[depth] for depth, value in wanted.items() if value is not None} == {
            depth: value for depth, value in wanted.items() if value is not None
        }


def test_a_run_that_generates_does_not_take_what_a_forward_pass_measured(tmp_path: Path) -> None:
    texts = prose(WordTokenizer())
    for generate, metrics in ((False, {"accuracy", "log_prob"}), (True, {"accuracy"})):
        asked = Asked((500,), 512, windows=1, depths=2, generate=generate)
        found = outcome(tmp_path, Reader(texts.tokenizer, ANSWERS["passkey"]), texts, asked)
        assert {one.metric for one in found.observations["base"]} == metrics


@pytest.fixture(scope="module")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from ..support.llamacpp import checkpoint

    return checkpoint("llama", tmp_path_factory.mktemp("model") / "tiny")


def engine_of(folder: Path) -> TransformersEngine:
    return TransformersEngine.load(folder, DeviceSpec("cpu", "float32"))


@pytest.mark.parametrize("name", ["model.layers.1.mlp.up_proj", "model.layers.0.self_attn.k_proj", "lm_head"])
def test_the_module_where_numbers_stop_being_finite_is_named(tiny_llama: Path, tmp_path: Path, name: str) -> None:
    engine = engine_of(tiny_llama)
    texts, asked = prose(CheckpointTokenizer(tiny_llama)), Asked((300,), 64, windows=1, depths=1)
    assert first_not_finite(engine.model, range(4, 300), 4096) == ""
    outcome(tmp_path / "finite", engine, texts, asked)
    with torch.no_grad():
        engine.model.get_submodule(name).weight.fill_(float("nan"))
    assert first_not_finite(engine.model, range(4, 300), 100) == name
    (refusal,) = outcome(tmp_path / "broken", engine, texts, asked).refusals
    assert re.match(rf"^base gives .* begin in the output of {name}; give --dtype", refusal.reason)
    assert not any(module._forward_hooks for module in engine.model.modules())


def test_an_infinity_late_in_a_sequence_is_found_where_it_begins(tiny_llama: Path) -> None:
    engine, ids = engine_of(tiny_llama), [5] * 250 + [7]
    with torch.no_grad():
        engine.model.get_input_embeddings().weight[7] = float("inf")
    assert first_not_finite(engine.model, ids, 64) == "model.embed_tokens"
    assert first_not_finite(engine.model, ids[:-1], 64) == ""


def test_an_engine_that_cannot_look_inside_names_no_module(tmp_path: Path) -> None:
    class Broken(Reader):
        def token_losses(self, *given: object, **named: object) -> object:  # type: ignore[override]
            found = super().token_losses(*given, **named)  # type: ignore[arg-type]
            found.loss[0] = float("nan")
            return found

    texts = prose(WordTokenizer())
    model, asked = Broken(texts.tokenizer, ANSWERS["passkey"]), Asked((500,), 512, windows=1, depths=1)
    (refusal,) = outcome(tmp_path, model, texts, asked).refusals
    assert re.match(r"^base gives NaN or infinite logits at position 4\d\d of 500; give", refusal.reason)
