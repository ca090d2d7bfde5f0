"""Rows patched into one loaded checkpoint: their losses by another way, and what a pass over a part gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from ropeconv.engines.transformers.load import load_stock
from ropeconv.evaluate.row import parse_rows
from ropeconv.evaluate.runners import Opening, open_runner
from ropeconv.formats.copying import human

from ...support.baking import apply, make_plan
from ...support.llamacpp import checkpoint
from .reading import LENGTH, TRAINED, distance, ids, losses_of

STATIC = ("base", "yarn:4", "linear:4:log_n=clamped")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint("llama", tmp_path_factory.mktemp("patched") / "source")


def test_losses_are_the_cross_entropy_of_the_whole_logits_of_the_output(source: Path, tmp_path: Path) -> None:
    recipe = parse_rows("yarn:4")[0].recipe
    assert recipe is not None
    model = load_stock(apply(make_plan(source, recipe, tmp_path / "baked")), "cpu")
    text = torch.tensor([ids()])
    with torch.no_grad():
        logits = model(input_ids=text, use_cache=False).logits[0, :-1].double()
    wanted = torch.nn.functional.cross_entropy(logits, text[0, 1:], reduction="none").numpy()
    found = losses_of(source, "base,yarn:4", chunk=60)
    assert max(distance(found["yarn:4"], wanted)) < 2e-3
    assert distance(found["base"], wanted)[1] > 1


def test_one_pass_has_the_losses_of_truncated_passes(source: Path) -> None:
    whole = losses_of(source, ",".join(STATIC))
    for length in (TRAINED // 2, TRAINED, 2 * TRAINED + 7):
        cut = losses_of(source, ",".join(STATIC), length)
        for row in STATIC:
            np.testing.assert_allclose(whole[row][: length - 1], cut[row], atol=2e-3)


def test_every_row_leaves_the_checkpoint_as_it_was(source: Path) -> None:
    text, targets = ids(), list(range(1, LENGTH))
    with open_runner(Opening(str(source), parse_rows(",".join((*STATIC, "linear:4:keep_short=true"))))) as (
        runner,
        rows,
    ):
        found = []
        for row in (rows[0], *rows[1:], rows[0]):
            with runner.engine(row) as engine:
                found.append(engine.token_losses(text, targets).loss)
        assert np.array_equal(found[0], found[-1])
        assert all(np.abs(other - found[0]).max() > 1 for other in found[1:-1])


def test_log_n_scales_queries_whose_positions_have_sections(tmp_path: Path) -> None:
    source = checkpoint("qwen3_5_text", tmp_path / "source")
    found = losses_of(source, "linear:4,linear:4:log_n=clamped")
    inside, beyond = distance(*found.values())
    assert inside < 1e-4  # clamped at 1 within the trained context
    assert beyond > 1e-3


def test_the_memory_of_a_sequence_is_that_of_its_keys_and_values(source: Path) -> None:
    with open_runner(Opening(str(source), parse_rows("base"), dtype="bfloat16")) as (runner, _):
        per_token = 2 * 2 * 64 * 2  # layers, keys and values, head_dim, bytes
        tensors = [tensor for path in source.glob("*.safetensors") for tensor in load_file(path).values()]
        weights, said = human(2 * sum(tensor.size for tensor in tensors)), runner.memory(1000)
        assert said == f"The weights take {weights} of memory, keys and values of 1,000 tokens {per_token:.1f} kB."
