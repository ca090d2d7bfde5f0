"""The tables of docs/evaluating.md that follow from the record of measurements."""

import math
from collections.abc import Hashable
from itertools import permutations

from ropeconv.bake.advice import NOT_DECIDED, MeasuredMethod
from ropeconv.bake.evidence import BASE, LEAST_FOUND, MOST_LOST, Study, evidence
from ropeconv.bake.items import RecordItem
from ropeconv.bake.proof import independent_answers, prove, sample_of, wilson

from .evidence import record

REAL = "SmolLM2-135M"
BAR_WORDS = {"met": "yes", "undecided": NOT_DECIDED, "missed": "no", None: "not judged"}
"""The results of the bar, as `advise` shows them."""


def of_real_model() -> list[Study]:
    """The studies of the real model, by factor."""
    studies = [study for study in evidence().studies if study.short_model == REAL]
    studies = [study for study in studies if study.retrieval]  # of passkeys
    return sorted(studies, key=lambda study: study.factor)


def real_model() -> str:
    """Return the table of a real model at each factor: losses, price and passkeys of each method.

    The price is what a method costs within the trained length, T.
    """
    lines = [
        "| method | factor | loss at 1T | price | loss at the length | above 1T | passkeys found |"
        " without training |",
        "|---" * 8 + "|",
    ]
    for study in of_real_model():
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
    for study in of_real_model():
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


def items_at(times: int) -> list[RecordItem]:
    """Return the items of the real model with methods of one factor, and of the unchanged model.

    Only texts that a method of that factor has read too are among them.
    """
    items = [item for item in record() if item.model.startswith(REAL)]
    samples = {item.sample for item in items if item.factor == times}
    return [item for item in items if item.factor in (times, None) and item.sample in samples]


def item_tables() -> str:
    """Return the table of the items of the real model, up to twice its trained length.

    Rows are methods, by their loss; an asterisk marks a difference that the rule decides.
    """
    items = items_at(2)
    trained = items[0].trained
    longest = max(item.length for item in items)
    lengths = (trained // 4, trained, longest)

    # rows with all measures; those of questions about short texts are in other runs
    methods = {item.row: item.method for item in items}
    methods = {row: name for row, name in methods.items() if chosen(items, row, longest)}
    by_loss = sorted(methods, key=lambda row: sample_of(chosen(items, row, longest)).mean)

    lines = [
        "| method | loss at 1/4T | at 1T | at 2T | at 2T above 1T | LongPPL at 2T |"
        " numbers found at 1/4T | at 1T | at 2T |",
        "|---" * 9 + "|",
    ]
    for row in by_loss:
        cells = [methods[row]]
        cells += [_against_base(items, row, length) for length in lengths]
        # the same tokens, after the trained length by the unchanged model
        above = prove(_pairs(chosen(items, row, longest)), _pairs(chosen(items, BASE, trained)))
        assert above is not None
        mark = "*" if above.decided else ""
        cells.append(f"{above.difference:+.3f}{mark}")
        key_tokens = sample_of(chosen(items, row, longest, "longppl"))
        cells.append(f"{math.exp(key_tokens.mean):.1f}")
        cells += [_found(items, row, length) for length in lengths]
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


def item_table_at_4() -> str:
    """Return the table of the items of the real model at four times its trained length."""
    items = items_at(4)
    lines = [
        "| method | loss at 4T | at 4T above 1T | LongPPL at 4T | numbers found at 4T |",
        "|---" * 5 + "|",
    ]
    trained = items[0].trained
    unchanged = _pairs(chosen(items, BASE, trained))
    rows = {item.row: item.method for item in items if chosen(items, item.row, 4 * trained)}
    for row in rows:
        at_length = _pairs(chosen(items, row, 4 * trained))
        above = prove(at_length, unchanged)
        assert above is not None
        # of the same tokens that the unchanged model has read within its trained length
        loss = sample_of([item for place, item in at_length.items() if place in unchanged]).mean
        key_tokens = sample_of(chosen(items, row, 4 * trained, "longppl"))
        mark = "*" if above.decided else ""
        cells = [
            rows[row],
            f"{loss:.3f}",
            f"{above.difference:+.3f}{mark}",
            f"{math.exp(key_tokens.mean):.1f}",
            _found(items, row, 4 * trained),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def item_pairs() -> str:
    """Return sentences on the pairs of methods that the items at twice the length decide."""
    items = items_at(2)
    longest = max(item.length for item in items)
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
        sentences.append(f"- By {name}: {'; '.join(pairs) or 'none'}.")
    return "\n".join(sentences)


def item_counts() -> str:
    """How many items of the real model there are at twice its trained length, in words."""
    items = items_at(2)
    longest = max(item.length for item in items)
    losses = chosen(items, BASE, longest)
    answers = chosen(items, BASE, longest, "keys", "exact")
    keys = sum(item.weight for item in chosen(items, BASE, longest, "longppl"))
    texts = len({item.text for item in losses})
    return (
        f"{len(items):,} items: {len(losses)} blocks of 128 tokens of {texts} texts,"
        f" {len(answers)} questions at 5 depths, and {keys} key tokens of LongPPL"
    )


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
