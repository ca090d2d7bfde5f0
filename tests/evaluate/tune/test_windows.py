"""Which text is held out, and what of a window is predicted."""

from __future__ import annotations

import pytest

from ropeconv.errors import BadSource
from ropeconv.evaluate.cases import EvaluationSizes
from ropeconv.evaluate.tune.scorer import split, windows

from ..engines import numbered


def test_every_third_text_is_held_out() -> None:
    search, held, said = split(numbered(100, 100, 100, 5, 100, 100, 100), 64)
    assert [one.name for one in search.documents] == ["text 0", "text 1", "text 4", "text 5"]
    assert [one.name for one in held.documents] == ["text 2", "text 6"]
    assert said == "2 of 6 texts are held out"


def test_of_few_texts_the_last_third_of_each_is_held_out() -> None:
    search, held, said = split(numbered(300, 90), 64)
    assert [len(one.ids) for one in search.documents] == [200]
    assert [one.ids[[0, -1]].tolist() for one in held.documents] == [[200, 299]]
    assert "do not cover the difference between texts" in said
    with pytest.raises(BadSource, match=r"the held-out third of the text has 30 tokens, and a window 64; .*--context"):
        split(numbered(90), 64)


def test_targets_lie_evenly_inside_the_trained_context_and_beyond_it() -> None:
    found = windows(numbered(200, 200), EvaluationSizes((64,), trained=16, windows=3, targets=5))
    assert len(found) == 3
    assert {len(one.text.ids) for one in found} == {64}
    assert found[0].text.targets.tolist() == [1, 4, 8, 12, 15, 16, 28, 40, 51, 63]
    assert found[0].beyond == 5
    assert [one.text.document for one in found] == [0, 1, 0], "in turn from all texts"
    assert all(one.needle is None for one in found)
    few = windows(numbered(200), EvaluationSizes((64,), trained=60, windows=1, targets=50))[0]
    assert few.text.targets.tolist()[few.beyond :] == [60, 61, 62, 63], "there are no more"
