"""The typeset formulas of docs/methods.md give the frequencies that ropeconv computes, and are
MathML on the site.
"""

import math
import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import numpy as np
import pytest

import ropeconv
from ropeconv.rope.methods.method import REGISTRY
from scripts.formulas import FORMULAS, mathml, with_mathml
from scripts.gather_pages import ROOT
from scripts.pages.method_pictures import DRAWN, LLAMA, spec_of

S = 8.0
L = 4096
R = 128
THETA = 10000.0
INNERMOST = (
    (r"\\frac\{([^{}]*)\}\{([^{}]*)\}", r"((\1)/(\2))"),
    (r"\\sqrt\{([^{}]*)\}", r"sqrt(\1)"),
    (r"\^\{([^{}]*)\}", r"**(\1)"),
    (r"_\{([^{}]*)\}", r"_\1"),
)
"""LaTeX and Python, for parts without braces inside; applied until none is left."""
WORDS = {
    r"\,": "*",
    r"\lfloor": "floor(",
    r"\rfloor": ")",
    r"\in [0, 1]": "",
    "L'": "M",
    "\\": "",
}
VALUES: dict[str, tuple[Any, ...]] = {"theta": (500000.0,), "theta-for": (32768,)}
"""Values of the methods that have no factor; the others get 8."""


def python(latex: str) -> str:
    """A side of a formula as an expression of Python."""
    text = latex
    while re.search("|".join(pattern for pattern, _ in INNERMOST), text):
        for pattern, other in INNERMOST:
            text = re.sub(pattern, other, text)
    for word, other in WORDS.items():
        text = text.replace(word, other)
    return re.sub(r"(\d)([a-z])", r"\1*\2", text).strip()


def ramp_end(rotations: float) -> float:
    """d(beta) of YaRN: the pair that rotates so often within the trained context."""
    return R * math.log(L / (2 * math.pi * rotations)) / (2 * math.log(THETA))


def frequencies(name: str) -> np.ndarray:
    """What the formula of a method gives, computed from its LaTeX."""
    i = np.arange(R // 2)
    known: dict[str, Any] = {
        "i": i,
        "r": R,
        "s": S,
        "L": L,
        "M": 32768,
        "theta": THETA,
        "theta_i": THETA ** (-2 * i / R),
        "pi": math.pi,
        "e": 0.625,
        "alpha": 1,
        "beta": 32,
        "l": 1,
        "h": 4,
        "B": 500000.0,
        # rounded outward, as the section of --yarn says
        "d": lambda beta: math.floor(ramp_end(beta)) if beta > 1 else math.ceil(ramp_end(beta)),
        "beta_f": 32,
        "beta_s": 1,
        "ln": np.log,
        "exp": np.exp,
        "floor": math.floor,
    }
    sides = [part.split("=") for part in re.split(r", \\quad", FORMULAS[name])]
    for left, right in reversed(sides):  # what the first one uses is stated behind it
        value = eval(python(right), known)
        is_cut = r"\in [0, 1]" in right
        known[python(left)] = np.clip(value, 0, 1) if is_cut else value
    return np.asarray(known["omega_i"])


@pytest.mark.parametrize(
    "name",
    [
        "theta",
        "theta-for",
        "linear",
        "ntk",
        "ntk-old",
        "ntk-fixed",
        "mixed",
        "by-parts",
        "yarn",
        "llama3",
    ],
)
def test_a_formula_gives_the_frequencies_of_the_method(name: str) -> None:
    spec = spec_of(LLAMA)
    method = REGISTRY[name](*VALUES.get(name, (S,)))
    schedule = ropeconv.Recipe(method).schedule(spec)
    np.testing.assert_allclose(frequencies(name), schedule.inv_freq, rtol=1e-9)


def test_another_formula_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = frequencies("ntk")
    monkeypatch.setitem(FORMULAS, "ntk", FORMULAS["ntk"].replace("(r-2)", "(r-1)"))
    assert np.abs(frequencies("ntk") / right - 1).max() > 0.01


def test_every_method_has_its_formula_above_its_picture() -> None:
    text = (ROOT / "docs" / "methods.md").read_text("utf-8")
    assert FORMULAS.keys() == set(DRAWN)
    for name, latex in FORMULAS.items():
        image = rf"\n\n!\[[^]]+\]\(pictures/method-{name}\.svg\)"
        assert re.search(re.escape(f"```math\n{latex}\n```") + image, text), name


@pytest.mark.parametrize("name", FORMULAS)
def test_a_formula_is_mathml_with_every_letter(name: str) -> None:
    element = ElementTree.fromstring(mathml(FORMULAS[name]))
    shown = "".join(element.itertext())
    assert element.tag.endswith("math")
    assert "\\" not in shown
    assert shown.count("ω") == FORMULAS[name].count(r"\omega")
    assert shown.count("(") == FORMULAS[name].count("(")


def test_a_page_gets_mathml_in_the_place_of_the_block() -> None:
    page = with_mathml("a\n\n```math\nx^{2} = 1\n```\n\nb\n")
    assert "<msup><mi>x</mi><mrow><mn>2</mn></mrow></msup>" in page
    assert "```" not in page
    assert with_mathml("```sh\nx\n```") == "```sh\nx\n```"


def test_a_command_that_is_not_known_is_refused() -> None:
    with pytest.raises(ValueError, match="varphi"):
        mathml(r"\varphi")
