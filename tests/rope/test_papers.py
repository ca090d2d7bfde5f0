"""Every number in a method's `departures`, computed; the printed one beside it, which has to be
another.
"""

import json
import math
import re
from pathlib import Path

import mpmath
import numpy as np
import pytest

from ropeconv.rope import forms as laws
from ropeconv.rope.bound.answer import bound
from ropeconv.rope.errors import RecipeError
from ropeconv.rope.forms import Plain, critical_dimension, theta_for_length
from ropeconv.rope.methods.method import REGISTRY
from ropeconv.rope.schedule import LogN, QueryScaling, approximate_log_n, deviation
from ropeconv.rope.spec import RopeSpec

from ..conftest import DATA
from ..support.in_process import command

PAGE = Path(__file__).parents[2] / "docs" / "methods.md"
LLAMA_2 = RopeSpec(128, 128, Plain(1e4), 4096, 4096)


def said(name: str) -> str:
    return " ".join(REGISTRY[name].departures)


def base(theta: float, rotary_dim: int = 128) -> np.ndarray:
    return np.array([theta ** (-2 * i / rotary_dim) for i in range(rotary_dim // 2)])


def sums(inv_freq: np.ndarray, length: int) -> np.ndarray:
    """B(m) for m = 0 ... length - 1."""
    return np.cos(np.outer(np.arange(length, dtype=np.float64), inv_freq)).sum(axis=1)


def ramped(theta: float, trained: int, factor: float) -> np.ndarray:
    """YaRN's code, written again: a ramp over pairs."""
    low, high = (
        64 * math.log(trained / (2 * math.pi * turns)) / math.log(theta) for turns in (32, 1)
    )
    low = math.floor(low)
    high = math.ceil(high)
    ramp = np.clip((np.arange(64) - low) / (high - low), 0, 1)
    return base(theta) * (1 - ramp + ramp / factor)


def printed(theta: float, trained: int, factor: float) -> np.ndarray:
    """YaRN's paper, section 3.2: a ramp over L / wavelength."""
    keep = np.clip((trained * base(theta) / (2 * math.pi) - 1) / 31, 0, 1)
    return base(theta) * (keep + (1 - keep) / factor)


def test_the_critical_dimension_of_llama_3() -> None:
    periods = 2 * math.pi / base(5e5)
    assert [f"{periods[pair]:,.0f}" for pair in (34, 35)] == ["6,695", "8,219"]
    assert 2 * sum(periods <= 8192) == 70 == critical_dimension(5e5, 8192, 128) != 72
    assert 64 * math.log(8192 / (2 * math.pi), 5e5) == pytest.approx(34.98, abs=0.005)
    assert "70 = 2 ceil(34.98)" in said("theta-for")


def test_gradient_takes_one_step_from_the_first_model() -> None:
    bases = [math.floor(theta_for_length(5e5, 8192, length)) for length in (262144, 1048576)]
    assert bases == [283461213, 3580165449]
    assert (
        f"{theta_for_length(bases[0], 262144, 1048576):,.0f}"
        == "3,580,165,442"
        in said("theta-for")
    )
    theta = 500000
    trained = 8192
    stages = []
    for length in (65536, 262144):
        theta = int(theta * (4 * length / trained - 3) ** (128 / 126))
        trained = length
        stages.append(f"{theta / 1e6:.1f}M")
    assert " and ".join(stages) == "15.3M and 207.1M" in said("theta-for")
    assert [
        f"{theta_for_length(5e5, 8192, length) / 1e6:.1f}M" for length in (65536, 262144)
    ] != stages


def test_the_printed_bases() -> None:
    men = {2: 1.6e4, 16: 3.1e5, 128: 7.8e6, 256: 3.6e7, 512: 6.4e7, 1024: 5.1e8}
    above = {k: theta / bound(1024 * k, 128, 128).base - 1 for k, theta in men.items()}
    assert f"{100 * min(above.values()):.0f} %" == "9 %"
    assert 100 * max(above.values()) == pytest.approx(680, abs=1)
    assert f"{math.ceil(bound(1 << 20, 128, 128).base):,}" == "65,374,956" in said("theta-bound")
    least = bound(2048, 128, 128).base
    assert f"{least:,.0f}" == "11,587" in said("theta-bound")
    assert sums(base(11588), 2048).min() > 0 > sums(base(11500), 2048).min()
    assert (f"{bound(1024, 128, 128).base:,.1f}", f"{bound(1000, 128, 128).base:,.1f}") == (
        "4,293.4",
        "4,206.0",
    )


@pytest.mark.parametrize(("factor", "percent"), [(2, 31), (4, 73), (8, 130), (16, 204), (32, 296)])
def test_yarn_and_its_paper(factor: float, percent: int) -> None:
    code = ramped(1e4, 4096, factor)
    paper = printed(1e4, 4096, factor)
    assert code == pytest.approx(REGISTRY["yarn"](float(factor)).schedule(LLAMA_2).inv_freq)
    assert paper == pytest.approx(REGISTRY["by-parts"](float(factor)).schedule(LLAMA_2).inv_freq)
    assert round(100 * (code / paper - 1).max()) == percent
    assert 1 <= 100 * (1 - code / paper).max() <= 3
    assert (code / paper).argmin() == 21
    assert (np.abs(code / paper - 1) > 1e-9).nonzero()[0][[0, -1]].tolist() == [21, 45]
    assert f"{percent} % at" in said("yarn")


def test_the_growth_of_dynamic_ntk() -> None:
    frozen = REGISTRY["dynamic"]("ntk:2", 8192).schedule(LLAMA_2).form
    assert frozen is not None
    assert (frozen.theta / 1e4) ** (126 / 128) == pytest.approx(3)
    assert "which is 3 and not 2" in said("dynamic")


def flat(text: str) -> str:
    return " ".join(text.split())


def test_the_page_has_every_sentence_and_no_other() -> None:
    text = PAGE.read_text().partition("## Each method\n")[2].partition("\n## ")[0] + "\n### "
    bullets = [
        flat(item)
        for item in re.findall(r"^- (.+?)(?=\n- |\n\n|\Z)", text, flags=re.MULTILINE | re.DOTALL)
    ]
    assert bullets == [sentence for method in REGISTRY.values() for sentence in method.departures]
    sections = {
        name: flat(body)
        for name, body in re.findall(r"^### `--([^`]+)`\n(.+?)(?=\n### )", text, re.M | re.S)
    }
    cited = {name: method for name, method in REGISTRY.items() if method.paper != "-"}
    assert list(sections) == [name for name in REGISTRY if name != "as-is"]
    for name, method in cited.items():
        assert flat(method.__doc__ or "") in sections[name]
        assert method.paper in sections[name]


def test_the_command_prints_it(tmp_path: Path) -> None:
    said_there = flat(command(tmp_path, "list", "methods", "yarn").stdout)
    assert all(sentence in said_there for sentence in REGISTRY["yarn"].departures)
    (method,) = json.loads(command(tmp_path, "list", "methods", "theta-for", "--json").stdout)[
        "methods"
    ]
    assert method["departures"] == list(REGISTRY["theta-for"].departures)
    assert method["formula"].startswith("theta' = floor(")
    assert "otherwise than printed" not in command(tmp_path, "list", "methods", "linear").stdout


# Laws of bases, attention factors and log-n, at numbers that are published or can be computed on
# paper


REFERENCE = json.loads((DATA / "schedules.json").read_text())


def test_the_law_of_bases_gives_the_reference_and_gradients_checkpoints() -> None:
    """The 262k and 1048k models of Llama 3:
    https://huggingface.co/gradientai/Llama-3-8B-Instruct-262k.
    """
    for row in REFERENCE["gradient"]:
        assert laws.theta_for_length(row["theta"], row["L"], row["L_new"]) == pytest.approx(
            row["value"], rel=1e-13
        )
    lengths = [65536, 262144, 1048576, 4194304]
    steps = [float(int(laws.theta_for_length(5e5, 8192, length))) for length in lengths]
    assert steps == [22443169, 283461213, 3580165449, 45218125209]
    assert [
        laws.critical_dimension(base, length, 128)
        for base, length in zip(steps, lengths, strict=True)
    ] == [70] * 4
    assert laws.theta_for_length(100.0, 628, 628) == pytest.approx(100.0)
    assert laws.ntk_theta(10000.0, 8.0, 6) == pytest.approx(10000 * 8**1.5)


@pytest.mark.parametrize(
    ("theta", "context", "rotary_dim", "dimension"),
    [
        (1e4, 4096, 128, 92),
        (5e5, 8192, 128, 70),
        (1e4, 6, 128, 0),
        (1.5, 4096, 128, 128),
        (2.0, 1 << 20, 16, 16),
    ],
)
def test_the_critical_dimension(
    theta: float, context: int, rotary_dim: int, dimension: int
) -> None:
    result = laws.critical_dimension(theta, context, rotary_dim)
    assert (result, type(result)) == (dimension, int)


@pytest.mark.parametrize(
    ("factor", "slope", "intercept", "expected"),
    [
        (math.e, 0.1, 1.0, 1.1),
        (math.e, 0.07, 0.5, 0.57),
        (1.0000001, 0.1, 0.5, 0.5),
        (1.0, 0.1, 0.5, 1),
        (0.5, 9, 9, 1),
    ],
)
def test_the_attention_factor_of_a_temperature(
    factor: float, slope: float, intercept: float, expected: float
) -> None:
    assert laws.temperature_attention_factor(factor, slope, intercept) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("factor", "expected"),
    [
        (0.5, 1),
        (1.0, 1),
        (math.sqrt(2), math.sqrt(25 / 24)),
        (4096, math.sqrt(2)),
        (32.0, 1.1902380714238083),
    ],
)
def test_the_attention_factor_of_longrope_grows_from_a_factor_of_1_on(
    factor: float, expected: float
) -> None:
    """sqrt(1 + ln s / ln L) with L = 4096 = 2^12; the last is that of Phi-3-mini-128k."""
    assert laws.longrope_attention_factor(factor, 4096) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("attention_factor", [0.5, 0.8, 1.0, 1.1, 1.5, 1 / (0.1 * math.log(4) + 1)])
def test_a_pair_of_mscales_gives_its_ratio_and_is_never_0(attention_factor: float) -> None:
    """The last ratio would need mscale = 0 with mscale_all_dim = 1, which readers take as
    absent.
    """
    mscale, all_dim = laws.mscale_for(4.0, attention_factor)
    assert laws.mscale_ratio(4.0, mscale, all_dim) == pytest.approx(attention_factor, rel=1e-12)
    assert all_dim == (2.0 if attention_factor == 1 / (0.1 * math.log(4) + 1) else 1.0)
    assert abs(mscale) > 1e-6
    assert laws.mscale_ratio(math.e**2, 3.0, 1.0) == pytest.approx(1.6 / 1.2)


def test_the_asymptotic_base_is_over_the_zero_of_the_cosine_integral() -> None:
    assert 1000 / laws.asymptotic_base(1000) == pytest.approx(
        float(mpmath.findroot(mpmath.ci, 0.6)), rel=1e-15
    )


ROWS = json.loads((DATA / "schedules.json").read_text())["logn"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"n{row['n']}-L{row['maxlen']}")
def test_log_n_is_that_of_the_table(row: dict[str, float]) -> None:
    position = np.array([row["n"] - 1])
    length = int(row["maxlen"])
    assert LogN("full", length).scale(position)[0] == pytest.approx(row["logn"], abs=1e-15)
    assert LogN("clamped", length).scale(position)[0] == pytest.approx(row["logn_star"], rel=1e-14)


def test_scales_by_hand() -> None:
    positions = np.array([0.0, 9.0, 99.0, 999.0])
    np.testing.assert_allclose(LogN("full", 100).scale(positions), [0, 0.5, 1, 1.5], atol=1e-15)
    np.testing.assert_allclose(LogN("clamped", 100).scale(positions), [1, 1, 1, 1.5])
    np.testing.assert_allclose(
        QueryScaling(2.0, 10, 3.0).scale(positions), 3 * (1 + 2 * np.log([1, 1, 10, 100]))
    )
    assert LogN("full", 2).length == 2
    with pytest.raises(RecipeError, match="log-n over 1 token.*longer --log-n-length"):
        LogN("full", 1)


def test_clamped_steps_are_one_inside_and_right_at_the_end_of_every_step() -> None:
    formula = LogN("clamped", 4096)
    steps = approximate_log_n(LogN("clamped", 4096))
    assert (steps.scale(np.arange(4096)) == 1).all()
    ends = np.arange(1, 9) * 4096 - 1
    np.testing.assert_allclose(steps.scale(ends), formula.scale(ends), rtol=1e-12)
    assert (steps.scale(np.arange(8 * 4096)) >= formula.scale(np.arange(8 * 4096)) - 1e-12).all()


@pytest.mark.parametrize(
    ("length", "times", "percent"), [(64, 16, 16.23), (4096, 4, 8.33), (32768, 4, 6.67)]
)
def test_the_deviation_of_clamped_steps_where_the_second_begins(
    length: int, times: int, percent: float
) -> None:
    """ln 2L / ln (L + 1) - 1, and as large as at all positions one by one; within the length it is
    0.
    """
    formula = LogN("clamped", length)
    steps = approximate_log_n(formula)
    everywhere = np.arange(1, times * length)
    maximum = deviation(formula, steps, times * length)
    assert maximum == pytest.approx(math.log(2 * length) / math.log(length + 1) - 1, rel=1e-9)
    assert 100 * maximum == pytest.approx(percent, abs=0.01)
    assert maximum == pytest.approx(
        np.abs(steps.scale(everywhere) / formula.scale(everywhere) - 1).max(), rel=1e-12
    )
    assert deviation(formula, steps, length) == pytest.approx(0)


def test_full_log_n_as_query_scaling_is_the_logarithm_of_the_number_of_keys() -> None:
    positions = np.array([0, 1, 2, 63, 4095, 1_000_000], np.float64)
    scaling = approximate_log_n(LogN("full", 4096))
    np.testing.assert_allclose(
        scaling.scale(positions), np.log(positions + 1) / np.log(4096), atol=1e-3
    )
    assert (scaling.length, scaling.gain * scaling.beta) == (1, pytest.approx(1 / np.log(4096)))
