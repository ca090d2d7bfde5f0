"""Recipes, plans, outputs and validations in one line each, for tests that are about something
else.
"""

from pathlib import Path
from typing import Any

import ropeconv
from ropeconv.bake.plan import Plan
from ropeconv.convert.target import Target
from ropeconv.inspection.inspection import Inspection
from ropeconv.models.gguf import GgufSource
from ropeconv.models.source import Source
from ropeconv.rope.methods.method import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.validate.validation import Validation

Opened = Source | GgufSource


def recipe_of(method: str, *values: Any, **modifiers: Any) -> Recipe:
    """A recipe by the name of its method and the values that the method takes on the command
    line.
    """
    return Recipe(REGISTRY[method](*values), **modifiers)


AS_IS = recipe_of("as-is")
YARN_16 = recipe_of("yarn", 16.0)
YARN, MIXED, NTK, LINEAR = (recipe_of(name, 4.0) for name in ("yarn", "mixed", "ntk", "linear"))


def make_plan(
    source: Path | str | Opened, recipe: Recipe, out: Path | None = None, **options: Any
) -> Plan:
    """A plan for a source, which may be a path. options: of `Target`."""
    opened = source if isinstance(source, Opened) else ropeconv.open_source(str(source))
    return ropeconv.make_plan(opened, recipe, Target(out=out, **options))


def inspected(source: Path | str) -> Inspection:
    """What is read of a source at a path or on the Hub."""
    return ropeconv.inspect_source(ropeconv.open_source(str(source)))


def apply(plan: Plan, **options: Any) -> Path:
    """Writes a plan without asking transformers about it, which takes seconds."""
    return ropeconv.apply(plan, check=False, **options).path


def write_config(plan: Plan, folder: Path) -> None:
    text = next(file.text for file in plan.files if file.name == "config.json")
    (folder / "config.json").write_text(text or "")


def validate(baked: Path, against: Path | str, **settings: Any) -> Validation:
    comparison = ropeconv.Comparison.open(baked, str(against))
    return ropeconv.validate_checkpoint(comparison, ropeconv.Settings(**settings))


def stored_as(folder: Path, dtype: str) -> dict[str, Any]:
    """Stores the weights of a checkpoint in another dtype, and returns its tensors."""
    import safetensors.torch
    import torch

    path = folder / "model.safetensors"
    tensors = {
        name: tensor.to(getattr(torch, dtype))
        for name, tensor in safetensors.torch.load_file(path).items()
    }
    safetensors.torch.save_file(tensors, path, {"format": "pt"})
    return tensors


def changed_weights(folder: Path, part: str, factor: float) -> Path:
    """Multiplies the weights whose names contain `part`, and returns the folder."""
    import safetensors.torch

    path = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    tensors = {
        name: tensor * factor if part in name else tensor for name, tensor in tensors.items()
    }
    safetensors.torch.save_file(tensors, path, {"format": "pt"})
    return folder


def replaced(path: Path, old: str, new: str) -> None:
    """Replaces a part of a text file, which it has to contain."""
    text = path.read_text()
    assert old in text, old
    path.write_text(text.replace(old, new))
