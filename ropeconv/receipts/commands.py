"""The command lines that make an output again, from its receipt."""

from __future__ import annotations

import shlex

from ..errors import RopeconvError
from ..rope.flags import flags
from ..rope.recipe import Recipe
from ..sources import RECEIPT
from .receipt import Receipt
from .step import StepRecord, TargetRecord


def commands(receipt: Receipt) -> list[str]:
    """The `ropeconv apply` of each bake that led from the first source to the output of a receipt, in order.

    Local sources have the names that the receipts keep, without their folders. A recipe with lists of numbers is taken
    from the receipt itself, `--recipe ropeconv.json`.
    """
    first, made = receipt.first, []
    name, is_gguf = first.reference or first.name, first.kind == "gguf"
    for number, step in enumerate(receipt.steps, 1):
        words = apply_words(name, step, is_gguf, receipt.source.family or "")
        if number < len(receipt.steps):
            is_gguf = step.target.to == "gguf"
            name = f"step{number}{'.gguf' * is_gguf}"
            words += ["-o", name]
        made.append(shlex.join(words))
    return made


def apply_words(name: str, step: StepRecord, is_gguf: bool, family: str = "") -> list[str]:
    """The words of the `ropeconv apply` that makes a bake, without its place.

    name: of the source. step: the bake. is_gguf: whether the source is a GGUF file. family: that it was said to be of.
    """
    of_family = ["--family", family] if family else []
    return ["ropeconv", "apply", name, *of_family, *_recipe(step), *_target(step.target, is_gguf)]


def _recipe(step: StepRecord) -> list[str]:
    try:
        found = flags(Recipe.from_dict(step.recipe))
    except RopeconvError:  # of another version
        found = None
    return ["--recipe", RECEIPT] if found is None else found


def _target(target: TargetRecord, was_gguf: bool) -> list[str]:
    """The options of a target. was_gguf: whether its source is a GGUF file."""
    words = ["--to", target.to] if was_gguf != (target.to == "gguf") else []
    options = {
        "encoding": None if target.encoding == "auto" else target.encoding,
        "outtype": target.outtype, "pre": target.pre, "carrier": target.carrier, "fold-into": target.fold_into,
        "fold-dtype": target.fold_dtype, "quantized-by": target.quantized_by,
        "dual-chunk": target.dual_chunk,
    }  # fmt: skip
    for name, value in options.items():
        words += [f"--{name}", value] if value is not None else []
    for runtime in target.runtimes:
        words += ["--runtime", runtime]
    switches = ("allow_approximate", "all_files", "replace", "assume_arch_keys")
    return words + [f"--{name.replace('_', '-')}" for name in switches if getattr(target, name)]
