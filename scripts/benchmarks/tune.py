"""What `ropeconv tune` finds on held-out text and what it takes, on a small model trained here or a
given one.

With --all also on the real model that scripts/real_model.py fetches, for 1.25 times its trained
context: more than an hour on two cores. Its passes are in a journal in the cache, with which a
killed run goes on.
"""

import argparse
import tempfile
import time
from pathlib import Path

from ropeconv.features.evaluation.tune.plots import write_plot
from ropeconv.features.evaluation.tune.result import TuningResult
from ropeconv.features.evaluation.tune.tuning import SearchSettings, tune_model
from scripts.real_model import RealModel, real_model
from scripts.research.real_texts import moby_dick
from scripts.research.trained_model import make

REAL = SearchSettings("10k", start="yarn", windows=4, targets=512, steps=6)
"""What is searched for on the real model, in bfloat16."""


def measure(
    model: Path, texts: str, context: str, seeds: int, windows: int, journals: Path
) -> None:
    """Print a row of a Markdown table for each seed, and draw the first result.

    Args:
        model: A checkpoint.
        texts: The pattern of its files, such as "texts/*.txt".
        context: The context to reach, such as "256".
        seeds: How many searches run, each with another seed.
        windows: How many windows of the texts are read.
        journals: A folder for the journals. Each search has its own, so that every one reads the
            formulas anew.
    """
    print(
        "| seed | seconds | steps | on its windows | held out, minus the best formula | errors |"
        " inside |"
    )
    print("|---|---|---|---|---|---|---|")
    for seed in range(seeds):
        begin = time.perf_counter()
        settings = SearchSettings(context, seed=seed, windows=windows)
        tuning = tune_model(model, [texts], settings, journal=journals / f"{seed}.jsonl")
        seconds = time.perf_counter() - begin
        if seed == 0:
            write_plot(tuning, Path("tuning.svg"))

        # the row of the result in the test on held-out windows; none where no formula was beaten
        total = None
        inside = None
        for row in tuning.rows:
            if row.name.startswith("tuned"):
                total = row.total
                inside = row.inside.difference
                break
        line = f"| {seed} | {seconds:.0f} | {tuning.steps} | {tuning.searched:+.4f} |"
        if total is None or total.difference is None or total.error is None or inside is None:
            print(f"{line} found nothing better than {tuning.best_formula} | | |", flush=True)
            continue
        print(
            f"{line} {total.difference:+.4f} ± {total.error:.4f} ({tuning.best_formula}) "
            f"| {total.difference / total.error:+.1f} | {inside:+.4f} |",
            flush=True,
        )


def tune_real(real: RealModel, folder: Path) -> TuningResult:
    """What is found for the real model. folder: for a file with Moby Dick, since the manual is too
    short for six held-out windows.
    """
    book = folder / "moby_dick.txt"
    book.write_text(moby_dick(), "utf-8")
    return tune_model(real.checkpoint, [book], REAL, device="cpu", dtype="bfloat16")


def main() -> None:
    """Tune a small model that is trained here or a given one, with several seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", type=Path, help="a checkpoint (default: one trained here, for 64 tokens)"
    )
    parser.add_argument("--text", help="pattern of its texts")
    parser.add_argument("--context", default="256", help="to reach, in tokens")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--windows", type=int, default=32)
    parser.add_argument("--all", action="store_true", help="also the real model")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        model, texts = given.model, given.text
        if model is None:
            make(Path(name) / "trained", steps=400)
            model = Path(name) / "trained" / "model"
            texts = f"{name}/trained/texts/*.txt"
        measure(model, texts, given.context, given.seeds, given.windows, Path(name) / "journals")
        if given.all:
            print(tune_real(real_model(), Path(name)).sentence)
