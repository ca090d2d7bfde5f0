"""The picture of README.md has the values of the records, and its description says them."""

import json
import re
from typing import Any

import pytest

from scripts.gather_pages import ROOT
from scripts.pages.readme_picture import LENGTHS, PICTURE, ROWS, draw, losses, passkeys

README = (ROOT / "README.md").read_text("utf-8")


def cells(name: str, measure: str, metric: str) -> dict[tuple[str, int], dict[str, Any]]:
    """The cells of a record by row and length, read as plain JSON."""
    record = json.loads((ROOT / f"docs/evidence/smollm2-{name}.json").read_text("utf-8"))
    return {
        (cell["row"], cell["column"]): cell
        for cell in record["cells"]
        if cell["measure"] == measure and cell["metric"] == metric and cell["depth"] is None
    }


def test_the_curves_are_those_of_the_records() -> None:
    loss = cells("4T", "growth", "loss")
    for row, points in losses().items():
        assert [point.value for point in points] == [loss[row, at]["value"] for at in LENGTHS]
        errors = [(point.high - point.low) / 2 for point in points]
        assert errors == pytest.approx([loss[row, at]["error"] for at in LENGTHS])


def test_the_retrieval_is_that_of_the_record() -> None:
    exact = cells("4T-passkey", "passkey", "exact")
    for row, points in passkeys().items():
        shares = [point.value / 100 for point in points]
        assert shares == pytest.approx([exact[row, at]["value"] for at in LENGTHS])
        assert all(
            point.low <= point.value + 1e-9 and point.value <= point.high for point in points
        )


def test_the_description_says_what_is_drawn() -> None:
    description = re.search(r"!\[(At 32,768 tokens.*?)\]", README)
    assert description
    ends = {row: points[-1].value for row, points in losses().items()}
    found = {row: points[-1].value for row, points in passkeys().items()}
    begin = losses()["base"][1].value
    assert f"jumps from {begin:.1f} to {ends['base']:.1f} nats" in description[1]
    assert f"stays at {ends['yarn:4']:.1f} and {found['yarn:4']:.0f} % of" in description[1]
    assert f"NTK has {ends['ntk:4']:.1f} and linear {ends['linear:4']:.1f} nats" in description[1]
    assert found["ntk:4"] == found["linear:4"] == found["base"] == 0


def test_every_row_is_drawn_on_a_transparent_background(tmp_path: Any) -> None:
    Image = pytest.importorskip("PIL.Image")
    draw(tmp_path / "picture.png")
    for path in (PICTURE, tmp_path / "picture.png"):
        picture = Image.open(path).convert("RGBA")
        assert picture.getpixel((2, 2))[3] == 0
        colours = {colour[:3] for _, colour in picture.getcolors(1 << 20) if colour[3] == 255}
        for _, colour, _ in ROWS.values():
            assert tuple(bytes.fromhex(colour[1:])) in colours, path
