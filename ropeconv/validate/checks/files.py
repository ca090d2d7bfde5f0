"""Compares the files of an output with its receipt, its source and the tokenizer of the source."""

from __future__ import annotations

import json
from pathlib import Path

from ...encode.checkpoint import Encoding
from ...errors import BadSource
from ...formats.digest import sha256
from ...formats.safetensors import read_header
from ...receipts import Receipt
from ...sources import Source

CHECKED = (".json", ".py", ".safetensors")


def check_files(baked: Path, receipt: Receipt, weights: bool = True) -> None:
    """Raises BadSource where a file is missing, or differs from the receipt in size or (where known) sha256.

    baked: the output. receipt: of it. weights: whether the sha256 of weights is compared too, which takes long.
    """
    for file in receipt.files:
        path = baked / file.name
        if path.suffix not in CHECKED:
            continue
        if not path.is_file():
            raise BadSource(f"{path} is not there any more; run apply again")
        known = file.sha256 if weights or path.suffix != ".safetensors" else None
        if path.stat().st_size != file.size or (known and sha256(path) != known):
            raise BadSource(
                f"{path} is not the file that ropeconv wrote; run apply again, or pass --ignore-receipt if it was "
                "edited on purpose"
            )


def check_same_model(baked: Path, source: Source, encoding: Encoding) -> None:
    """Raises BadSource where tensors are missing or of another shape, or the model type is not that of the encoding."""
    ours = {name: t for path in baked.glob("*.safetensors") for name, t in read_header(path).tensors.items()}
    for name, tensor in source.tensors.items():
        if name not in ours:
            raise BadSource(f"{baked} has no {name}, which {source.reference} has; name the source it was made from")
        if ours[name].shape != tensor.shape:
            raise BadSource(
                f"{name} is {list(ours[name].shape)} in {baked} and {list(tensor.shape)} in {source.reference}; name "
                "the source it was made from"
            )
    one = str(source.config().get("model_type"))
    other = str(json.loads((baked / "config.json").read_text("utf-8")).get("model_type"))
    if other not in (one, encoding.model_type(one)):
        raise BadSource(f"{baked} is a {other} and {source.reference} a {one}; name the source it was made from")


def check_tokenizer(baked: Path, source: Source) -> None:
    """Raises BadSource where tokenizer.json of the output is not that of the source."""
    one, other = source.text("tokenizer.json"), baked / "tokenizer.json"
    if one is not None and other.is_file() and other.read_text("utf-8") != one:
        raise BadSource(f"{other} is not the tokenizer of {source.reference}; name the source it was made from")
