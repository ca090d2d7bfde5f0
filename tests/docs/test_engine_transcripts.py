"""The transcripts of real engines: each shows a right output that passes and a wrong one that does
not, and the page of engines links it.

`python -m scripts.engines` writes them.
"""

import json
import re
from pathlib import Path

import pytest

from scripts.engines.session import same_text

ROOT = Path(__file__).parents[2]
TRANSCRIPTS = sorted((ROOT / "docs" / "evidence" / "engines").glob("*.txt"))
PAGE = (ROOT / "docs" / "engines.md").read_text("utf-8")
CONTINUED = re.compile(r"  (the engine|transformers, [a-z ]+): (\".*\")( +\(the same\))?")


def continuations(text: str) -> list[dict[str, str]]:
    """The texts after the long prompt, by who appended them, for the right and the wrong output."""
    rows = [(match[1], json.loads(match[2])) for match in CONTINUED.finditer(text)]
    return [dict(rows[start : start + 4]) for start in range(0, len(rows), 4)]


def test_there_are_transcripts_and_the_page_links_each() -> None:
    linked = re.findall(r"\]\(evidence/engines/([^)]*)\)", PAGE)
    assert sorted(linked) == [path.name for path in TRANSCRIPTS]
    assert len(linked) >= 5


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_the_right_output_passes_and_the_wrong_one_does_not(path: Path) -> None:
    text = path.read_text("utf-8")
    assert re.search(r"^[\w-]+ \d+\.\d+", text.splitlines()[1]), "it names no version"
    if "$ ropeconv validate" in text:
        codes = re.findall(r"^exit code (\d)$", text, re.MULTILINE)
        assert codes == ["0", "3"]
        assert text.index("PASS:") < text.index("FAIL:")
    right, wrong = continuations(text)
    assert same_text(right["the engine"], right["transformers, method"])
    assert not same_text(wrong["the engine"], wrong["transformers, method"])
    # the three could not be told apart otherwise
    assert not same_text(right["the engine"], right["transformers, half of the factor"])
    assert not same_text(right["the engine"], right["transformers, no method"])


def test_texts_are_the_same_without_bytes_that_are_no_character() -> None:
    assert same_text("abcd\u019e", " ab\ufffdcd")
    assert not same_text("abcd", "abce")
    assert not same_text("\ufffd\ufffda", "\ufffda")  # too short to tell
