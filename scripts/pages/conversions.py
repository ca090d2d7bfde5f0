"""Measures exports of tiny checkpoints in llama.cpp beside transformers, family by family and
method by method.

    python -m scripts.pages conversions [--write] [MODEL_TYPE ...]

Every number is the mean Kullback-Leibler divergence at two to four times the trained length, of
llama.cpp from transformers that is scaled at run time; the column "unscaled" has that of the source
without any scaling (yarn). `--write` replaces the table in docs/tables/conversions.txt, or the rows
of the given model types in it.
"""

import argparse
import tempfile
from pathlib import Path

from torch import Tensor

from ropeconv.errors import UnsupportedBake
from ropeconv.models.registry import by_model_type
from ropeconv.rope.methods.method import REGISTRY as METHODS
from ropeconv.rope.recipe import Recipe
from tests.support.llamacpp import EXPORTED, bake, beyond, checkpoint, of_llamacpp, of_transformers

DOCS = Path(__file__).parents[2] / "docs" / "tables" / "conversions.txt"
BEGIN, END = "<!-- begin of the table -->\n", "<!-- end of the table -->\n"
RECIPES = {
    "theta": Recipe(METHODS["theta"](2e6), context=256),
    "yarn": Recipe(METHODS["yarn"](4.0)),
    "yarn, factor 1": Recipe(METHODS["yarn"](4.0), attention_factor=1.0),
    "mixed": Recipe(METHODS["mixed"](4.0)),
}


def row(model_type: str, folder: Path) -> list[str]:
    """Return the cells of a family: how far llama.cpp is from transformers with each method.

    Args:
        model_type: The model type.
        folder: Where the files are written.

    Returns:
        The model type, its GGUF architecture, the divergence of each method ("-" for a method that
        llama.cpp has no form for), and that of the model without YaRN as the control.
    """
    source = checkpoint(model_type, folder / "source")
    rules = by_model_type()[model_type].gguf
    assert rules is not None
    cells = []
    control = ""
    plain = of_transformers(source, None)
    for name, recipe in RECIPES.items():
        out = folder / f"{name}.gguf"
        try:
            plan = bake(source, recipe, out)
        except UnsupportedBake:
            cells.append("-")
            continue
        reference = of_transformers(source, plan)
        cells.append(_divergence(reference, of_llamacpp(out)))
        if name.startswith("yarn"):
            control = _divergence(reference, plain)
    return [model_type, rules.arch, *cells, control]


def _divergence(reference: Tensor, logits: Tensor) -> str:
    """Return the mean divergence at two to four times the trained length, such as "2e-09"."""
    _, second = beyond(reference, logits)  # the first is at one to two times
    return f"{second.kl_mean:.0e}"


def merge(table: str, lines: list[list[str]]) -> str:
    """Return the table with the lines that were measured, and the rows that it had of others.

    Args:
        table: The table of the page, in Markdown.
        lines: The title, the line below it and the rows, each as a list of cells.
    """
    rows = {}
    for text in table.splitlines()[2:]:
        rows[text.split()[1]] = text
    for line in lines[2:]:
        rows[line[0]] = f"| {' | '.join(line)} |"

    title = [f"| {' | '.join(line)} |" for line in lines[:2]]
    families = [rows[name] for name in EXPORTED if name in rows]
    return "\n".join([*title, *families, ""])


def main() -> None:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model_types", nargs="*", default=EXPORTED)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    names = ["model type", "architecture", *RECIPES, "unscaled"]
    lines = [names, ["---"] * len(names)]
    for model_type in given.model_types:
        with tempfile.TemporaryDirectory() as folder:
            lines.append(row(model_type, Path(folder)))
        print(f"| {' | '.join(lines[-1])} |", flush=True)
    if given.write:
        before, rest = DOCS.read_text().split(BEGIN)
        table, after = rest.split(END)
        DOCS.write_text(before + BEGIN + merge(table, lines) + END + after)


if __name__ == "__main__":
    main()
