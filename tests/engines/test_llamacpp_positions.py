"""Blocks of tokens with gaps between their positions in llama.cpp, against transformers with the
same mask.
"""

from pathlib import Path

import pytest
import torch

from ropeconv.engines.llamacpp import LlamaCppEngine
from ropeconv.engines.transformers.load import load_stock
from ropeconv.validate.sampling import BLOCK, TokenRun
from ropeconv.validate.validation import measure

from ..support.baking import recipe_of
from ..support.llamacpp import bake, checkpoint, sequence

pytest.importorskip("llama_cpp")
HIGH = 1000
"""Far beyond the positions that the tokens would have without gaps."""


def of_transformers(source: Path, run: TokenRun) -> torch.Tensor:
    """Logits at every token, where the first token of each block sees only itself."""
    model = load_stock(source, "cpu")
    seen = torch.ones(len(run.ids), len(run.ids), dtype=torch.bool).tril()
    for first in range(0, len(run.ids), BLOCK):
        seen[first, :first] = False
    mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)[None, None]
    with torch.no_grad():
        out = model(
            input_ids=torch.tensor([run.ids]),
            position_ids=torch.tensor([run.positions]),
            attention_mask=mask,
            use_cache=False,
        )
    return out.logits[0].float()


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_every_token_sees_every_block_before_it_at_its_distance(
    family: str, tmp_path: Path
) -> None:
    source = checkpoint(family, tmp_path / "source")
    bake(source, recipe_of("as-is"), tmp_path / "m.gguf")
    run = TokenRun.blocks(HIGH // 2, HIGH, sequence(4 * BLOCK), 64)
    assert run.has_gaps
    assert run.positions[-1] == HIGH - 1
    assert min(run.positions[index] for index in run.kept) >= HIGH // 2

    there = list(range(len(run.ids)))
    logits = LlamaCppEngine(tmp_path / "m.gguf").logits(run.ids, there, positions=run.positions)
    expected = of_transformers(source, run)
    assert measure(expected, logits).kl.max() < 1e-4

    # the control: without the gaps, the distances are others
    without = LlamaCppEngine(tmp_path / "m.gguf").logits(run.ids, there)
    assert measure(expected, without).kl[run.kept].mean() > 1e-2


def test_one_process_reads_runs_of_both_kinds(tmp_path: Path) -> None:
    source = checkpoint("llama", tmp_path / "source")
    bake(source, recipe_of("as-is"), tmp_path / "m.gguf")
    run = TokenRun.blocks(0, HIGH, sequence(4 * BLOCK), 16)
    engine = LlamaCppEngine(tmp_path / "m.gguf")
    with engine.opened():
        first = engine.logits(run.ids, run.kept, positions=run.positions)
        plain = engine.logits(run.ids, run.kept)
        again = engine.logits(run.ids, run.kept, positions=run.positions)
    assert torch.equal(first, again)
    assert not torch.allclose(first, plain, atol=1e-3)


def test_a_short_range_has_no_gaps() -> None:
    run = TokenRun.blocks(64, 128, list(range(128)), 16)
    assert run.positions == list(range(128))
    assert not run.has_gaps
    assert len(run.kept) == 16
    assert run.kept[0] >= 64
