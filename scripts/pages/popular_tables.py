"""Tables of the answers of installed runtimes about 50 models, from docs/evidence/popular.json."""

from collections import Counter
from functools import cache

from ropeconv.runtimes.runtime import GOOD, newest
from scripts.laboratory.popular import Answered, Asked, read_results

COLUMNS = (
    "exact",
    "with an output of its own",
    "wrong",
    "fails",
    "not supported",
    "not written",
    "not asked",
)
WORDS = {
    "differs": "wrong",
    "ignored": "wrong",
    "refused": "fails",
    "unsupported": "not supported",
    "unknown": "not asked",
    "not written": "not written",
}


@cache
def results() -> Asked:
    """Return the answers."""
    asked = read_results()
    assert asked is not None, "write them with `python -m scripts.laboratory.popular`"
    return asked


def word_of(answered: Answered) -> str:
    """Return the column of an answer."""
    if answered.status not in GOOD:
        return WORDS[answered.status]
    if answered.only_for or answered.options:
        return "with an output of its own"
    return "exact"


def popular_counts() -> str:
    """Return the table of counts: how each runtime answered about outputs of popular models."""
    asked = results()
    lines = ["| runtime | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    for runtime, version in sorted(asked.versions.items()):
        counts = Counter[str]()
        for rows in asked.models.values():
            for answers in rows.values():
                if runtime in answers:
                    counts[word_of(answers[runtime])] += 1
        cells = (str(counts[name]) for name in COLUMNS)
        title = f"{newest(runtime).title} {version}"
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def popular_answers() -> str:
    """Return the text of docs/tables/popular.txt: a block for each model and extension."""
    asked = results()
    lines = []
    for model, rows in sorted(asked.models.items(), key=lambda pair: pair[0].lower()):
        for words, answers in rows.items():
            lines.append(f"{model.replace('--', '/')} {words}")
            for runtime, answered in sorted(answers.items()):
                lines.append(f"  {runtime:<12} {sentence(answered)}")
    return "\n".join(lines)


def sentence(answered: Answered) -> str:
    """Return an answer in words."""
    if answered.status not in GOOD:
        return f"{answered.status}: {answered.reason}"
    words = [f"{answered.status} ({answered.encoding})"]
    if answered.only_for:
        words.append(f"written with {answered.only_for}")
    if answered.options:
        words.append(f"started with {answered.options}")
    if answered.reason:
        words.append(answered.reason)
    return "; ".join(words)
