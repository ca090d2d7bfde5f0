"""Every number in a method's `departures`, computed; the printed one beside it, which has to be another."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from ropeconv.rope.bound.answer import bound
from ropeconv.rope.forms import Plain, critical_dimension, theta_for_length
from ropeconv.rope.methods.method import REGISTRY
from ropeconv.rope.spec import RopeSpec

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
    low, high = (64 * math.log(trained / (2 * math.pi * turns)) / math.log(theta) for turns in (32, 1))
    low, high = math.floor(low), math.ceil(high)
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
    one = [math.floor(theta_for_length(5e5, 8192, length)) for length in (262144, 1048576)]
    assert one == [283461213, 3580165449]
    assert f"{theta_for_length(one[0], 262144, 1048576):,.0f}" == "3,580,165,442" in said("theta-for")
    theta, trained, stages = 500000, 8192, []
    for length in (65536, 262144):
        theta, trained = int(theta * (4 * length / trained - 3) ** (128 / 126)), length
        stages.append(f"{theta / 1e6:.1f}M")
    assert " and ".join(stages) == "15.3M and 207.1M" in said("theta-for")
    assert [f"{theta_for_length(5e5, 8192, length) / 1e6:.1f}M" for length in (65536, 262144)] != stages


def test_the_printed_bases() -> None:
    men = {2: 1.6e4, 16: 3.1e5, 128: 7.8e6, 256: 3.6e7, 512: 6.4e7, 1024: 5.1e8}
    above = {k: theta / bound(1024 * k, 128, 128).base - 1 for k, theta in men.items()}
    assert f"{100 * min(above.values()):.0f} %" == "9 %"
    assert 100 * max(above.values()) == pytest.approx(680, abs=1)
    assert f"{math.ceil(bound(1 << 20, 128, 128).base):,}" == "65,374,956" in said("theta-bound")
    least = bound(2048, 128, 128).base
    assert f"{least:,.0f}" == "11,587" in said("theta-bound")
    assert sums(base(11588), 2048).min() > 0 > sums(base(11500), 2048).min()
    assert (f"{bound(1024, 128, 128).base:,.1f}", f"{bound(1000, 128, 128).base:,.1f}") == ("4,293.4", "4,206.0")


@pytest.mark.parametrize(("factor", "percent"), [(2, 31), (4, 73), (8, 130), (16, 204), (32, 296)])
def test_yarn_and_its_paper(factor: float, percent: int) -> None:
    code, paper = ramped(1e4, 4096, factor), printed(1e4, 4096, factor)
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
    bullets = [flat(item) for item in re.findall(r"^- (.+?)(?=\n- |\n\n|\Z)", text, flags=re.MULTILINE | re.DOTALL)]
    assert bullets == [sentence for method in REGISTRY.values() for sentence in method.departures]
    sections = {name: flat(body) for name, body in re.findall(r"^### `--([^`]+)`\n(.+?)(?=\n### )", text, re.M | re.S)}
    cited = {name: method for name, method in REGISTRY.items() if method.paper != "-"}
    assert list(sections) == [name for name in REGISTRY if name != "as-is"]
    for name, method in cited.items():
        assert flat(method.__doc__ or "") in sections[name]
        assert method.paper in sections[name]


def test_the_command_prints_it(tmp_path: Path) -> None:
    said_there = flat(command(tmp_path, "list", "methods", "yarn").stdout)
    assert all(sentence in said_there for sentence in REGISTRY["yarn"].departures)
    (found,) = json.loads(command(tmp_path, "list", "methods", "theta-for", "--json").stdout)["methods"]
    assert found["departures"] == list(REGISTRY["theta-for"].departures)
    assert found["formula"].startswith("theta' = floor(")
    assert "otherwise than printed" not in command(tmp_path, "list", "methods", "linear").stdout
