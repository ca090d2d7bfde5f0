"""Executes llama.cpp on GGUF files of ropeconv: its logits beside those of transformers, beyond the
trained length.

The reference is the source in transformers, with the schedule patched in; the control is the source
without it. The record says, by family, which encodings were exact; `rope_types` has the names of
the encodings.
"""

import sys
import tempfile
from collections.abc import Iterator
from datetime import date
from pathlib import Path

from ropeconv.bake.plan import Plan
from ropeconv.inspection.inspection import inspect_source
from ropeconv.models.config import detect
from ropeconv.models.open import open_source
from ropeconv.models.source import Source
from ropeconv.rope.errors import RecipeError, RopeconvError
from ropeconv.rope.methods.method import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.runtimes.lab_file import ModelRecord, Record
from ropeconv.runtimes.llamacpp.archs import arch_table
from tests.support.llamacpp import EXPORTED, bake, beyond, checkpoint, of_llamacpp, of_transformers

from .records import save

ALLOWED = 1e-4
"""Largest mean KL of llama.cpp from the reference; the unscaled source has to be thirty times
further away.
"""
HOW = (
    "tiny GGUF files, float32: logits of llama.cpp against transformers with the schedule patched"
    " in, 1 to 4 times L"
)
METHODS = {
    "ntk": Recipe(REGISTRY["ntk"](4.0)),  # type: ignore[call-arg]
    "linear": Recipe(REGISTRY["linear"](4.0)),  # type: ignore[call-arg]
    "yarn": Recipe(REGISTRY["yarn"](4.0)),  # type: ignore[call-arg]
    "yarn, attention factor": Recipe(REGISTRY["yarn"](4.0), attention_factor=1.3),  # type: ignore[call-arg]
    "mixed": Recipe(REGISTRY["mixed"](4.0)),  # type: ignore[call-arg]
    "llama3": Recipe(REGISTRY["llama3"](4.0)),  # type: ignore[call-arg]
}


def main() -> int:
    """Write the record. Return 1 where llama.cpp did not compute what the table calls exact."""
    models = {}
    wrong = 0
    for model_type in EXPORTED:
        with tempfile.TemporaryDirectory() as folder:
            source = checkpoint(model_type, Path(folder) / model_type)
            opened = open_source(str(source))
            assert isinstance(opened, Source)
            family = detect(opened.config()).name
            by_cell = dict(_cells(source, Path(folder)))

        statuses = {}
        exact_encodings = set()
        for name, (status, encoding) in by_cell.items():
            statuses[name] = status
            if status == "exact":
                exact_encodings.add(encoding)
        differs = tuple(name for name, status in statuses.items() if status != "exact")
        if differs:
            wrong += 1
        models[family] = ModelRecord(
            digest="",
            rope_types=tuple(sorted(exact_encodings)),
            most="exact",
            others={"differs": {"logits": differs}} if differs else {},
        )
        print(f"{family}: {statuses}", flush=True)
    version = arch_table().version
    save(Record("llama-cpp-gguf", version, date.today().isoformat(), HOW, models))
    return int(wrong > 0)


def _cells(source: Path, folder: Path) -> Iterator[tuple[str, tuple[str, str]]]:
    """Extend a checkpoint by each method as a GGUF file, and compare llama.cpp with transformers.

    Args:
        source: The checkpoint.
        folder: Where the files are written.

    Yields:
        The name of the cell, such as "yarn / native", and ("exact" or "differs", the encoding).
        Methods that the architecture cannot hold are left out.
    """
    spec = inspect_source(open_source(str(source))).spec
    unscaled = of_transformers(source, None)
    for number, (method, recipe) in enumerate(METHODS.items()):
        try:
            recipe.schedule(spec)
            plan: Plan = bake(source, recipe, folder / f"{number}.gguf")
        except (RopeconvError, RecipeError):
            continue
        reference = of_transformers(source, plan)
        loaded = of_llamacpp(folder / f"{number}.gguf")

        # the control: the model without the method must be far away from the reference
        worst = max(figures.kl_mean for figures in beyond(reference, loaded))
        control = min(figures.kl_mean for figures in beyond(reference, unscaled))
        is_exact = worst < ALLOWED and control > 30 * worst
        encoding = plan.result.encoding
        status = "exact" if is_exact else "differs"
        yield f"{method} / {encoding}", (status, encoding)


if __name__ == "__main__":
    sys.exit(main())
