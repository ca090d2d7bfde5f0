"""The items of real models at 2 to 8 times their trained context, from what their passes give, and
the attention of these passes.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scripts.real_model import GEMMA3, SMOLLM2
from scripts.research.real_record import (
    BLOCK,
    KEPT,
    SUBJECTS,
    TARGETS,
    attend,
    items_of,
    jobs,
    rows_of,
)

SUBJECT = SUBJECTS[SMOLLM2.name]
TRAINED = SUBJECT.trained
LENGTH = 2 * TRAINED


def measured(row: str, text: str, length: int = LENGTH) -> dict[str, Any]:
    """The result of a long pass: token 100 of the last 4,096 is worse by 128 nats."""
    last = np.full(KEPT, 3.0)
    last[100] += BLOCK
    first = (length - TARGETS) // BLOCK
    growth = [[length, first + block, 3.0] for block in range(TARGETS // BLOCK)]
    keys = [["exact", 0, 0.1, 1.0, 1]]
    return {"row": row, "text": text, "growth": growth, "last": last.tolist(), "keys": keys}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for text in ("moby_dick", "python_manual"):
        for row in ("base", "yarn:2"):
            write(tmp_path, measured(row, text))
    return tmp_path


def write(folder: Path, found: dict[str, Any]) -> None:
    name = f"0-{found['text']}-{found['row'].replace(':', '-')}.json"
    (folder / name).write_text(json.dumps({**found, "sample": "s"}))


def test_a_long_pass_gives_a_loss_for_each_block_of_its_last_4096_tokens(folder: Path) -> None:
    losses = {}
    for item in items_of(folder):
        if (item.row, item.text, item.measure) == ("yarn:2", "moby_dick", "growth"):
            losses[item.window] = item.value
    assert sorted(losses) == list(range((LENGTH - KEPT) // BLOCK, LENGTH // BLOCK))
    assert {window for window, loss in losses.items() if loss != 3} == {96}, "of token 12,388"
    assert losses[96] == 4.0


def test_the_trained_context_has_only_tokens_with_most_of_it_before_them(folder: Path) -> None:
    """The short pass of the unchanged model reads 8,192 tokens, so its earlier ones have less."""
    first = (LENGTH - TARGETS) // BLOCK
    short = measured("base", "moby_dick")
    short["growth"] = [[TRAINED, first + block, 2.5] for block in range(TARGETS // BLOCK)]
    short["short"] = short["last"]
    del short["keys"]
    (folder / "0-moby_dick-short.json").write_text(json.dumps({**short, "sample": "s"}))
    windows = [
        item.window
        for item in items_of(folder)
        if (item.measure, item.length) == ("growth", TRAINED)
    ]
    assert sorted(windows) == list(range(first, LENGTH // BLOCK))


def test_a_row_without_all_texts_is_left_out(folder: Path) -> None:
    write(folder, measured("ntk:2", "moby_dick"))
    assert {item.row for item in items_of(folder)} == {"base", "yarn:2"}
    write(folder, measured("ntk:2", "python_manual"))
    assert {item.row for item in items_of(folder)} == {"base", "yarn:2", "ntk:2"}


def test_a_row_at_four_times_needs_no_pass_of_the_unchanged_model_there(tmp_path: Path) -> None:
    """Its 8,192 last tokens are enough. The windows are of other places of the texts than at 2."""
    length = 4 * TRAINED
    first = (length - TARGETS) // BLOCK
    for text in ("moby_dick", "python_manual"):
        write(tmp_path, measured("yarn:4", text, length))
        short = measured("base", text, length)
        short["growth"] = [[TRAINED, first + block, 2.5] for block in range(TARGETS // BLOCK)]
        short["short"] = short["last"]
        del short["keys"]
        (tmp_path / f"0-{text}-short.json").write_text(json.dumps({**short, "sample": "s"}))
    write(tmp_path, measured("ntk:4", "moby_dick", length))

    items = items_of(tmp_path)
    assert {item.row for item in items} == {"base", "yarn:4"}, "ntk has one text of two"
    assert {item.sample for item in items} == {"s-32768"}
    assert {item.factor for item in items} == {4.0, None}
    places: dict[str, set[Any]] = {}
    for item in items:
        if item.measure == "growth":
            places.setdefault(item.row, set()).add(item.place)
    assert len(places["base"]) == 2 * TARGETS // BLOCK
    assert places["base"] < places["yarn:4"], "the same tokens"


def test_each_text_has_its_short_contexts_before_other_rows() -> None:
    """One row in each text, then the rest by row: what is stopped has whole rows."""
    of_four_times = jobs(rows_of(4, SUBJECT), 4, 2, 0, 1)
    order = [(text, row and row.name) for text, row in of_four_times][:6]
    assert order == [
        (0, "yarn:4"),
        (0, None),
        (1, "yarn:4"),
        (1, None),
        (0, "base"),
        (1, "base"),
    ]
    of_twice = jobs(rows_of(2, SUBJECT), 2, 8, 0, 1)
    twice = [row and row.name for text, row in of_twice if text == 0]
    assert twice[:4] == ["base", "yarn:2", None, "ntk:2"]


def test_workers_share_the_texts_and_not_the_rows() -> None:
    """With two texts, each of two workers has one, on which it measures all rows."""
    rows = rows_of(8, SUBJECT)
    for worker in (0, 1):
        own = list(jobs(rows, 8, 2, worker, 2))
        assert {text for text, _ in own} == {worker}
        assert len(own) == len(rows) + 1, "and the short contexts"


def test_items_name_the_model_that_was_measured(tmp_path: Path) -> None:
    """Gemma's trained context is longer, so the same length is another factor."""
    gemma = SUBJECTS[GEMMA3.name]
    found = measured("base", "moby_dick", 2 * gemma.trained)
    write(tmp_path, {**found, "model": GEMMA3.name})
    (model,) = {(item.model, item.trained, item.row) for item in items_of(tmp_path)}
    assert model == (GEMMA3.name, 32768, "base")
    assert [row.name for row in rows_of(2, gemma)][-1] == "theta-for:65536"


@pytest.mark.parametrize(
    ("heads", "key_heads", "columns", "rows", "window"),
    [
        (9, 3, 3000, 700, None),
        (9, 3, 2500, 1, None),
        (4, 1, 3000, 1024, 512),
        (4, 1, 300, 300, 512),
        (4, 1, 2500, 245, 512),
    ],
)
def test_the_attention_is_that_of_torch(
    heads: int, key_heads: int, columns: int, rows: int, window: int | None
) -> None:
    """Of the last `rows` positions, with queries that share keys, and with windows."""
    draw = torch.Generator().manual_seed(0)
    query = torch.randn(1, heads, rows, 64, generator=draw)
    key = torch.randn(1, key_heads, columns, 64, generator=draw)
    value = torch.randn(1, key_heads, columns, 64, generator=draw)
    with torch.compiler.set_stance("force_eager"):
        output, _ = attend(None, query, key, value, None, 0.125, window)
        changed, _ = attend(None, query, key, value, None, 0.125, 100)

    distance = torch.arange(columns - rows, columns)[:, None] - torch.arange(columns)
    seen = distance >= 0
    if window is not None:
        seen &= distance < window
    expected = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=seen, scale=0.125, enable_gqa=True
    ).transpose(1, 2)
    assert (output - expected).abs().max() < 2e-6
    assert (changed - expected).abs().max() > 0.01, "a shorter window is seen"


def test_scores_beyond_the_range_of_exponentials_are_refused() -> None:
    """There is no maximum to subtract."""
    query = torch.full((1, 1, 4, 64), 10.0)
    with torch.compiler.set_stance("force_eager"), pytest.raises(OverflowError):
        attend(None, query, query, query, None, 1.0)
