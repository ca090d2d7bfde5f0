"""Pictures of evaluations: what the lines, bands and shades are."""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np
import pytest

from ropeconv.pictures.evaluation import Curve, differences, heat_map, losses
from ropeconv.pictures.style import figure

LENGTHS = np.array([1024.0, 8192.0, 32768.0])
CURVES = {
    "base": Curve(LENGTHS, np.array([3.1, 3.0, 6.0]), np.array([0.05, 0.06, 0.07])),
    "yarn:4": Curve(LENGTHS, np.array([3.2, 3.05, 2.9]), np.array([0.01, np.nan, 0.03])),
}


def bands(axes: object) -> list[np.ndarray]:
    return [band.get_paths()[0].vertices for band in axes.collections]  # type: ignore[attr-defined]


def test_curves_are_the_numbers_with_bands_of_one_error_and_the_trained_length_marked() -> None:
    made = figure(partial(losses, curves=CURVES, trained=8192, title="growth"))
    axes = made.axes[0]
    base, yarn, trained = axes.get_lines()
    np.testing.assert_allclose(base.get_xydata(), np.column_stack([LENGTHS, CURVES["base"].y]))
    np.testing.assert_allclose(yarn.get_ydata(), CURVES["yarn:4"].y)
    assert set(trained.get_xdata()) == {8192}
    heights = bands(axes)[0]
    assert heights[heights[:, 0] == 32768][:, 1].min() == pytest.approx(6.0 - 0.07)
    assert heights[heights[:, 0] == 32768][:, 1].max() == pytest.approx(6.0 + 0.07)
    assert [text.get_text() for text in axes.texts] == ["trained 8k"]


def test_differences_have_bands_of_three_errors_and_nothing_at_zero() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = figure(partial(differences, curves={"yarn:4": CURVES["yarn:4"]}, trained=8192, title="growth"))
    heights = bands(made.axes[0])[0]
    assert heights[heights[:, 0] == 1024][:, 1].max() == pytest.approx(3.2 + 0.03)
    assert any(set(line.get_ydata()) == {0} for line in made.axes[0].get_lines())


@pytest.mark.parametrize(("size", "scale"), [(0.004, "linear"), (0.2, "symlog"), (4.0, "symlog")])
def test_small_differences_have_round_ticks(size: float, scale: str) -> None:
    curve = Curve(LENGTHS, np.array([-1.13, 0.21, 0.98]) * size, np.full(3, 0.01 * size))
    made = figure(partial(differences, curves={"yarn:4": curve}, trained=8192, title=""))
    made.canvas.draw()
    axes = made.axes[0]
    assert axes.get_yscale() == scale
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert len(labels) >= 3
    assert all(len(label) <= 7 for label in labels)


def test_a_row_looks_alike_in_both_pictures() -> None:
    many = CURVES | {f"row {number}": CURVES["yarn:4"] for number in range(12)}
    rest = {name: curve for name, curve in many.items() if name != "base"}
    made = figure(
        partial(losses, curves=many, trained=8192, title=""), partial(differences, curves=rest, trained=8192, title="")
    )

    def looks(axes: object) -> dict[str, tuple[str, ...]]:
        lines = axes.get_lines()  # type: ignore[attr-defined]
        return {
            line.get_label(): (line.get_color(), str(line.get_linestyle()), str(line.get_marker()))
            for line in lines
            if not line.get_label().startswith("_")
        }

    left, right = map(looks, made.axes)
    assert {name: look for name, look in left.items() if name != "base"} == right
    assert len(set(left.values())) == len(left) == 14


def test_a_heat_map_is_the_shares_by_depth_and_length() -> None:
    shares = np.array([[1.0, 0.5], [0.0, np.nan]])
    made = figure(
        partial(heat_map, shares=shares, lengths=[8192, 32768], depths=[0.0, 1.0], trained=8192, title="passkey")
    )
    axes = made.axes[0]
    np.testing.assert_array_equal(axes.images[0].get_array().filled(np.nan), shares)
    assert {text.xy: text.get_text() for text in axes.texts} == {(0, 0): "100", (1, 0): "50", (0, 1): "0"}
    assert [label.get_text() for label in axes.get_xticklabels()] == ["8k", "32k"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0 %", "100 %"]
    assert {line.get_xdata()[0] for line in axes.get_lines()} == {0.5}, "behind the trained length"


@pytest.mark.parametrize("trained", [4096, 65536])
def test_a_trained_length_outside_a_heat_map_has_no_line(trained: int) -> None:
    shares = np.ones((1, 2))
    made = figure(partial(heat_map, shares=shares, lengths=[8192, 32768], depths=[0.5], trained=trained, title=""))
    assert made.axes[0].get_lines() == []


def test_panels_go_into_rows() -> None:
    panel = partial(losses, curves=CURVES, trained=8192, title="")
    made = figure(*[panel] * 5, columns=3)
    assert len(made.axes) == 5
    assert made.get_size_inches().tolist() == pytest.approx([12, 7.2])
    assert figure(panel, panel).get_size_inches().tolist() == pytest.approx([8, 3.6])
