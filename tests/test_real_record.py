"""The items of SmolLM2 at 2 and 4 times its trained context, from what its passes give."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scripts.research.real_record import BLOCK, KEPT, TARGETS, TRAINED, items_of, jobs, rows_of

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
    order = [(text, row and row.name) for text, row in jobs(rows_of(4), 4, 0, 1)][:6]
    assert order == [
        (0, "yarn:4"),
        (0, None),
        (1, "yarn:4"),
        (1, None),
        (0, "by-parts:4"),
        (1, "by-parts:4"),
    ]
    twice = [row and row.name for text, row in jobs(rows_of(2), 2, 0, 1) if text == 0]
    assert twice[:4] == ["base", "yarn:2", None, "ntk:2"]
