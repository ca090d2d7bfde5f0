"""The tables of docs/evaluating.md that follow from the record of measurements."""

import math
from collections.abc import Hashable
from itertools import permutations

from ropeconv.bake.advice import NOT_DECIDED, MeasuredMethod
from ropeconv.bake.evidence import BASE, LEAST_FOUND, MOST_LOST
from ropeconv.bake.items import RecordItem
from ropeconv.bake.proof import independent_answers, prove, sample_of, wilson

from .evidence import record, studies_of_means

REAL = "SmolLM2-135M-Instruct"
SHORT_QUESTIONS = "lm-eval:short_questions"
"""The measure of the task that `scripts/research/short_task.py` writes."""
BAR_WORDS = {"met": "yes", "undecided": NOT_DECIDED, "missed": "no", None: "not judged"}
"""The results of the bar, as `advise` shows them."""


def real_model() -> str:
    """Return the table of a real model at each factor: losses, price and passkeys of each method.

    The price is what a method costs within the trained length, T.
    """
    lines = [
        "| method | factor | loss at 1T | price | loss at the length | above 1T | passkeys found |"
        " without training |",
        "|---" * 8 + "|",
    ]
    for study in studies_of_means():
        names = sorted(study.lost, key=lambda name: study.lost[name])
        for name in names:
            inside, beyond, price, found, _ = MeasuredMethod(study, name).cells()
            works = BAR_WORDS[study.compare_with_bar(name)]
            if name == BASE:
                price = ""
                works = ""
            lines.append(
                f"| {name} | {study.factor:g} | {inside} | {price} | {beyond} |"
                f" {study.lost[name]:+.2f} | {found} | {works} |"
            )
    return "\n".join(lines)


def decided_pairs() -> str:
    """Return a sentence for each factor, on the pairs of methods that the rule decides."""
    sentences = []
    for study in studies_of_means():
        against_base = {pair[0] for pair in study.better if pair[1] == BASE}
        methods = [name for name in study.beyond if name != BASE]
        pairs = [f"`{first}` below `{second}`" for first, second in study.better if second != BASE]
        words = (
            f"At {study.factor:g}T, {len(against_base)} of {len(methods)} methods are below `base`"
        )
        if pairs:
            words += f", and {', '.join(pairs)}"
        sentences.append(f"- {words}.")
    return "\n".join(sentences)


def bar() -> str:
    """The bar in words."""
    return (
        f"at most {MOST_LOST:g} nats above the unchanged model at 1T, and at least"
        f" {LEAST_FOUND:g} % of the passkeys"
    )


def items_at(times: int, model: str = REAL) -> list[RecordItem]:
    """Return the items of a model with methods of one factor, and of the unchanged model.

    Only texts that a method of that factor has read too are among them.

    Args:
        times: The factor.
        model: The name of the model.
    """
    items = []
    for item in record():
        if item.model == model and item.measure != SHORT_QUESTIONS:
            items.append(item)
    samples = {item.sample for item in items if item.factor == times}
    return [item for item in items if item.factor in (times, None) and item.sample in samples]


def item_table(times: int, model: str = REAL) -> str:
    """Return the table of the items of a model, up to so many times its trained length.

    Rows are methods, by their loss; an asterisk marks a difference that the rule decides.

    Args:
        times: How many times.
        model: The name of the model.
    """
    items = items_at(times, model)
    trained = items[0].trained
    longest = times * trained
    names = {trained // 4: "1/4T", trained: "1T", longest: f"{times}T"}
    asked = {item.length for item in items if item.measure == "keys"}
    lengths_asked = [length for length in names if length in asked]

    # rows with all measures; those of questions about short texts are in other runs
    methods = {item.row: item.method for item in items}
    methods = {row: name for row, name in methods.items() if chosen(items, row, longest)}
    by_loss = sorted(methods, key=lambda row: sample_of(chosen(items, row, longest)).mean)

    title = "method" if model == REAL else model
    end = names[longest]
    columns = [title, "loss at 1/4T", "at 1T", f"at {end}", f"at {end} above 1T"]
    columns.append(f"LongPPL at {end}")
    first_asked, *further_asked = lengths_asked
    columns.append(f"numbers found at {names[first_asked]}")
    columns += [f"at {names[length]}" for length in further_asked]

    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for row in by_loss:
        cells = [methods[row]]
        cells += [_against_base(items, row, length) for length in names]
        # the same tokens, after the trained length by the unchanged model
        above = prove(_pairs(chosen(items, row, longest)), _pairs(chosen(items, BASE, trained)))
        assert above is not None
        mark = "*" if above.decided else ""
        cells.append(f"{above.difference:+.3f}{mark}")
        key_tokens = sample_of(chosen(items, row, longest, "longppl"))
        cells.append(f"{math.exp(key_tokens.mean):.1f}")
        cells += [_found(items, row, length) for length in lengths_asked]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _found(items: list[RecordItem], row: str, length: int) -> str:
    """The share of the numbers that a row found at a length; a dash where it was not asked."""
    found = chosen(items, row, length, "keys", "exact")
    if not found:
        return "-"
    answers = sample_of(found)
    low, high = wilson(answers.mean, independent_answers(answers))
    right = round(float(answers.values.sum()))
    return f"{right} of {len(found)}, {100 * answers.mean:.0f} % ({100 * low:.0f}-{100 * high:.0f})"


def place_of(times: int, model: str) -> str:
    """Return where items were measured, in words: `at 4T`, or `at 2T of gemma-3-270m`."""
    return f"at {times}T" if model == REAL else f"at {times}T of {model}"


def item_pairs(times: int, model: str = REAL) -> str:
    """Return sentences on the pairs of methods that the items at the longest length decide.

    Args:
        times: How many times the trained length that is.
        model: The name of the model.
    """
    items = items_at(times, model)
    longest = times * items[0].trained
    place = place_of(times, model)
    methods = {item.row: item.method for item in items}
    sentences = []
    for name, measure, metric, is_share in (
        ("loss", "growth", "loss", False),
        ("LongPPL", "longppl", "loss", False),
        ("numbers found", "keys", "exact", True),
    ):
        by_row = {}
        for row in methods:
            by_row[row] = _pairs(chosen(items, row, longest, measure, metric))
        worse: dict[str, list[str]] = {}  # the methods that each is better than
        for first, second in permutations(methods, 2):
            proof = prove(by_row[first], by_row[second], is_share)
            if proof is None or not proof.decided:
                continue
            # a larger share is better, and a smaller loss
            is_better = (proof.difference > 0) == is_share
            if is_better:
                worse.setdefault(methods[first], []).append(f"`{methods[second]}`")
        pairs = [f"`{first}` before {', '.join(others)}" for first, others in worse.items()]
        sentences.append(f"- By {name} {place}: {'; '.join(pairs) or 'none'}.")
    return "\n".join(sentences)


def item_counts(times: int, model: str = REAL) -> str:
    """Return in words how many items of a model there are.

    Args:
        times: How many times its trained length the texts are.
        model: The name of the model.
    """
    items = items_at(times, model)
    longest = times * items[0].trained
    losses = chosen(items, BASE, longest)
    answers = chosen(items, BASE, longest, "keys", "exact")
    keys = sum(item.weight for item in chosen(items, BASE, longest, "longppl"))
    texts = len({item.text for item in losses})
    return (
        f"{len(items):,} items {place_of(times, model)}:"
        f" {len(losses)} blocks of 128 tokens of {texts} texts,"
        f" {len(answers)} questions at 5 depths, and {keys} key tokens of LongPPL"
    )


def short_questions() -> str:
    """Return the table of what each method costs on short questions, within the trained length.

    The columns are the share of right answers, and the mean log-probability of the right answer for
    each of its characters; methods have their difference to the unchanged model.
    """
    wanted = (REAL, SHORT_QUESTIONS)
    items = [item for item in record() if (item.model, item.measure) == wanted]
    rows = {item.row for item in items}
    by_log_prob = sorted(rows, key=lambda row: -_mean(items, row, "right_log_prob"))
    lines = [
        "| method and factor | right answers | log-probability of the right answer |",
        "|---" * 3 + "|",
    ]
    for row in by_log_prob:
        cells = [row.replace(":", " ")]
        for metric, is_share, scale, decimals in (
            ("acc_norm", True, 100, 1),
            ("right_log_prob", False, 1, 4),
        ):
            unchanged = _short_answers(items, BASE, metric)
            answers = _short_answers(items, row, metric)
            unit = " %" if is_share else ""
            if row == BASE:
                cells.append(f"{scale * _mean(items, row, metric):.{decimals}f}{unit}")
                continue
            proof = prove(answers, unchanged, is_share)
            assert proof is not None
            mark = "*" if proof.decided else ""
            cells.append(f"{scale * proof.difference:+.{decimals}f}{mark}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _short_answers(items: list[RecordItem], row: str, metric: str) -> dict[Hashable, RecordItem]:
    """The answers of a row to the short questions, by question."""
    return _pairs([item for item in items if (item.row, item.metric) == (row, metric)])


def _mean(items: list[RecordItem], row: str, metric: str) -> float:
    """The mean of a metric of a row on the short questions."""
    return sample_of(list(_short_answers(items, row, metric).values())).mean


def chosen(
    items: list[RecordItem],
    row: str,
    length: int,
    measure: str = "growth",
    metric: str = "loss",
) -> list[RecordItem]:
    """The items of a row at a length."""
    wanted = (row, length, measure, metric)
    return [item for item in items if (item.row, item.length, item.measure, item.metric) == wanted]


def _pairs(items: list[RecordItem]) -> dict[Hashable, RecordItem]:
    """Items by the key that pairs them."""
    return {item.place: item for item in items}


def _against_base(items: list[RecordItem], row: str, length: int) -> str:
    """The loss of the unchanged model, or the difference of another row to it."""
    own = chosen(items, row, length)
    if row == BASE:
        # at the trained length, it reads more windows than the others
        others = {item.place for item in items if item.row != BASE and item.length == length}
        own = [item for item in own if item.place in others]
        return f"{sample_of(own).mean:.3f}"
    proof = prove(_pairs(own), _pairs(chosen(items, BASE, length)))
    assert proof is not None
    return f"{proof.difference:+.3f}{'*' if proof.decided else ''}"
