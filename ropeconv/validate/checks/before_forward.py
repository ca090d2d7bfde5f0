"""What can be checked before any forward pass: the files against the receipt, frequencies, and folded weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...encode.checkpoint.ministral3 import NAME as SWAPPED
from ...encode.fold.arithmetic import scaled
from ...encode.fold.dtypes import STORED, widened
from ...encode.fold.placement import fold
from ...engines.probe import cache as record
from ...engines.probe.client import Probe
from ...errors import BadSource, Disagreement
from ...families.config import STORED_ROPE, detect
from ...formats.digest import sha256
from ...formats.index import INDEX
from ...formats.safetensors import Header, read_header
from ...receipts.read import read_receipt
from ...rope.schedule import Schedule
from ...rope.spec import RopeSpec
from ...sources import Source, open_checkpoint
from ..comparison import schedule_of
from .frequencies import FrequencyCheck, compare
from .trust import needs_trust

CHECKED = (".json", ".py", ".safetensors")


def check_first(
    baked: Path, against: str, ignore_receipt: bool = False, trust_remote_code: bool = False
) -> FrequencyCheck:
    """Every check that needs no forward pass of the model.

    trust_remote_code: run code in `baked` that ropeconv has not written. Raises BadSource where files are not those of
    the receipt (unless `ignore_receipt`) or the two do not belong together, Disagreement where the installed
    transformers computes other frequencies or the folded weights are wrong.
    """
    source, receipt = open_checkpoint(against), read_receipt(baked)
    schedule, spec, _ = schedule_of(baked, source)
    if not ignore_receipt:
        check_files(baked, receipt)
    _check_same_model(baked, source)
    _check_tokenizer(baked, source)
    own = needs_trust(baked, trust_remote_code)
    said = receipt["in_config"]
    told = replace(schedule, attention_factor=said["attention_factor"], softmax_scale=said["softmax_scale"])
    found = compare(_answer(baked, schedule.context, own), told, spec, said["written_as"])
    if receipt.get("encoding") == "weights":
        check_fold(baked, source, schedule, spec, receipt)
    return found


def _answer(baked: Path, context: int, own: bool) -> dict[str, Any]:
    """What the installed transformers makes of a folder; from the record where `apply` has asked already."""
    text = (baked / "config.json").read_text("utf-8")
    name = "" if own else record.key(text, str(json.loads(text).get("model_type", "")), context)
    known = record.recall(name)
    if known is None:
        with Probe() as probe:
            known = probe.ask(baked, context, own)
        record.keep(name, known)
    return known


def check_files(baked: Path, receipt: dict[str, Any]) -> None:
    """Raises BadSource where a file is not what the receipt says, by its size, and by sha256 where that is known."""
    for file in receipt["files"]:
        path = baked / file["name"]
        if path.suffix not in CHECKED:
            continue
        if not path.is_file():
            raise BadSource(f"{path} is not there any more; bake anew")
        if path.stat().st_size != file["size"] or (file["sha256"] and sha256(path) != file["sha256"]):
            raise BadSource(
                f"{path} is not the file that ropeconv wrote; bake anew, or pass --ignore-receipt if it was edited on "
                "purpose"
            )


def _check_same_model(baked: Path, source: Source) -> None:
    """Raises BadSource where the weights are not of one shape, or of an architecture that no encoding turns into."""
    ours = {name: t for path in baked.glob("*.safetensors") for name, t in read_header(path).tensors.items()}
    for name, tensor in source.tensors.items():
        if name not in ours:
            raise BadSource(f"{baked} has no {name}, which {source.reference} has; name the source it was made from")
        if ours[name].shape != tensor.shape:
            raise BadSource(
                f"{name} is {list(ours[name].shape)} in {baked} and {list(tensor.shape)} in {source.reference}; name "
                "the source it was made from"
            )
    one = source.config().get("model_type")
    other = json.loads((baked / "config.json").read_text("utf-8")).get("model_type")
    if one != other and other not in (f"{one}{STORED_ROPE}", SWAPPED):
        raise BadSource(f"{baked} is a {other} and {source.reference} a {one}; name the source it was made from")


def _check_tokenizer(baked: Path, source: Source) -> None:
    one, other = source.text("tokenizer.json"), baked / "tokenizer.json"
    if one is not None and other.is_file() and other.read_text("utf-8") != one:
        raise BadSource(f"{other} is not the tokenizer of {source.reference}; name the source it was made from")


def check_fold(baked: Path, source: Source, schedule: Schedule, spec: RopeSpec, receipt: dict[str, Any]) -> None:
    """Raises Disagreement where a folded tensor is not the source's, times what the schedule says, and rounded once."""
    config = source.config()
    told = fold(schedule, spec, detect(config), config, source.tensors, receipt["fold"]["side"])
    ours = {path.name: read_header(path) for path in baked.glob("*.safetensors")}
    for name in sorted({scaling.tensor for scaling in told.scalings}):
        old, dtype = _numbers(source.path, source.headers, name)
        new, stored = _numbers(baked.joinpath, ours, name)
        wanted = old if stored == dtype else widened(old, dtype)
        for scaling in told.scalings:
            if scaling.tensor == name:
                for start, stop in scaling.spans:
                    wanted[start:stop] = scaled(wanted[start:stop], stored, scaling.factor, scaling.plus_one)
        if not np.array_equal(wanted.view(np.uint8), new.view(np.uint8)):
            raise Disagreement(f"{name} of {baked} is not its source's with the amplitude folded in; bake anew")


def _numbers(path: Any, headers: Mapping[str, Header], name: str) -> tuple[NDArray[Any], str]:
    for shard, header in headers.items():
        if name in header.tensors:
            tensor, stored = header.tensors[name], np.dtype(STORED[header.tensors[name].dtype])
            count, start = (tensor.stop - tensor.start) // stored.itemsize, header.data_start + tensor.start
            return np.fromfile(path(shard), stored, count, offset=start), tensor.dtype
    raise BadSource(f"{INDEX} and the shards have no {name}; fetch or bake the checkpoint anew")
