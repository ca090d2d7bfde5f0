"""Whether an output is of its source: its tensors, its model type and its tokenizer."""

from __future__ import annotations

from pathlib import Path

from ...encode.checkpoint import Encoding
from ...errors import BadSource
from ...formats.regular import read_text
from ...sources import Source
from ...sources.folder import FolderSource
from ...sources.length_limits import limits_in, raised

TOKENIZER = "tokenizer.json"


def check_same_model(baked: Path, source: Source, encoding: Encoding) -> None:
    """Raises BadSource where tensors are missing or of another shape, or the model type is not that of the encoding."""
    output = FolderSource(baked)
    ours = output.tensors
    if source.tensors and not ours:
        raise BadSource(
            f"{baked} has no weights, as an output of a config.json alone; bake the folder of the model, or put its "
            "weights beside the config"
        )
    for name, tensor in source.tensors.items():
        if name not in ours:
            raise BadSource(f"{baked} has no {name}, which {source.reference} has; name the source it was made from")
        if ours[name].shape != tensor.shape:
            raise BadSource(
                f"{name} is {list(ours[name].shape)} in {baked} and {list(tensor.shape)} in {source.reference}; name "
                "the source it was made from"
            )
    one, other = (str(folder.config().get("model_type")) for folder in (source, output))
    if other not in (one, encoding.model_type(one)):
        raise BadSource(f"{baked} is a {other} and {source.reference} a {one}; name the source it was made from")


def check_tokenizer(baked: Path, source: Source) -> None:
    """Raises BadSource where tokenizer.json of the output is not that of the source, but for limits of the length."""
    one, other = source.text(TOKENIZER), baked / TOKENIZER
    if one is None or not other.is_file():
        return
    found = read_text(other, str(other))
    if found != one and _without_limits(found) != _without_limits(one):
        raise BadSource(f"{other} is not the tokenizer of {source.reference}; name the source it was made from")


def _without_limits(text: str) -> bytes:
    content = text.encode()
    limits = limits_in(TOKENIZER, (content,), large=True)
    if not limits:
        return content
    splice = raised(limits, 0, content[limits[0].start : limits[-1].stop])
    return b"".join(splice.applied((content,)))
