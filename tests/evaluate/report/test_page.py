"""The report of an evaluation, and its pictures."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import numpy as np

from ropeconv.evaluate.report import write_plot, write_report
from ropeconv.evaluate.report.plots import figure, panels, pictures

from ..results import LENGTHS, made


def test_the_page_has_tables_pictures_and_how_it_was_measured(tmp_path: Path) -> None:
    result = made(rows="base,yarn:4,linear:4")
    write_report(result, tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    cell = result.cell("yarn:4", "growth", "loss", 16384)
    assert cell is not None
    assert f'<td class="decided">{cell.difference:+.3f} <span class="error">±{cell.difference_error:.3f}</span>' in text
    assert "<svg" in text
    assert "loss of the same tokens under a growing context" in text
    assert result.tokens_sha256 in text
    assert all(note[1:] in text for note in result.notes)
    assert text.count("<tr><td>yarn:4</td>") == 3 + len([c for c in result.cells if c.row == "yarn:4"])
    assert "{{" not in text
    assert not re.search(r"""(src|href)=["']?(https?:|//)""", text), "a page that loads nothing from elsewhere"


def test_names_of_rows_and_files_are_escaped(tmp_path: Path) -> None:
    result = made(rows="base", measures=["growth"])
    evil = msgspec.structs.replace(
        result, source="<script>alert(1)</script>", notes=["<b>"],
        rows=[*result.rows, msgspec.structs.replace(result.rows[0], name="<i>", refused="<img>")],
    )  # fmt: skip
    write_report(evil, tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    assert not any(tag in text for tag in ("<script", "<i>alert", "<img", "<p><b>"))


def test_an_evaluation_without_numbers_has_a_page_too(tmp_path: Path) -> None:
    result = msgspec.structs.replace(made(rows="base", measures=["growth"]), cells=[])
    write_report(result, tmp_path / "r.html")
    assert "<svg" not in (tmp_path / "r.html").read_text()


def test_each_measure_has_its_pictures() -> None:
    result = made("base,yarn:4,linear:4")
    titles = [axes.get_title(loc="left") for axes in figure(result).axes]
    assert titles == [
        "growth: loss in nats per token", "growth: minus base, nat", "position: minus base, nat",
        *(f"passkey: {row}, accuracy in %" for row in ("base", "yarn:4", "linear:4")),
    ]  # fmt: skip
    assert len(figure(made("base", ["position"])).axes) == 1, "a row by itself is drawn as it is"


def test_lines_are_the_cells() -> None:
    result = made(measures=["growth"])
    whole, apart = figure(result).axes
    cells = [result.cell("yarn:4", "growth", "loss", length) for length in LENGTHS]
    np.testing.assert_allclose(whole.get_lines()[1].get_ydata(), [c.value for c in cells if c])
    np.testing.assert_allclose(apart.get_lines()[0].get_ydata(), [c.difference for c in cells if c])


def test_pictures_are_files(tmp_path: Path) -> None:
    result = made("base,yarn:4", ["growth"])
    for name, begin in (("x.svg", b"<svg"), ("x.png", b"\x89PNG")):
        write_plot(result, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(begin)
    first = (tmp_path / "x.svg").read_bytes()
    write_plot(result, tmp_path / "x.svg")
    assert (tmp_path / "x.svg").read_bytes() == first


def test_the_page_has_recipes_and_a_caption_for_each_picture(tmp_path: Path) -> None:
    result = made(rows="base,yarn:4,linear:4")
    write_report(result, tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    assert '<th scope="row">linear:4</th><td>linear: factor 4</td>' in text
    assert text.count("<figcaption ") == text.count("<figure>") == len(pictures(result)) == 6
    assert "lower is better" in text
    assert re.search(r"Written</th><td>20\d\d-", text)


def test_captions_say_which_way_is_better() -> None:
    by_title = {measure: [one.caption for one in panels(made(), measure)] for measure in ("growth", "passkey")}
    assert "lower is better" in by_title["growth"][0]
    assert by_title["growth"][1].startswith("Below 0")
    assert all("brighter is better" in one for one in by_title["passkey"])
