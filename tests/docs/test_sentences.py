"""Sentences with numbers that no script writes are those of docs/evidence, computed here with json
and numpy alone, and the limits of SECURITY.md are those of the code.
"""

import gzip
import json
import math
import re
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from ropeconv.convert.to_gguf import export
from ropeconv.formats import files, jsontext
from ropeconv.formats.gguf import file as gguf_file
from ropeconv.formats.gguf import header
from ropeconv.rope import lengths
from ropeconv.rope.methods import method
from scripts.gather_pages import ROOT

EVIDENCE = ROOT / "docs" / "evidence"
LEVEL = math.erfc(3 / math.sqrt(2))
"""The two-sided probability of more than three standard errors."""
Line = dict[str, Any]
"""A line of the record."""


def text_of(page: str) -> str:
    """A page in one line."""
    return " ".join((ROOT / page).read_text("utf-8").split())


def numbers(page: str, pattern: str) -> list[str]:
    """The groups of a sentence, which has the same ones wherever it stands on a page."""
    (found,) = set(re.findall(pattern, text_of(page)))
    return [found] if isinstance(found, str) else list(found)


def cell(name: str, row: str, measure: str, length: int) -> Line:
    """A number of a result of which only means were kept."""
    cells = json.loads((EVIDENCE / f"smollm2-{name}.json").read_text("utf-8"))["cells"]
    wanted = (row, measure, length)
    return next(one for one in cells if (one["row"], one["measure"], one["column"]) == wanted)


def difference(times: int, row: str, length: int, digits: int = 2) -> list[str]:
    """The loss of a row minus that of the unchanged model, without its sign, and its error."""
    one = cell(f"{times}T", f"{row}:{times}", "growth", length)
    return [f"{abs(one['difference']):.{digits}f}", f"{one['difference_error']:.{digits}f}"]


def above_trained(times: int, row: str) -> float:
    """The loss of a row at the length minus that of the unchanged model at its trained length."""
    start = cell(f"{times}T", "base", "growth", 8192)["value"]
    return float(cell(f"{times}T", f"{row}:{times}", "growth", 8192 * times)["value"] - start)


def read_lines(path: Path) -> list[Line]:
    """The items in a file of the record."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def small_models() -> Iterator[list[Line]]:
    """The items of each model that was trained for this, with at most 512 tokens."""
    for path in sorted((EVIDENCE / "items").glob("*.jsonl.gz")):
        items = read_lines(path)
        if items[0]["trained"] <= 512:
            yield items


def losses(items: list[Line], row: str, length: int) -> dict[str, float]:
    """The mean loss of each text."""
    by_text: dict[str, list[float]] = {}
    for item in items:
        if (item["measure"], item["row"], item["length"]) == ("growth", row, length):
            by_text.setdefault(item["text"], []).append(item["value"])
    return {text: float(np.mean(values)) for text, values in by_text.items()}


def lost_without_a_method(items: list[Line]) -> float:
    """The most that the unchanged model loses at a length beyond its trained one."""
    trained = items[0]["trained"]
    lengths = {item["length"] for item in items if item["length"] > trained}
    start = losses(items, "base", trained)
    lost = []
    for length in lengths:
        at_length = losses(items, "base", length)
        lost.append(float(np.mean([at_length[text] - start[text] for text in start])))
    return max(lost)


def share_of_margin(first: dict[str, float], second: dict[str, float]) -> float:
    """The mean difference of two rows on their texts, over that from which on it is decided.

    The larger margin counts: of Student's t, or of a bootstrap-t read far in its tail.
    """
    apart = np.array([first[text] - second[text] for text in first])
    count = len(apart)
    spread = apart.std(ddof=1)
    errors = abs(apart.mean()) / (spread / math.sqrt(count))
    needed = stats.t.isf(LEVEL / 2, count - 1)
    if errors > needed:
        centred = (apart - apart.mean()) * np.sign(apart.mean())
        drawn = centred[np.random.default_rng(1).integers(0, count, (20_000, count))]
        spreads = np.maximum(drawn.std(axis=1, ddof=1), spread / count)
        scores = drawn.mean(axis=1) / (spreads / math.sqrt(count))
        needed = max(needed, np.quantile(scores, 1 - LEVEL / 20))
    return float(errors / needed)


def right_answers(
    row: str, length: int, model: str = "SmolLM2-135M-Instruct", times: int = 2
) -> tuple[float, int]:
    """The numbers that a row of a model found at a length, and how many were asked for.

    Only texts count that methods have read at so many times the trained length.
    """
    items = read_lines(EVIDENCE / "items" / f"{model}.jsonl.gz")
    samples = {item["sample"] for item in items if item["factor"] == times}
    items = [item for item in items if item["sample"] in samples]
    wanted = ("keys", "exact", row, length)
    values = []
    for item in items:
        if (item["measure"], item["metric"], item["row"], item["length"]) == wanted:
            values.append(item["value"])
    return sum(values), len(values)


SHORT_QUESTIONS = "lm-eval:short_questions"
METHODS = "docs/methods.md"
PAGE = "docs/evaluating.md"
README = "README.md"


def readme_numbers() -> list[str]:
    """The losses at four times the trained length and the shares of the passkeys, as words."""
    values = [f"{cell('4T', 'base', 'growth', 8192)['value']:.1f}"]
    for row in ("base", "yarn:4", "ntk:4", "linear:4"):
        values.append(f"{cell('4T', row, 'growth', 32768)['value']:.1f}")
    shares = []
    for row in ("yarn:4", "ntk:4", "linear:4"):
        cells = json.loads((EVIDENCE / "smollm2-4T-passkey.json").read_text("utf-8"))["cells"]
        wanted = (row, "passkey", "exact", 32768, None)
        keys = ("row", "measure", "metric", "column", "depth")
        (found,) = [one for one in cells if tuple(one[key] for key in keys) == wanted]
        shares.append(f"{100 * found['value']:.0f}")
    start, base, yarn, ntk, linear = values
    assert shares[1] == shares[2]
    return [start, base, yarn, shares[0], ntk, linear, shares[1]]


SENTENCES: dict[str, tuple[str, str, Callable[[], list[str]]]] = {
    "yarn at 2 and 4 times": (
        METHODS,
        r"SmolLM2-135M by ([\d.]+) ± ([\d.]+) nats per token, at 4 times by ([\d.]+) ± ([\d.]+);",
        lambda: difference(2, "yarn", 16384) + difference(4, "yarn", 32768),
    ),
    "the price of yarn": (
        METHODS,
        r"inside, it costs ([\d.]+) ± ([\d.]+) and ([\d.]+) ± ([\d.]+) \(",
        lambda: difference(2, "yarn", 8192, 3) + difference(4, "yarn", 8192),
    ),
    "ntk at 2 times": (
        METHODS,
        r"it gains ([\d.]+) ± ([\d.]+) nats and costs ([\d.]+) ± ([\d.]+) inside",
        lambda: difference(2, "ntk", 16384) + difference(2, "ntk", 8192, 3),
    ),
    "yarn and the next one at 8 times": (
        METHODS,
        r"SmolLM2-135M ([\d.]+) nats above its loss at .*?, and the next best method ([\d.]+) ",
        lambda: [
            f"{above_trained(8, 'yarn'):.1f}",
            f"{min(above_trained(8, name) for name in ('by-parts', 'mixed', 'ntk')):.1f}",
        ],
    ),
    "linear before training": (
        METHODS,
        r"`--linear` costs ([\d.]+) ± ([\d.]+) nats before training",
        lambda: difference(2, "linear", 8192),
    ),
    "the time of the run at 2 times": (
        PAGE,
        r"Twelve texts of different authors took (\d+) seconds on an H200",
        lambda: [f"{json.loads((EVIDENCE / 'smollm2-2T.json').read_text('utf-8'))['seconds']:.0f}"],
    ),
    "texts with key tokens": (
        PAGE,
        r"of the 12 texts above at 4T, 2 had such tokens among 256 targets, (\d+) among 1,536",
        lambda: [str(cell("4T", "base", "longppl", 32768)["documents"])],
    ),
    "Student's t": (
        PAGE,
        r"freedom: ([\d.]+) standard errors for n = 8, ([\d.]+) for n = 20",
        lambda: [f"{stats.t.isf(LEVEL / 2, n - 1):.1f}" for n in (8, 20)],
    ),
    "a search that decides nothing": (
        PAGE,
        r"Six held-out texts need at least ([\d.]+) standard errors, and these are ([\d.]+):",
        lambda: [f"{stats.t.isf(LEVEL / 2, 5):.1f}", f"{0.0521 / 0.0153:.1f}"],
    ),
    "texts and questions of the small models": (
        PAGE,
        r"(\d+) texts and (\d+) questions for each cell",
        lambda: [
            str(len({one["text"] for items in small_models() for one in items})),
            str(
                sum(
                    (one["measure"], one["row"], one["length"]) == ("needle", "base", 128)
                    for items in small_models()
                    for one in items
                )
            ),
        ],
    ),
    "the picture of the readme": (
        README,
        r"text jumps from ([\d.]+) to ([\d.]+) nats without .*? stays at ([\d.]+) and (\d+) % of .*?"
        r" NTK has ([\d.]+) and linear ([\d.]+) nats, and both find (\d+) %",
        readme_numbers,
    ),
}
"""Sentences by name: the page, a pattern with the numbers, and what computes them."""


@pytest.mark.parametrize("name", SENTENCES)
def test_a_sentence_has_the_numbers_of_the_evidence(name: str) -> None:
    page, pattern, compute = SENTENCES[name]
    assert numbers(page, pattern) == compute()


def test_a_changed_result_is_seen_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss of by-parts at 8 times is a tenth of a nat higher: 0.9 nats and not 0.8."""
    page, pattern, compute = SENTENCES["yarn and the next one at 8 times"]
    result = json.loads((EVIDENCE / "smollm2-8T.json").read_text("utf-8"))
    for one in result["cells"]:
        if (one["row"], one["measure"], one["column"]) == ("by-parts:8", "growth", 65536):
            one["value"] += 0.1
    (tmp_path / "smollm2-8T.json").write_text(json.dumps(result))
    monkeypatch.setattr(f"{__name__}.EVIDENCE", tmp_path)
    assert numbers(page, pattern) != compute()


def test_the_small_models_lose_little_without_a_method() -> None:
    assert "The small models lose less than 0.2 nats without any method" in text_of(PAGE)
    lost = [lost_without_a_method(items) for items in small_models()]
    assert len(lost) == 4
    assert max(lost) < 0.2
    assert max(lost) > 0.15, "a model that loses nothing would not test the bar"


def test_no_difference_of_the_models_of_256_tokens_is_decided() -> None:
    assert "by those of 256 tokens either, since none of their differences" in text_of(PAGE)
    largest: dict[int, float] = {}
    for items in small_models():
        trained = items[0]["trained"]
        names = sorted({item["row"] for item in items})
        for length in {item["length"] for item in items if item["length"] > trained}:
            of_row = {name: losses(items, name, length) for name in names}
            measured = [name for name in names if of_row[name]]
            for first, second in combinations(measured, 2):
                share = share_of_margin(of_row[first], of_row[second])
                largest[trained] = max(largest.get(trained, 0.0), share)
    assert largest[256] < 1
    assert largest[128] > 1


def test_yarn_finds_at_twice_the_context_what_the_model_finds_within_it() -> None:
    """About half of 50 numbers: the 95 % interval of a half is 36 to 64 %."""
    sentence = (
        "At 1T the unchanged model finds about half of these numbers, and YaRN about as many at 2T"
    )
    assert sentence in text_of(PAGE)
    shares = []
    for row, length in (("base", 8192), ("yarn:2", 16384)):
        right, asked = right_answers(row, length)
        assert asked == 50
        shares.append(right / asked)
    assert shares == [0.48, 0.46]
    assert right_answers("linear:2", 16384)[0] == 0


def test_yarn_finds_as_much_on_gemma_as_the_model_within_its_context() -> None:
    words = (
        r"With YaRN, this model finds as many numbers at 2T \((\d+) of 50\) as the unchanged one"
        r" within its context \((\d+) of 50\); with NTK it finds (\d+), and without a method (\d+)\."
    )
    found = []
    for row, length in (("yarn:2", 65536), ("base", 32768), ("ntk:2", 65536), ("base", 65536)):
        right, asked = right_answers(row, length, "gemma-3-270m")
        assert asked == 50
        found.append(f"{right:.0f}")
    assert numbers(PAGE, words) == found


def test_methods_names_the_published_models_of_the_evidence() -> None:
    (sentence,) = re.findall(
        r"It ranks by the measurements in .*?\.md#a-real-model\)", text_of(METHODS)
    )
    names = []
    for path in sorted((EVIDENCE / "items").glob("*.jsonl.gz")):
        if read_lines(path)[0]["trained"] > 512:
            names.append(path.name.partition(".")[0].removesuffix("-Instruct"))
    assert len(names) == 2
    assert [name for name in names if name not in sentence] == []


def test_the_words_on_false_marks_are_those_of_the_table() -> None:
    """Windows alike by 0.6, and differences with a skewness of 6, whose n is below 50."""
    page = (ROOT / PAGE).read_text("utf-8")
    rows = {}
    for line in page.splitlines():
        name, *cells = [word.strip() for word in line.strip("|").split("|")]
        if name.startswith(("texts, skewness", "windows of one text")):
            rows[name] = [float(word.partition(" ")[0]) for word in cells]
    skewed = rows["texts, skewness 6"][:3]
    low, high = numbers(PAGE, r"skewness of 6 are marked in ([\d.]+) to ([\d.]+) % of samples")
    assert (low, high) == (f"{min(skewed):.1f}", f"{max(skewed):.1f}")
    (alike,) = numbers(PAGE, r"alike by 0.6 are marked in up to ([\d.]+) %")
    assert alike == f"{max(rows['windows of one text, correlation 0.6']):.1f}"


def test_the_training_of_the_reproduction_is_its_steps_times_its_tokens() -> None:
    page = "docs/reproducing.md"
    (steps, tokens) = numbers(page, r"\(`finetuning`\): (\d+) steps of ([\d,]+) tokens")
    (before, tokens_before) = numbers(page, r"before has (\d+) steps, ([\d,]+) tokens, which")
    (tuned, share) = numbers(page, r"and ([\d,]+) tokens are (\d+) % of that")
    size = int(tokens.replace(",", ""))
    assert tokens_before == f"{int(before) * size:,}"
    assert tuned == f"{int(steps) * size:,}"
    assert int(share) == round(100 * int(steps) / int(before))


def cells_of_a_row(items: list[Line], row: str, times: int) -> list[str]:
    """The cells of a row's table: losses minus those of the unchanged model, and numbers found."""
    trained = items[0]["trained"]
    longest = times * trained
    samples = {item["sample"] for item in items if item["factor"] == times}
    losses_of: dict[tuple[str, int], dict[Any, float]] = {}
    answers = []
    depths = set()
    for item in items:
        if item["sample"] not in samples or item["row"] not in (row, "base"):
            continue
        place = (item["text"], item["window"])
        if item["measure"] == "growth":
            losses_of.setdefault((item["row"], item["length"]), {})[place] = item["value"]
        is_answer = (item["measure"], item["metric"]) == ("keys", "exact")
        if is_answer and (item["row"], item["length"]) == (row, longest):
            answers.append(item["value"])
            depths.add(round(item["depth"] * 5 - 0.5))
    assert len(answers) == 50
    assert len(depths) == 5

    cells = []
    for length in (trained // 4, trained, longest):
        cells.append(mean_difference(losses_of[row, length], losses_of["base", length]))
    cells.append(mean_difference(losses_of[row, longest], losses_of["base", trained]))
    return [*cells, f"{sum(answers):.0f} of 50"]


def mean_difference(first: dict[Any, float], second: dict[Any, float]) -> str:
    """The mean difference of what both have, as the tables show it."""
    common = first.keys() & second.keys()
    assert len(common) >= 2 * 8, "blocks of 128 of the last 1,024 tokens of two texts"
    return f"{np.mean([first[place] - second[place] for place in common]):+.3f}"


@pytest.mark.parametrize(
    ("model", "title", "times"),
    [
        ("SmolLM2-135M-Instruct", "method", 4),
        ("SmolLM2-135M-Instruct", "method", 8),
        ("gemma-3-270m", "gemma-3-270m", 2),
    ],
)
def test_the_tables_of_items_are_those_of_the_items(model: str, title: str, times: int) -> None:
    items = read_lines(EVIDENCE / "items" / f"{model}.jsonl.gz")
    page = (ROOT / PAGE).read_text("utf-8")
    (table,) = re.findall(
        rf"^\| {title} \| loss at 1/4T \| at 1T \| at {times}T .*?\n\n", page, re.M | re.DOTALL
    )
    lines = {}
    for line in table.replace("*", "").strip().splitlines()[2:]:
        name, *cells = line.strip("| ").split(" | ")
        lines[name] = [*cells[:4], cells[-1].partition(",")[0]]
    assert {"base", "yarn"} <= lines.keys()
    for name, shown in lines.items():
        if name != "base":
            row = next(item["row"] for item in items if item["row"].startswith(f"{name}:{times}"))
            assert cells_of_a_row(items, row, times) == shown

    # an answer that was wrong is right
    for item in items:
        wanted = ("keys", "exact", f"yarn:{times}", times * item["trained"])
        if (item["measure"], item["metric"], item["row"], item["length"]) == wanted:
            item["value"] = 1.0
    assert cells_of_a_row(items, f"yarn:{times}", times) != lines["yarn"]


def short_answers(items: list[dict[str, Any]], row: str, metric: str) -> dict[str, float]:
    """The numbers of a row on the short questions, by question."""
    answers = {}
    for item in items:
        if (item["measure"], item["row"], item["metric"]) == (SHORT_QUESTIONS, row, metric):
            answers[item["text"]] = item["value"]
    return answers


def cells_of_short_questions(items: list[dict[str, Any]], row: str) -> list[str]:
    """What the table says of a row: its right answers, and the log-probability of the right one."""
    cells = []
    for metric, scale, shown in (("acc_norm", 100, ".1f"), ("right_log_prob", 1, ".4f")):
        unchanged = short_answers(items, "base", metric)
        answers = short_answers(items, row, metric)
        assert answers.keys() == unchanged.keys()
        assert len(answers) == 282
        if row == "base":
            unit = " %" if scale == 100 else ""
            cells.append(f"{scale * np.mean(list(answers.values())):{shown}}{unit}")
        else:
            apart = [answers[text] - unchanged[text] for text in answers]
            cells.append(f"{scale * np.mean(apart):+{shown}}")
    return cells


def test_the_table_of_short_questions_is_that_of_the_items() -> None:
    items = read_lines(EVIDENCE / "items" / "SmolLM2-135M-Instruct.jsonl.gz")
    page = (ROOT / PAGE).read_text("utf-8")
    (table,) = re.findall(r"^\| method and factor \| right answers .*?\n\n", page, re.M | re.DOTALL)
    lines = {}
    for line in table.replace("*", "").strip().splitlines()[2:]:
        name, *cells = line.strip("| ").split(" | ")
        lines[name.replace(" ", ":")] = cells
    assert {"base", "yarn:4", "linear:4"} <= lines.keys()
    for row, shown in lines.items():
        assert cells_of_short_questions(items, row) == shown

    # an answer that was right is wrong
    for item in items:
        if (item["measure"], item["row"]) == (SHORT_QUESTIONS, "yarn:4"):
            item["value"] = 0.0
    assert cells_of_short_questions(items, "yarn:4") != lines["yarn:4"]


MIB = 1 << 20
LIMITS = {
    "a JSON file": (jsontext.LONGEST // MIB, jsontext.DEEPEST),
    "other text files": (files.LONGEST // MIB,),
    "a scale factor": (lengths.LARGEST_FACTOR, lengths.SMALLEST_LENGTH, method.LARGEST_SCALE),
    "a GGUF header": (
        header.MAX_KEYS,
        header.MAX_TENSORS,
        header.MAX_VALUES // MIB,
        header.MAX_HEADER // MIB,
        header.MAX_ALIGNMENT,
        gguf_file.MAX_SHARDS,
    ),
    "a tokenizer for GGUF": (files.LONGEST // MIB, 300, export.MOST_TOKENS),
    "front matter of a model card": (export.MOST_CARD,),
}
"""Numbers in the rows of the table of SECURITY.md, in their order."""


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_is_that_of_the_code(name: str) -> None:
    page = (ROOT / "SECURITY.md").read_text("utf-8")
    (row,) = re.findall(rf"^\| {re.escape(name)} \| (.*) \|$", page, re.MULTILINE)
    said = [float(word.replace(",", "")) for word in re.findall(r"\d[\d,]*(?:e\d+)?", row)]
    assert said == [float(number) for number in LIMITS[name]]
