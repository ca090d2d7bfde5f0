"""The table of conversions in docs/gguf.md is that of its record."""

import json
from typing import Any

import pytest

from scripts.gather_pages import ROOT

RECORD: dict[str, Any] = json.loads(
    (ROOT / "docs/evidence/conversion-cost.json").read_text("utf-8")
)
PAGE = (ROOT / "docs/gguf.md").read_text("utf-8")
CONVERTER = {
    "bf16": "convert_hf_to_gguf.py",
    "q8_0": "convert_hf_to_gguf.py",
    "q4_k_m": "convert_hf_to_gguf.py and llama-quantize",
}
SIZES = {"llama, 0.6 GB": "0.6 GB", "llama, 5 GB": "5 GB"}
"""The sizes on the page by the names of the record."""


def row(size: str, outtype: str) -> str:
    """The row of the page: wall time and processor time of ropeconv's two commands and llama.cpp."""
    costs = RECORD["exports"][size][outtype]
    cells = [SIZES[size], outtype]
    for command in ("... without checks", "apply --to gguf", CONVERTER[outtype]):
        cost = costs[command]
        cells.append(f"{cost['seconds']:.1f} s, {cost['processor']:.1f} s")
    return f"| {' | '.join(cells)} |"


def test_the_record_has_both_sizes_in_three_types() -> None:
    assert RECORD["exports"].keys() == SIZES.keys()
    for costs in RECORD["exports"].values():
        assert costs.keys() == CONVERTER.keys()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("outtype", CONVERTER)
def test_the_page_has_the_numbers_of_the_record(size: str, outtype: str) -> None:
    assert row(size, outtype) in PAGE


def test_a_conversion_of_floats_takes_a_third_of_the_converters_processor_time() -> None:
    """And a fifth for bf16, which is copied. Quantising takes as long in both."""
    for size in SIZES:
        for outtype, at_least in {"bf16": 5, "q8_0": 3}.items():
            costs = RECORD["exports"][size][outtype]
            own = costs["... without checks"]
            converter = costs[CONVERTER[outtype]]
            assert converter["processor"] / own["processor"] > at_least
            assert converter["seconds"] / own["seconds"] > at_least
            # memory does not grow with the model
            assert own["megabytes"] < 110 < converter["megabytes"]
