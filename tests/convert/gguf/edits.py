"""Plans of GGUF files without a model, and what they change, decoded."""

from pathlib import Path
from typing import Any

import numpy as np

from ropeconv.bake.gguf import GgufPlan
from ropeconv.convert.gguf_encoding import GgufModel
from ropeconv.rope.recipe import Recipe
from ropeconv.runtimes.llamacpp.read_header import rope_tensors

from ...support.baking import make_plan
from ...support.gguf_files import plain_tensors, write

FREQS, LONG, SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
QUERIES = {f"blk.{layer}.attn_q.weight": np.zeros((128, 128), np.float16) for layer in (0, 1)}
STRETCHED = {"context_length": 256, "rope.scaling.original_context_length": 64}
"""The lengths of every file that `write` makes, four times as long."""


def planned(
    folder: Path,
    arch: str,
    of: Recipe,
    extra: dict[str, Any] | None = None,
    more: Any = None,
    **options: Any,
) -> GgufPlan:
    """The plan of a file. extra: more keys. more: further tensors."""
    source = write(folder / "model.gguf", arch, extra, {**plain_tensors(), **(more or {})})
    plan = make_plan(source, of, folder / "out.gguf", **options)
    assert isinstance(plan, GgufPlan)
    return plan


def before(plan: GgufPlan) -> GgufModel:
    file = plan.source.file
    return GgufModel(file.header, file.tensors, rope_tensors(file))


def keys(plan: GgufPlan) -> dict[str, Any]:
    """The keys that are set, without the architecture in front, decoded."""
    edit = plan.result.edit
    after = before(plan).after(plan.result.edit)
    return {key.removeprefix(f"{plan.result.arch}."): after.get(key) for key in edit.values}


def vectors(plan: GgufPlan) -> dict[str, list[float]]:
    return {
        name: vector.tolist()
        for name, vector in before(plan).after(plan.result.edit).vectors.items()
    }
