"""Makes the plan of an output again, from its receipt and its source."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from fnmatch import fnmatch
from typing import Any

from ..bake import FoldTarget, GgufTarget, Plan, PlannedFile, Target, make_plan
from ..encode import all_encodings
from ..errors import BadSource, RopeconvError
from ..export.quantise import FTYPES
from ..receipts import Receipt, embedded, parse_receipt
from ..receipts.receipt import FileRecord
from ..rope.recipe import Recipe
from ..sources import RECEIPT, GgufSource
from ..sources.folder import FolderSource
from ..sources.source import OTHER_WEIGHTS
from ..validate.comparison import Comparison
from ..version import __version__
from .gguf import is_gguf

FILE_TYPES = {0: "f32", 1: "f16", 32: "bf16", 7: "q8_0"} | {number: name for name, (number, _) in FTYPES.items()}
"""general.file_type of GGUF, llama.h's llama_ftype, and the outtype that gives it."""
OF_FILES = ("files", "check", "validation", "servers", "evaluations")
"""Keys of a receipt that are known only after the files are written."""
ALWAYS = ("recipe", "encoding", "schedule", "fold", "in_config", "log_n_approximation", "before", "original")
"""Keys of a receipt that are the same in every version."""
ADDED = ("before", "original")
"""Those of them that earlier receipts lack, or have without some of their fields."""
LATER = ("original_context", "effective_length", "reach")
"""Fields of `before` that earlier receipts lack."""
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
    older = receipt.ropeconv != __version__
    keys = ALWAYS if older else tuple(set(made.to_dict()) - {*OF_FILES, "source"})
    wanted, said = _plain(made), _plain(receipt)
    if older:
        _drop_unsaid(wanted, said)
    unlike = [key for key in keys if wanted[key] != said[key] and (key != "target" or receipt.target is not None)]
    # of another kind, it copies what was converted, or converts what was copied
    same = (receipt.source.kind in CONVERTED) == (plan.source.kind in CONVERTED)
    if plan.is_folder and receipt.target is not None and _files(receipt.files, same) != _files(plan.files, same):
        unlike.append("list of files")
    return unlike


def _files(files: Iterable[PlannedFile | FileRecord], actions: bool) -> list[tuple[str, str, str]]:
    """Names and origins of files, and with `actions` what was done to make them."""
    return sorted((one.name, one.origin or one.name, one.action if actions else "") for one in files)


def _drop_unsaid(wanted: dict[str, Any], said: dict[str, Any]) -> None:
    """Drops what a receipt of another version does not say from both receipts, in place."""
    for key in ADDED:
        if said[key] is None:
            wanted[key] = None
    if wanted["before"] and said["before"]:
        unsaid = {*TEXTS, *(key for key in LATER if not said["before"][key])}
        for side in (wanted, said):
            side["before"] = {key: value for key, value in side["before"].items() if key not in unsaid}


def _receipt_text(plan: Plan) -> str:
    return str(plan.edit.values[RECEIPT].decode()) if is_gguf(plan) else embedded(plan.receipt())


def _plain(receipt: Receipt) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(json.dumps(receipt.to_dict()))
    original = data["original"]
    if isinstance(original, dict) and receipt.original is not None:
        original.pop("source")
    return data


def _targets(comparison: Comparison) -> Iterator[Target]:
    """The target that the receipt records, or for older receipts those that it may have been."""
    receipt, said = comparison.receipt, comparison.receipt.target
    from_gguf = isinstance(comparison.source, GgufSource)
    if said is not None:
        target = Target(
            to=None if from_gguf else said.to,
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
        return
    for replaced in (False, True):
        plain = Target(
            encoding=receipt.encoding, allow_approximate=receipt.log_n_approximation is not None, replace=replaced
        )
        if comparison.baked.suffix != ".gguf":
            yield _of_folder(comparison, plain)
            continue
        for encoding in dict.fromkeys(("auto", receipt.encoding)):
            yield _of_gguf(comparison, replace(plain, encoding=encoding), from_gguf)


def _of_folder(comparison: Comparison, plain: Target) -> Target:
    receipt = comparison.receipt
    names = [file.name for file in receipt.files]
    fold = FoldTarget()
    encoding = all_encodings().get(receipt.encoding)
    if receipt.fold is not None and encoding is not None and encoding.folds:
        fold = FoldTarget(receipt.fold.fold_into, "f32" if _widened(comparison, receipt.fold.tensors) else None)
    other = any(fnmatch(name, pattern) for name in names for pattern in OTHER_WEIGHTS)
    return replace(plain, fold=fold, all_files=other)


def _of_gguf(comparison: Comparison, plain: Target, from_gguf: bool) -> Target:
    file = GgufSource(comparison.baked).file
    arch = file.get("general.architecture")
    carrier = str(arch) if plain.encoding == "carrier" else None
    if from_gguf:
        return replace(plain, gguf=GgufTarget(carrier=carrier))
    outtype = FILE_TYPES.get(file.get("general.file_type", -1))
    return replace(plain, to="gguf", gguf=GgufTarget(outtype, file.get("tokenizer.ggml.pre"), carrier))


def _widened(comparison: Comparison, tensors: tuple[str, ...]) -> bool:
    """Whether tensors of the output are stored in 32 bits, and those of its source are not."""
    source = comparison.checkpoint.tensors
    ours = FolderSource(comparison.baked).tensors
    return any(name in source and ours[name].dtype == "F32" != source[name].dtype for name in tensors if name in ours)
