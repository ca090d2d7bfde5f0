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
    """The cells of a family: its architecture, a divergence or "-" for what llama.cpp has no form
    for, the control.
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
        cells.append(f"{beyond(reference, of_llamacpp(out))[1].kl_mean:.0e}")
        if name.startswith("yarn"):
            control = f"{beyond(reference, plain)[1].kl_mean:.0e}"
    return [model_type, rules.arch, *cells, control]


def merge(table: str, lines: list[list[str]]) -> str:
    """The table with the lines that were measured, and the rows that it had of other families.

    lines: the title, the line below it and the rows, in cells.
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
    """Prints the table, or writes it."""
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
