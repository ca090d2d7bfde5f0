"""Makes the plan of an output again, from its receipt and its source."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from ..bake import FoldTarget, GgufTarget, Plan, PlannedFile, Target, make_plan
from ..errors import BadSource, RopeconvError
from ..receipts import Receipt, embedded, parse_receipt
from ..receipts.receipt import FileRecord
from ..rope.recipe import Recipe
from ..sources import RECEIPT, GgufSource
from ..validate.comparison import Comparison
from ..version import __version__
from .gguf import is_gguf

OF_FILES = ("files", "check", "validation", "servers", "evaluations")
"""Keys of a receipt that are known only after the files are written."""
ALWAYS = ("recipe", "encoding", "schedule", "fold", "in_config", "log_n_approximation", "before", "original", "target")
"""Keys of a receipt that are the same in every version."""
CONVERTED = ("meta", "gguf")
"""Kinds of sources whose files are made and not copied."""
TEXTS = ("rope", "after")
"""Fields of `before` that are for people, and may be put otherwise in another version."""


def plan_again(comparison: Comparison) -> Plan:
    """The plan of an output.

    comparison: the output and its source. Raises BadSource where recipe and source give no plan with the schedule and
    the encoding of the receipt.
    """
    receipt, source = comparison.receipt, comparison.source
    recipe = Recipe.from_dict(receipt.recipe)
    named, source.name = source.name, receipt.source.name  # names of models are made of it
    problem = "it has another encoding"
    try:
        for target in _targets(comparison):
            try:
                plan = make_plan(source, recipe, replace(target, out=comparison.baked))
            except RopeconvError as refused:
                problem = str(refused)
                continue
            if plan.result.encoding == receipt.encoding and plan.schedule.digest == receipt.schedule.digest:
                return plan
    finally:
        source.name = named
    raise BadSource(
        f"{source.reference} and the recipe of {comparison.baked} give no such output ({problem}); name the source it "
        "was made from"
    )


def unlike_plan(plan: Plan, receipt: Receipt) -> list[str]:
    """Keys of a receipt that are not those of its plan. Paths of the source may differ, and texts of other versions."""
    made = parse_receipt(_receipt_text(plan), "the plan")
    wanted, said = _plain(made), _plain(receipt)
    keys = tuple(key for key in wanted if key not in (*OF_FILES, "source"))
    if receipt.ropeconv != __version__:
        keys = ALWAYS
        for data in (wanted, said):
            data["before"] = {key: value for key, value in data["before"].items() if key not in TEXTS}
    unlike = [key for key in keys if wanted[key] != said[key]]
    # of another kind, it copies what was converted, or converts what was copied
    same = (receipt.source.kind in CONVERTED) == (plan.source.kind in CONVERTED)
    if plan.is_folder and _files(receipt.files, same) != _files(plan.files, same):
        unlike.append("list of files")
    return unlike


def _files(files: Iterable[PlannedFile | FileRecord], actions: bool) -> list[tuple[str, str, str]]:
    """Names and origins of files, and with `actions` what was done to make them."""
    return sorted((one.name, one.origin or one.name, one.action if actions else "") for one in files)


def _receipt_text(plan: Plan) -> str:
    return str(plan.edit.values[RECEIPT].decode()) if is_gguf(plan) else embedded(plan.receipt())


def _plain(receipt: Receipt) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(json.dumps(receipt.to_dict()))
    if receipt.original is not None:
        data["original"].pop("source")
    return data


def _targets(comparison: Comparison) -> Iterator[Target]:
    """The target that the receipt records, and the same with the encoding that was chosen."""
    receipt, said = comparison.receipt, comparison.receipt.target
    target = Target(
        to=None if isinstance(comparison.source, GgufSource) else said.to,
        encoding=said.encoding,
        runtimes=said.runtimes,
        gguf=GgufTarget(said.outtype, said.pre, said.carrier, said.assume_arch_keys, said.quantized_by),
        fold=FoldTarget(said.fold_into, said.fold_dtype),
        allow_approximate=said.allow_approximate,
        all_files=said.all_files,
        replace=said.replace,
        dual_chunk=said.dual_chunk,
    )
    yield target
    if said.encoding == "auto":
        yield replace(target, encoding=receipt.encoding)  # tables of runtimes grow
