"""Studies of methods, computed from the items of the public record or from published means.

`study_of_items` is the function to read first. `python -m scripts.pages evidence` computes all of
them, and writes `evidence.toml`.
"""

from collections.abc import Hashable, Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

from .evidence import BASE, LEAST_FOUND, Study
from .items import RecordItem
from .proof import FEWEST, Proof, critical, independent_answers, prove, sample_of, wilson

GROWTH = ("growth", "loss")
RETRIEVAL = (("passkey", "exact"), ("needle", "exact"), ("keys", "exact"), ("niah", "exact"))
"""Questions about a hidden fact: a number, a token that a small model has learned to find, one of
many numbers in a text, or one of four. The first one of which the unchanged model finds most
decides."""
DIGITS = 4
"""Decimals of losses in nats per token."""

Place = tuple[str, int]
"""A row and a length in tokens."""
Items = dict[Hashable, RecordItem]
"""Items of a row at a length, by the key that pairs them with those of another row."""


class Group(NamedTuple):
    """The model and the factor of one study."""

    model: str

    factor: float
    """The length over the trained context."""

    on_top: str
    """The kind of the scaling that the model was trained with; empty for none."""


def group_items(items: Iterable[RecordItem]) -> dict[Group, list[RecordItem]]:
    """Group measured numbers by study: the methods of one factor, on one model.

    An item is one measured number, such as the loss of yarn:4 on one window of a text. The items of
    the unchanged model are in every study of the model.

    Returns:
        The items by model, factor, and kind of the scaling that the model was trained with, which
        is empty for none: {Group("Qwen2.5-0.5B", 4.0, ""): [...], ...}.
    """
    groups: dict[Group, list[RecordItem]] = {}
    unchanged: list[RecordItem] = []
    for item in items:
        if item.method == BASE:
            unchanged.append(item)
        elif item.factor is not None and item.row == plain_row(item):
            # a method with default settings: "yarn:4", and not "yarn:4:beta_fast=16"
            group = Group(item.model, item.factor, item.on_top)
            groups.setdefault(group, []).append(item)

    # add the unchanged model, on the same samples (sets of texts) as the methods
    for group, items_of_group in groups.items():
        samples = {item.sample for item in items_of_group}
        for item in unchanged:
            is_of_model = (item.model, item.on_top) == (group.model, group.on_top)
            if is_of_model and item.sample in samples:
                items_of_group.append(item)
    return groups


def plain_row(item: RecordItem) -> str:
    """Return the name of the row of a method without settings, such as `yarn:4`."""
    return BASE if item.method == BASE else f"{item.method}:{item.factor:g}"


def study_of_items(group: Group, items: Sequence[RecordItem], source: str) -> Study | None:
    """Compute what the items of a study say; None where the wanted length has no loss.

    An item is one measured number: the loss of one method on one text at one length, or whether it
    answered one question.

    Args:
        group: The model and the factor.
        items: Its items.
        source: Where they are.
    """
    trained = items[0].trained
    longest = round(group.factor * trained)
    methods = list(dict.fromkeys(item.method for item in items))

    # losses, by method and length: {("yarn", 8192): ..., ("base", 2048): ..., ...}
    losses = _by_place(items, GROWTH)
    if (BASE, longest) not in losses:
        return None
    at_length = {name: losses[name, longest] for name in methods if (name, longest) in losses}
    unchanged = losses.get((BASE, trained), {})
    differences = _loss_differences(losses, at_length, trained, longest)

    # answers to questions
    answers = _answers(items, trained)
    answered = {name: answers[name, longest] for name in methods if (name, longest) in answers}
    shares = _answer_shares(answered)

    # how many texts and questions there are
    texts = max(len({item.text for item in of_method.values()}) for of_method in at_length.values())
    questions = min((len(of_method) for of_method in answered.values()), default=0)
    texts_and_questions = f"{texts} texts"
    if questions:
        texts_and_questions += f", {questions} questions"

    # the loss of the unchanged model at its trained length
    start = None
    if unchanged:
        start = round(sample_of(list(unchanged.values())).mean, DIGITS)
    return Study(
        model=f"{group.model} ({trained:,} tokens)",
        factor=group.factor,
        on_top=group.on_top,
        unit="nats per token, minus the model without a method",
        n=texts_and_questions,
        source=source,
        sliding_window=items[0].sliding_window,
        trained=trained,
        texts=texts,
        questions=questions,
        start=start,
        beyond=differences.beyond,
        errors=differences.errors,
        inside=differences.inside,
        lost=differences.lost,
        retrieval=shares.percent,
        low=shares.low,
        high=shares.high,
        better=_decided_pairs(at_length),
    )


def _answers(items: Sequence[RecordItem], trained: int) -> dict[Place, Items]:
    """Return the answers to questions of which the unchanged model finds most; empty without any.

    Args:
        items: The items of a study.
        trained: The trained length, at which the unchanged model must find most of them.
    """
    for wanted in RETRIEVAL:
        answers = _by_place(items, wanted)
        if _finds_most(answers.get((BASE, trained))):
            return answers
    return {}


class LossDifferences(NamedTuple):
    """Losses of each method minus others, in nats per token, by the name of the method."""

    beyond: dict[str, float]
    """At the longest length, minus the unchanged model there: -1.2 is a better method."""

    errors: dict[str, float]
    """The standard error of `beyond`."""

    inside: dict[str, float]
    """At the trained length, minus the unchanged model there: 0.02 is the price of the method."""

    lost: dict[str, float]
    """At the longest length, minus the unchanged model at its trained length."""


def _loss_differences(
    losses: dict[Place, Items],
    losses_at_longest: dict[str, Items],
    trained: int,
    longest: int,
) -> LossDifferences:
    """Return the loss of each method minus the loss of the unchanged model.

    Args:
        losses: The losses by method and length: {("yarn", 8192): ..., ("base", 2048): ...}.
        losses_at_longest: The losses at the longest length, by method.
        trained: The trained length in tokens.
        longest: The longest length in tokens.
    """
    # `prove` returns the mean difference over the same tokens, with its standard error; None if two
    # rows have no tokens in common
    unchanged_at_trained = losses.get((BASE, trained), {})
    unchanged_at_longest = losses[BASE, longest]
    result = LossDifferences(beyond={}, errors={}, inside={}, lost={})
    for name, method_at_longest in losses_at_longest.items():
        method_at_trained = losses.get((name, trained), {})

        # both at the longest length
        at_longest = prove(method_at_longest, unchanged_at_longest)
        if at_longest is not None:
            result.beyond[name] = round(at_longest.difference, DIGITS)
            if name != BASE and at_longest.error is not None:
                result.errors[name] = round(at_longest.error, DIGITS)

        # both at the trained length
        at_trained = prove(method_at_trained, unchanged_at_trained)
        if at_trained is not None:
            result.inside[name] = round(at_trained.difference, DIGITS)

        # the method at the longest length, the unchanged model at its trained length
        across_lengths = prove(method_at_longest, unchanged_at_trained)
        if across_lengths is not None:
            result.lost[name] = round(across_lengths.difference, DIGITS)
    return result


def _finds_most(unchanged: Items | None) -> bool:
    """Whether a model finds most of the facts at its trained length, so that answers beyond it say
    something about methods.

    Args:
        unchanged: The answers of the unchanged model at that length; None where it was not asked.
    """
    if not unchanged:
        return False
    return 100 * sample_of(list(unchanged.values())).mean >= LEAST_FOUND


def _by_place(items: Iterable[RecordItem], wanted: tuple[str, str]) -> dict[Place, Items]:
    """Return the items of a measure and metric, by method and length."""
    places: dict[Place, Items] = {}
    for item in items:
        if (item.measure, item.metric) == wanted:
            places.setdefault((item.method, item.length), {})[item.place] = item
    return places


class AnswerShares(NamedTuple):
    """The right answers of each method in percent, and the 95 % interval of each share."""

    percent: dict[str, float]
    low: dict[str, float]
    high: dict[str, float]


def _answer_shares(answers: dict[str, Items]) -> AnswerShares:
    """Return the share of right answers of each method, such as {"yarn": 93.8}."""
    shares = AnswerShares({}, {}, {})
    for name, items in answers.items():
        sample = sample_of(list(items.values()))
        low, high = wilson(sample.mean, independent_answers(sample))
        shares.percent[name] = round(100 * sample.mean, 1)
        shares.low[name] = round(100 * low, 1)
        shares.high[name] = round(100 * high, 1)
    return shares


def _decided_pairs(rows: dict[str, Items]) -> tuple[tuple[str, str], ...]:
    """Return the pairs of methods whose losses differ, the better one first."""
    pairs = []
    for first, second in combinations(rows, 2):
        proof = prove(rows[first], rows[second])
        if proof is None or not proof.decided:
            continue
        is_lower = proof.difference < 0
        pairs.append((first, second) if is_lower else (second, first))
    return tuple(pairs)


class Mean(NamedTuple):
    """A loss that was published as a mean, with its difference to the unchanged model."""

    value: float
    difference: float
    error: float
    """The standard error of the difference."""

    texts: int
    """The number of texts."""


def pairs_of_means(losses: dict[str, Mean]) -> tuple[tuple[str, str], ...]:
    """Return the pairs of methods whose published mean losses differ significantly.

    The better method is the first of a pair: (("yarn", "ntk"),) if YaRN's loss is surely lower than
    NTK's.

    Older studies have only the mean difference of each method to the unchanged model, with its
    standard error. YaRN with -1.20 and NTK with -0.80, each with a margin of 0.15, differ by 0.40,
    which is more than the sum of the margins, so that YaRN is better. The margins are from
    Student's t test, since a bootstrap needs each number.

    Args:
        losses: The mean of each method.
    """
    pairs = []
    for first, second in combinations(losses, 2):
        comparison = _proof_of_means(losses[first], losses[second])
        if not comparison.decided:  # within the margin, or on fewer than six texts
            continue
        first_is_better = comparison.difference < 0  # a lower loss
        pairs.append((first, second) if first_is_better else (second, first))
    return tuple(pairs)


def _proof_of_means(first: Mean, second: Mean) -> Proof:
    """Compare two published means."""
    difference = first.difference - second.difference
    error = first.error + second.error
    count = min(first.texts, second.texts)
    margin = None
    if count >= FEWEST:
        margin = critical(count - 1) * error
    return Proof(difference, error, margin, count)
