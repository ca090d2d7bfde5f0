"""Texts that measure little are said; ordinary ones are not."""

from __future__ import annotations

import base64
import random
from pathlib import Path
from pydoc_data.topics import topics

import pytest

from ropeconv.errors import BadSource
from ropeconv.evaluate.texts import remark

PROSE = "\n".join(sorted(topics.values(), key=len)[-6:])
DATA = random.Random(0).randbytes(20_000)
ORDINARY = (PROSE, Path(base64.__file__).read_text(), "长上下文的位置编码。" * 3, "one\x0ctwo\t\r\n" * 100)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((text, "") for text in ORDINARY),
        ("The grass is green. The sky is blue. " * 500, "x.txt repeats itself (zlib compresses it to 1 %)"),
        (base64.encodebytes(DATA).decode(), "looks encoded"),
    ],
    ids=lambda text: text[:12],
)
def test_a_text_that_measures_little_has_a_remark(text: str, said: str) -> None:
    found = remark("x.txt", text)
    assert said in found if said else found == ""


def test_control_characters_are_no_text() -> None:
    with pytest.raises(BadSource, match="data is a binary file; give another --text"):
        remark("data", "ab\x00\x01" * 100)
