"""The general.* keys of a GGUF file, on name, size, licence and origin of a model, and its file name."""

from __future__ import annotations

import logging
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...formats.gguf.values import ARRAY, FORMATS, STRING, GgufValue, array, string, strings, u32

if TYPE_CHECKING:
    from gguf import GGUFWriter, Metadata
    from gguf.gguf_writer import GGUFValue


def values_of(fill: Callable[[GGUFWriter], None]) -> dict[str, GgufValue]:
    """Return the keys that `fill` adds to a gguf.GGUFWriter, without the architecture that every writer starts with."""
    import gguf

    writer = gguf.GGUFWriter(None, "llama")
    fill(writer)
    values = {key: _value(entry) for shard in writer.kv_data for key, entry in shard.items()}
    values.pop("general.architecture", None)
    return values


def _value(entry: GGUFValue) -> GgufValue:
    import gguf

    kind, value = int(entry.type), entry.value
    if kind == STRING:
        return string(value)
    if kind != ARRAY:
        return GgufValue(kind, struct.pack("<" + FORMATS[kind], value))
    element = int(entry.sub_type if entry.sub_type is not None else gguf.GGUFValueType.get_type(value[0]))
    if element == STRING:
        return strings([item if isinstance(item, bytes) else str(item).encode() for item in value])
    return array(element, value)


MOST_CARD = 100_000
"""Bytes of front matter: YAML is read at some 100 kB per second."""
END = re.compile(rb"\n---\r?(\n|$)")
ANCHOR = re.compile(rb"[\s\[,:-]&\w")
FILE_TYPES = {"F32": 0, "F16": 1, "Q8_0": 7, "BF16": 32}


@dataclass(frozen=True)
class Parameters:
    """Numbers of weights. total: of a model. expert: of one of its experts in all layers. experts: their number."""

    total: int
    expert: int = 0
    experts: int = 0

    @property
    def label(self) -> str:
        """The size as in names of models: 8B, or 8x7B with the weights of one expert and the others."""
        import gguf

        return str(gguf.size_label(self.total, self.total - self.expert * self.experts, self.expert, self.experts))


def describe(folder: Path, name: str, repository: str | None, label: str, parameters: Parameters) -> Metadata:
    """Return gguf-py's Metadata of a model, from its card and its name, with the method as fine-tune.

    folder: with the model card. repository: owner/name on the Hub, None for others. label: of the method, or empty:
    then the result is the source itself, and has its base models.
    """
    import gguf

    for logger in ("gguf", "metadata"):  # gguf-py says on stderr what it makes of a card
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    origin = (Path(repository or name), parameters.total)
    try:
        card = gguf.Metadata.load_model_card(folder) if _readable(folder / "README.md") else {}
        metadata = gguf.Metadata.apply_metadata_heuristic(gguf.Metadata(), card, {}, *origin)
        values_of(metadata.set_gguf_meta_model)
    except Exception:  # from gguf-py, for cards of unexpected types
        metadata = gguf.Metadata.apply_metadata_heuristic(gguf.Metadata(), {}, {}, *origin)
    metadata.name = metadata.name or name
    metadata.size_label = metadata.size_label or parameters.label
    base = {"name": metadata.name}
    if repository:
        owner, short = repository.split("/", 1)
        base |= {"name": short, "organization": owner, "repo_url": f"https://huggingface.co/{repository}"}
    if label:
        metadata.base_models = [base]
    metadata.basename = metadata.basename or metadata.name
    metadata.finetune = "-".join(filter(None, (metadata.finetune, label))) or None
    metadata.name = " ".join(filter(None, (metadata.name, label)))
    return metadata


def _readable(card: Path) -> bool:
    """Whether the front matter of a model card is short and without anchors, which can multiply it."""
    if not card.is_file():
        return False
    with card.open("rb") as file:
        text = file.read(MOST_CARD + 1)
    end = END.search(text, 3)
    return end is not None and end.start() <= MOST_CARD and ANCHOR.search(text, 0, end.start()) is None


def metadata_keys(found: Metadata, outtype: str, quantized_by: str | None = None) -> dict[str, GgufValue]:
    """Return the general.* keys of a file. found: gguf-py's Metadata. outtype: type of most weights, such as F16."""
    found.quantized_by = quantized_by
    keys = {"general.type": string("model"), **values_of(found.set_gguf_meta_model)}
    return keys | {"general.file_type": u32(FILE_TYPES[outtype]), "general.quantization_version": u32(2)}


def file_name(found: Metadata, outtype: str) -> str:
    """Return the file name by GGUF's convention: base name, size, fine-tune, version and type of the weights.

    https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#gguf-naming-convention
    """
    import gguf

    name = gguf.naming_convention(found.name, found.basename, found.finetune, found.version, found.size_label, outtype)
    return f"{name}.gguf"
