"""What the receipt of a plan says, field by field, and the cells of the matrix that a family
has.
"""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from ropeconv.bake import advice as table
from ropeconv.bake.advice import METHODS, MatrixCell, counts, letters
from ropeconv.bake.plan import source_record
from ropeconv.inspection.receipts.receipt import BeforeRecord, ConfigRecord, Receipt, TargetRecord
from ropeconv.models.registry import by_name
from ropeconv.rope.recipe import Recipe
from ropeconv.runtimes.evidence import Evidence
from ropeconv.runtimes.verdict import Verdict
from ropeconv.version import SCHEMA, __version__

from ..support.baking import YARN, make_plan, recipe_of
from ..support.gguf_files import write

FORMULA = 1 + 0.1 * math.log(4)


def receipt(source: Path, recipe: Recipe, **options: object) -> Receipt:
    record = make_plan(source, recipe, **options).receipt()  # type: ignore[arg-type]
    assert record is not None
    return record


def test_a_receipt_of_a_folder(llama: Path) -> None:
    record = receipt(llama, YARN)
    assert (record.ropeconv, record.schema, record.family, record.method) == (
        __version__,
        SCHEMA,
        "llama",
        "yarn",
    )
    assert record.before == BeforeRecord(
        "default, theta 10000",
        "yarn, theta 10000, factor 4, original_context 64",
        1.0,
        64,
        64,
        None,
        None,
    )
    assert (record.encoding, record.in_config) == (
        "native",
        ConfigRecord("native", pytest.approx(FORMULA), 1.0),
    )
    assert (record.fold, record.log_n_approximation, record.check, record.files) == (
        None,
        None,
        None,
        (),
    )
    assert record.effective_length is None
    assert (record.schedule.context, record.schedule.original_context) == (256, 64)
    assert len(record.schedule.inv_freq) == 32
    assert record.runtimes[0].runtime.startswith("transformers@")
    assert record.original is not None
    assert record.target == TargetRecord("safetensors")


def test_a_receipt_of_a_gguf_file_has_no_config_and_its_steps(tmp_path: Path) -> None:
    record = receipt(write(tmp_path / "m.gguf"), YARN)
    assert (record.in_config, record.fold, record.log_n_approximation) == (None, None, None)
    assert (record.family, record.encoding, record.target) == (
        "llama",
        "keys",
        TargetRecord("gguf"),
    )
    log_n = recipe_of("theta", 1e4, context=256, log_n="clamped")
    carried = receipt(write(tmp_path / "n.gguf"), log_n, carrier="mistral3", allow_approximate=True)
    steps = carried.log_n_approximation
    assert steps is not None
    assert (steps.length, steps.gain, steps.beta) == (64, 1.0, pytest.approx(1 / math.log(64)))
    positions = np.arange(256)
    exact = np.maximum(np.log(positions + 1) / math.log(64), 1)
    near = 1 + np.log1p(positions // 64) / math.log(64)
    assert steps.deviation == pytest.approx(float(np.max(np.abs(near - exact) / exact)), rel=0.02)
    assert carried.target == TargetRecord("gguf", carrier="mistral3", allow_approximate=True)


@pytest.mark.parametrize(
    ("kind", "commit", "reference"),
    [("folder", None, None), ("hub", None, "a/m"), ("folder", "0123", "a/m")],
)
def test_a_source_is_recorded_without_paths_of_this_machine(
    kind: str, commit: str | None, reference: str
) -> None:
    source: Any = SimpleNamespace(
        name="m", reference="a/m", kind=kind, commit=commit, treat_as="", derived=""
    )
    assert source_record(source).reference == reference


# The matrix of families


def test_a_family_has_cells_for_the_ways_that_its_class_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And one for which nothing can be baked has none."""
    llama = by_name()["llama"]
    phi3 = by_name()["phi3"]
    refused = msgspec.structs.replace(llama, name="refused", refuse="no")
    monkeypatch.setattr(table, "families", lambda: (refused, phi3, llama))
    cells = table.matrix.__wrapped__()
    ways = {
        family: [cell.writing for cell in cells if cell.family == family]
        for family in ("refused", "phi3", "llama")
    }
    assert [list(dict.fromkeys(writings)) for writings in ways.values()] == [
        [],
        ["theta", "factors"],
        list(METHODS),
    ]
    exact = {
        cell.writing
        for cell in cells
        if cell.verdict.status == "exact" and "transformers" in cell.verdict.runtime
    }
    assert exact == set(METHODS)
    assert cells[0].to_dict() == {
        "family": "phi3",
        "writing": "theta",
        **cells[0].verdict.to_dict(),
    }
    assert sum(counts(cells).values()) == len(cells)


def cells(grade: Any = "", **statuses: Any) -> list[MatrixCell]:
    evidence = Evidence(grade, "when" if grade else "")
    return [
        MatrixCell(
            "llama",
            writing,
            Verdict("made@1.2", "made 1.2", status, "why", "here", "1.4", evidence),
        )
        for writing, status in statuses.items()
    ]


@pytest.mark.parametrize(
    ("statuses", "row"),
    [
        (dict.fromkeys(METHODS, "exact"), "TL3YF"),
        ({"theta": "exact", "yarn": "differs"}, "T...."),
        ({"theta": "unsupported", "yarn": "unsupported"}, "-"),
        ({"theta": "unknown", "yarn": "unknown"}, "?"),
        ({"theta": "unknown", "yarn": "unsupported"}, "....."),
    ],
)
def test_a_family_is_one_row_of_letters(statuses: dict[str, str], row: str) -> None:
    assert letters(cells(**statuses)) == row
