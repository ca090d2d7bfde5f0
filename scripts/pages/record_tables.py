"""The tables of docs/evaluating.md that follow from the record of measurements."""

from ropeconv.bake.advice import MeasuredMethod
from ropeconv.bake.evidence import BASE, LEAST_FOUND, MOST_LOST, Study, evidence, leave_one_out

REAL = "SmolLM2-135M"


def of_real_model() -> list[Study]:
    """The studies of the real model, by factor."""
    studies = [study for study in evidence().studies if study.short_model == REAL]
    return sorted(studies, key=lambda study: study.factor)


def real_model() -> str:
    """The table of a real model at each factor: loss, price and passkeys of every method."""
    lines = [
        "| method | factor | loss at 1T | price | loss at the length | above 1T | passkeys found |"
        " without training |",
        "|---" * 8 + "|",
    ]
    for study in of_real_model():
        names = sorted(study.lost, key=lambda name: study.lost[name])
        for name in names:
            inside, beyond, price, found, _ = MeasuredMethod(study, name).cells()
            works = "yes" if study.meets_bar(name) else "no"
            if name == BASE:
                price = ""
                works = ""
            lines.append(
                f"| {name} | {study.factor:g} | {inside} | {price} | {beyond} |"
                f" {study.lost[name]:+.2f} | {found} | {works} |"
            )
    return "\n".join(lines)


def decided_pairs() -> str:
    """A sentence on the pairs of methods that the rule decides, for each factor."""
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


def regret() -> str:
    """The table of what the first method loses on a model that the ranking has not seen."""
    lines = ["| model | factor | first | best | behind the best |", "|---" * 5 + "|"]
    for one in leave_one_out(evidence().studies):
        study = one.study
        unit = "nats" if "nats" in study.unit else "points"
        lines.append(
            f"| {study.model} | {study.factor:g} | {one.first} | {one.best} |"
            f" {max(0.0, one.lost):.3f} {unit} |"
        )
    return "\n".join(lines)
