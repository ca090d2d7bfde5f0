"""Texts that measure little are said; ordinary ones are not."""

from __future__ import annotations

import base64
import random
from pathlib import Path
from pydoc_data.topics import topics

import pytest

from ropeconv.errors import BadSource
from ropeconv.evaluate.texts.remarks import remark

PROSE = "\n".join(sorted(topics.values(), key=len)[-6:])


@pytest.mark.parametrize(
    "text",
    [PROSE, Path(__file__).read_text() * 1, Path(base64.__file__).read_text(), "长上下文的位置编码。" * 3, "short"],
)
def test_ordinary_texts_have_no_remark(text: str) -> None:
    assert remark("text", text) == ""


def test_a_text_that_repeats_itself() -> None:
    assert "repeats itself (zlib makes 1 % of it)" in remark("log.txt", "The grass is green. The sky is blue. " * 500)
    assert remark("log.txt", PROSE[:3000] * 40).startswith("log.txt repeats itself")


def test_encoded_data() -> None:
    data = random.Random(0).randbytes(20_000)
    assert "looks encoded" in remark("data", base64.b64encode(data).decode())
    assert "looks encoded" in remark("data", base64.encodebytes(data).decode())
    assert "looks encoded" in remark("data", data.hex())


def test_control_characters_are_no_text() -> None:
    with pytest.raises(BadSource, match="data is binary, and no text; give another --text"):
        remark("data", "ab\x00\x01" * 100)
    assert remark("page", "one\x0ctwo\t\r\n" * 100) == ""
