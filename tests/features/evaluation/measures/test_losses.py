"""Which tokens each measure of loss predicts, and what it makes of their losses."""

from collections import Counter

import numpy as np
import pytest

from ropeconv import BadSource, UsageError
from ropeconv.engines.engine import TokenLosses
from ropeconv.features.evaluation.cases import Case, EvaluationSizes, Observation
from ropeconv.features.evaluation.evaluation import parse_measures
from ropeconv.features.evaluation.measures.measure import REGISTRY
from ropeconv.features.evaluation.texts import Texts

from ..engines import numbered

ASKED = EvaluationSizes((16, 64, 256), 64, windows=6, targets=10)
PREFIX = (7, 8)


def cases(name: str, texts: Texts, sizes: EvaluationSizes = ASKED) -> list[Case]:
    """The cases of a measure, each of which is a part of one text behind its prefix."""
    (measure,) = parse_measures(name)
    sequences = list(measure.cases(texts, sizes))
    for case in sequences:
        assert case.ids.dtype == np.int32
        assert (np.diff(case.targets) > 0).all()
        assert tuple(case.ids[: len(texts.prefix)]) == texts.prefix
        assert case.targets.min() >= max(1, len(texts.prefix))
        assert (np.diff(case.ids[len(texts.prefix) :]) == 1).all()
    return sequences


@pytest.mark.parametrize("prefix", [(), PREFIX])
def test_growth_predicts_the_same_tokens_at_all_lengths(prefix: tuple[int, ...]) -> None:
    sequences = cases("growth", numbered(600, 500, prefix=prefix))
    assert Counter(case.column for case in sequences) == {16: 6, 64: 6, 256: 6}
    assert {case.document for case in sequences} == {0, 1}
    predicted = Counter(tuple(case.ids[case.targets]) for case in sequences)
    assert set(predicted.values()) == {3}
    assert len({token for tokens in predicted for token in tokens}) == 60, (
        "no token is predicted in two windows"
    )
    assert all(len(case.ids) == case.column and len(case.targets) == 10 for case in sequences)


def test_short_texts_give_fewer_windows_and_none_is_an_error() -> None:
    assert (
        len(cases("growth", numbered(275), EvaluationSizes((256,), 64, windows=6, targets=10))) == 2
    )
    assert {case.document for case in cases("growth", numbered(255, 256, 9))} == {1}
    with pytest.raises(BadSource, match=r"255 tokens.* 256 .* --lengths up to 255"):
        cases("growth", numbered(255, 9))


def test_position_gives_the_mean_of_every_block_of_one_pass() -> None:
    case = cases("position", numbered(600, prefix=PREFIX))[0]
    assert (len(case.ids), list(case.targets)) == (256, list(range(2, 256)))
    observations = REGISTRY["position"].observe(case, TokenLosses(case.targets.astype(float), None))
    assert [observation.column for observation in observations] == list(range(8, 257, 8))
    assert (observations[0].value, observations[-1].value) == (
        np.mean(range(2, 8)),
        np.mean(range(248, 256)),
    )


@pytest.mark.parametrize("prefix", [(), PREFIX])
def test_sliding_predicts_every_token_once_with_enough_before_it(prefix: tuple[int, ...]) -> None:
    sizes = EvaluationSizes((64, 256), 64, windows=2)
    before = len(prefix)
    sequences = cases("sliding:40", numbered(300, 270, prefix=prefix), sizes)
    for document, length in ((document, length) for document in (0, 1) for length in sizes.lengths):
        windows = [case for case in sequences if (case.document, case.column) == (document, length)]
        predicted = [
            int(token) - 1000 * document for case in windows for token in case.ids[case.targets]
        ]
        assert predicted == list(range(0 if before else 1, 256 - before))
        assert all(len(case.ids) <= length for case in windows)
        assert all(case.targets[0] >= length - 40 for case in windows[1:-1])
    for case in sequences:
        (observation,) = REGISTRY["sliding"].observe(
            case, TokenLosses(np.ones(len(case.targets)), None)
        )
        assert observation.weight == len(case.targets)


def test_sliding_has_the_windows_of_the_documentation_of_transformers() -> None:
    """The loop of https://huggingface.co/docs/transformers/perplexity, for a text whose end is
    between two strides.
    """
    total, length, stride, end = 256, 64, 40, 0
    windows = []
    for begin in range(0, total, stride):
        before = end
        end = min(begin + length, total)
        windows.append(
            (begin, end, end - max(before, 1))
        )  # the first token of the text is not predicted
        if end == total:
            break
    sequences = cases(
        f"sliding:{stride}", numbered(300), EvaluationSizes((length, total), 64, windows=1)
    )
    selection = [case for case in sequences if case.column == length]
    assert [
        (int(case.ids[0]), int(case.ids[-1]) + 1, len(case.targets)) for case in selection
    ] == windows


def rows_of_longppl(columns: dict[str, dict[int, list[float]]]) -> dict[str, list[Observation]]:
    return {
        row: [
            Observation(
                "longppl", "loss", column, 0, 0, float(np.mean(losses)), values=tuple(losses)
            )
            for column, losses in lengths.items()
        ]
        for row, lengths in columns.items()
    }


def test_longppl_is_of_the_tokens_that_gain_and_are_likely_at_the_trained_length() -> None:
    """By the thresholds of the paper: a gain above 2 nats, and a log-probability above -2."""
    sizes = EvaluationSizes((16, 64, 256), 64)
    measure = REGISTRY["longppl"]
    rows = rows_of_longppl(
        {
            #              gain 2.5     1.9  3 but unlikely  3
            "base": {16: [3.0, 2.0, 5.5, 4.0], 64: [0.5, 0.1, 2.5, 1.0], 256: [9.0, 9.0, 9.0, 7.0]},
            "yarn:4": {
                16: [3.0, 2.0, 5.5, 4.0],
                64: [0.7, 0.1, 2.5, 1.0],
                256: [1.0, 5.0, 5.0, 2.0],
            },
        }
    )
    assert measure.combine(rows, sizes) == ""
    assert {row: [o.value for o in observations] for row, observations in rows.items()} == {
        "base": [3.5, 0.75, 8.0],
        "yarn:4": [3.5, 0.85, 1.5],
    }
    assert {(o.weight, o.values) for observations in rows.values() for o in observations} == {
        (2, ())
    }
    none = rows_of_longppl({"base": {16: [1.0], 64: [1.0]}})
    assert "long context" in measure.combine(none, sizes)
    assert none == {"base": []}


def test_longppl_is_by_the_first_row_that_has_it() -> None:
    measured = rows_of_longppl({"base": {16: [5.0, 1.0], 64: [1.0, 1.0]}})
    passkey = Observation("passkey", "accuracy", 64, 0, 0, 1.0)
    rows = {"server": [passkey], **measured}
    assert REGISTRY["longppl"].combine(rows, EvaluationSizes((16, 64), 64)) == ""
    assert rows["server"] == [passkey]
    assert [point.value for point in rows["base"]] == [5.0, 1.0], "the first token is a key token"


def test_longppl_needs_the_trained_length_and_a_shorter_one() -> None:
    for lengths in ((64, 256), (16, 256)):
        with pytest.raises(UsageError, match="trained length, 64 tokens"):
            cases("longppl", numbered(600), EvaluationSizes(lengths, 64))
    assert len(cases("longppl", numbered(600))) == 18


def test_a_stride_that_leaves_tokens_out_is_refused() -> None:
    texts = numbered(300, prefix=(7,))
    assert cases("sliding:63", texts, EvaluationSizes((64, 128), 64))
    with pytest.raises(UsageError, match="stride of 64 .*give sliding:N"):
        cases("sliding:64", texts, EvaluationSizes((64, 128), 64))
