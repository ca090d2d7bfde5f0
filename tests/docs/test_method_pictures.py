"""Every method has a section with a picture of its frequencies: scripts/method_pictures.py draws them."""

from __future__ import annotations

import importlib.metadata
import re

import numpy as np
import pytest

from ropeconv.rope.methods.method import REGISTRY
from scripts.method_pictures import DRAWN, PICTURES, ROOT, drawn

from ..support.extent import sample

TESTED = re.search(r"^matplotlib==(\S+)", (ROOT / "scripts" / "constraints.txt").read_text(), re.MULTILINE)


def test_every_method_that_changes_frequencies_has_a_section_with_its_picture() -> None:
    text = (ROOT / "docs" / "methods.md").read_text("utf-8")
    parts = re.split(r"^### `--([a-z0-9-]+)`\n", text, flags=re.MULTILINE)
    sections = {name: body.split("\n## ")[0] for name, body in zip(parts[1::2], parts[2::2], strict=True)}
    assert set(DRAWN) == set(sections)
    for name, body in sections.items():
        assert re.findall(r"!\[[^]]{20,}\]\((.*?)\)", body) == [f"pictures/method-{name}.svg"]
        assert "\nSource: " in body
        note = " ".join(f"Fine-tuning: {REGISTRY[name].finetuning_note}".split()).rstrip(": ")
        assert note in " ".join((body + "Fine-tuning").split())


def parts(text: str) -> tuple[str, list[float]]:
    """A picture without its numbers and the names made from them, and its numbers: processors round a few otherwise."""
    text = re.sub(r'(?<=[#"])[a-z][0-9a-f]{10}(?=[")])', "name", text)
    return re.sub(r"-?\d+\.\d+", "0", text), [float(number) for number in re.findall(r"-?\d+\.\d+", text)]


@pytest.mark.parametrize("name", sample(DRAWN, 3))
def test_a_picture_is_that_of_the_method(name: str) -> None:
    if TESTED is None or importlib.metadata.version("matplotlib") != TESTED[1]:
        pytest.skip("another matplotlib than that of scripts/constraints.txt draws other files")
    (kept, numbers), (made, others) = map(parts, ((PICTURES / f"method-{name}.svg").read_text("utf-8"), drawn(name)))
    assert (kept, len(numbers)) == (made, len(others)), "run scripts/method_pictures.py"
    np.testing.assert_allclose(numbers, others, rtol=0, atol=0.01, err_msg="run scripts/method_pictures.py")
