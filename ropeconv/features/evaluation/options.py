"""The options of `eval` and `tune`, each declared once, as `ropeconv.options` says."""

from dataclasses import MISSING, dataclass
from pathlib import Path

from ropeconv.options import LENGTH, MODEL, OUTPUT, RUNNING, BoundedOptions, option


@dataclass(frozen=True)
class TextOptions(BoundedOptions):
    """The texts of `eval` and `tune`, and the limits of a run."""

    text: tuple[str, ...] = option(
        (), "Text to read: files, a pattern in quotes, or - (repeatable).", MODEL, metavar="FILE"
    )
    dataset: str = option(
        "",
        "A dataset of the Hub instead of --text, as owner/name:SPLIT or owner/name:CONFIG:SPLIT.",
        MODEL,
        metavar="ID",
    )
    field: str = option("text", "The column of --dataset with the text.", MODEL, metavar="NAME")
    budget: str = option(
        "",
        "Refuse a run that takes longer (90s, 20m, 2h), and say what fits.",
        RUNNING,
        metavar="TIME",
    )
    journal: Path | None = option(
        None,
        "Where finished sequences are kept, so that a run continues (default: in the cache).",
        RUNNING,
        metavar="FILE",
        writes=True,
    )
    fresh: bool = option(
        False, "Begin a new journal; the one there gets another name.", RUNNING, writes=True
    )


@dataclass(frozen=True)
class EvalOptions(TextOptions):
    """The rows of `eval`, and what is done with its result."""

    methods: str = option(
        "",
        "The rows: base, METHOD:VALUE (with settings: yarn:4:beta_fast=16), recipe:FILE (default: "
        "base,yarn:4,mixed:4,ntk:4).",
        MODEL,
        metavar="ROWS",
    )
    against: str = option("", "The source of an output, as the first row.", MODEL, metavar="SOURCE")
    servers: tuple[str, ...] = option(
        (),
        "A running vLLM, SGLang or llama-server as a row, URL or NAME=URL (repeatable).",
        MODEL,
        flag="--server",
        metavar="URL",
    )
    threads: int | None = option(
        None,
        "Threads of the CPU (default: OMP_NUM_THREADS, otherwise one for each core).",
        RUNNING,
        metavar="N",
        least=1,
    )
    workers: str = option(
        "",
        "Several workers with the model: a number of processes, ray, auto, ray://HOST:PORT"
        " (docs/running.md).",
        RUNNING,
        metavar="WHERE",
    )
    out: Path | None = option(
        None,
        "Write the result as JSON, or only its single numbers as NAME.jsonl.gz.",
        OUTPUT,
        short="-o",
        metavar="FILE",
        writes=True,
    )
    fail_if: tuple[str, ...] = option(
        (),
        "Exit with 3 if it holds significantly: 'yarn:4 > base @2T' (repeatable).",
        OUTPUT,
        metavar="CONDITION",
    )


@dataclass(frozen=True)
class SizeOptions(BoundedOptions):
    """The size of an evaluation, as users write it: options of `eval`, and keys of [eval] in a plan
    of `run`.
    """

    measures: str = option(
        "growth",
        "The measures (see docs/evaluating.md).",
        RUNNING,
        flag="--measure",
        metavar="NAMES",
    )
    lengths: str = option(
        "1/4T,1T,2T,4T",
        "Lengths of the sequences: tokens (8k,32k), or multiples of the trained context T.",
        LENGTH,
        metavar="LENGTHS",
    )
    windows: int = option(8, "Sequences of each length.", RUNNING, metavar="N", least=1)
    targets: int = option(
        256, "Tokens predicted at the end of each sequence.", RUNNING, metavar="N", least=1
    )
    depths: int = option(5, "Places of a fact in a text.", RUNNING, metavar="N", least=1)
    seed: int = option(0, "The seed of random choices.", RUNNING, metavar="N", least=0)
    generate: bool = option(False, "Generate answers instead of comparing tokens.", RUNNING)
    suite: str | None = option(
        None,
        "long: loss, four kinds of questions about your text, speed and memory, and RULER where"
        " lm_eval is installed.",
        RUNNING,
        choices=("long",),
    )


@dataclass(frozen=True)
class TuneOptions(BoundedOptions):
    """The search of `tune`, as users write it."""

    context: str = option(MISSING, "The context to reach.", LENGTH, metavar="TOKENS")
    start: str = option(
        "",
        "The formula to begin with (default: the one that loses least).",
        MODEL,
        metavar="METHOD",
    )
    attention_factor: float | None = option(
        None, "Keep cos and sin times A, instead of tuning that too.", LENGTH, metavar="A"
    )
    windows: int = option(16, "Windows that the search reads.", RUNNING, metavar="N", least=2)
    held_windows: int = option(
        0,
        "Windows of held-out text (default: as many, and at least 6).",
        RUNNING,
        metavar="N",
        least=0,
        shown=False,
    )
    """0 for as many as `windows`."""

    targets: int = option(
        256,
        "Tokens predicted in a window, inside the trained context and beyond it alike.",
        RUNNING,
        metavar="N",
        least=1,
    )
    inside: float = option(
        0.3,
        "Weight of the loss inside the trained context, beside that beyond it.",
        RUNNING,
        metavar="WEIGHT",
    )
    needles: float = option(
        0.0, "Weight of the loss of a number hidden in each window.", RUNNING, metavar="WEIGHT"
    )
    steps: int = option(60, "Most steps of the search.", RUNNING, metavar="N", least=1)
    regularise: float = option(
        0.0,
        "Weight of the squared distance of log divisors to the formula.",
        RUNNING,
        metavar="WEIGHT",
    )
    seed: int = option(0, "The seed of random choices.", RUNNING, metavar="N", least=0)
