"""The lab's comparisons, on answers that are written here: with a schedule and, with --check, with a record."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ropeconv.runtimes.evidence import records
from scripts.laboratory import __main__ as laboratory
from scripts.laboratory.cells import SOURCE, Cell, cells, sources
from scripts.laboratory.compare import outcome
from scripts.laboratory.runtimes.transformers import RUNTIME

THETA = {"laguna": (500000.0, 20000.0), "lfm3": (1000000.0, 10000.0)}
"""The bases of global and local layers in the tiny configs."""


@pytest.fixture(scope="module")
def models() -> dict[str, Cell]:
    """The unchanged config of each model."""
    return {
        name: next(cell for cell in cells(name, config) if cell.name == SOURCE)
        for name, config in sources(published=False).items()
        if name in THETA
    }


def rope(theta: float, width: int, rotating: int) -> dict[str, Any]:
    """The rope of a layer: a head of 64 dimensions, of which `width` have frequencies, the first `rotating` pairs."""
    inv_freq = theta ** (-2.0 * np.arange(width // 2) / width)
    return {"inv_freq": [*inv_freq[:rotating], *[0.0] * (width // 2 - rotating)], "attention_factor": 1.0}


def answer(cell: Cell, wide: dict[str, Any], local: dict[str, Any]) -> dict[str, Any]:
    places = {"global": 0, "local": 1, "none": None}
    return {"ropes": [wide, local], "layers": [places[kind] for kind in cell.before.layers]}


def test_pairs_that_stand_still_have_to_stand_still(models: dict[str, Cell]) -> None:
    cell, (theta, local_theta) = models["lfm3"], THETA["lfm3"]
    local = rope(local_theta, 64, 32)
    assert outcome(cell, answer(cell, rope(theta, 64, 16), local)).status == "exact"
    found = outcome(cell, answer(cell, rope(theta, 64, 32), local))
    assert (found.status, found.detail[:27]) == ("differs", "frequencies are not 0 in 16")
    fewer = outcome(cell, answer(cell, rope(theta, 64, 15), local))
    assert (fewer.status, fewer.detail[:28]) == ("differs", "frequencies are 0 to 1 times")


def test_a_check_asks_only_for_models_that_the_record_has(
    models: dict[str, Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    """lfm3 came with transformers 5.23, and older records were made without it."""
    of_old, of_new = ("4.48.3", "5.23.0")
    recorded = {one.version: set(one.models) for one in records() if one.runtime == RUNTIME.name}
    assert ("lfm3" in recorded[of_old], "lfm3" in recorded[of_new]) == (False, True)
    asked: list[str] = []

    def answers(_: object, version: str, questions: list[dict[str, Any]], reuse: bool) -> dict[str, Any]:
        asked.extend(f"{version}: {question['label']}" for question in questions)
        return {question["id"]: {"absent": "it has no such model"} for question in questions}

    monkeypatch.setattr(laboratory, "answers", answers)
    check = laboratory.Options(check=True, reuse=False)
    of_model = {"lfm3": [models["lfm3"]]}
    assert laboratory.execute(RUNTIME, of_old, of_model, check) == []
    assert asked == []
    assert laboratory.execute(RUNTIME, of_new, of_model, check)
    assert asked == ["5.23.0: lfm3: source"]
