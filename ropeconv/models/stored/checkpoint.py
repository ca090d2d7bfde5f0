"""DequantisedCheckpoint: a checkpoint with quantised weights, presented in float32.

Read `dequantised` first. Weights are computed when they are read, row by row, so that memory does
not depend on the size of the model. `form.py` says how a form is described, and `forms/` has them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path

from ...errors import BadSource, UnsupportedBake
from ...formats import jsontext
from ...formats.disk import FileIdentity
from ...formats.safetensors import INDEX, STORED, Tensor
from ..folder import ConvertedShard, ConvertedSource, ConvertedTensor
from ..schema import Config
from ..source import Source, SourceFile
from .form import DOWNLOAD_AGAIN, FORMS, FROM_FLOATS, QUANTISATION_KEYS, StoredTensors, StoredWeight

PIECE = 1 << 22
"""Bytes of float32 that `blocks` makes at a time."""


@dataclass(frozen=True)
class DequantisedTensor(ConvertedTensor):
    """A tensor of the checkpoint: a weight in float32, or one that is not quantised."""

    file: str
    stored: Tensor
    """Its entry in the header of the file, or that of the tensor whose place it has."""

    weight: StoredWeight | None = None
    """None for a tensor that is copied."""


def dequantised(source: Source) -> Source:
    """Return a checkpoint whose quantised weights are read as float32.

    Args:
        source: Any checkpoint; one without such weights is returned unchanged.

    Raises:
        BadSource: If the tensors of a weight are missing, or of unexpected shapes.
        UnsupportedBake: If its quantiser is not known.
    """
    # STORED are the float types: a checkpoint that has only these is not quantised
    is_quantised = any(tensor.dtype not in STORED for tensor in source.tensors.values())
    if not is_quantised:
        return source
    # kept on the source, so that the weights are found once for all outputs of a run
    if source.in_float32 is None:
        source.in_float32 = _read_in_float32(source)
    return source.in_float32


def _read_in_float32(source: Source) -> Source:
    """A checkpoint with quantised weights in float32; itself if it has none that are computed."""
    stored = StoredTensors(source)
    weights, titles = _find(stored)
    _refuse_others(stored)
    if not weights:
        return source
    return DequantisedCheckpoint(stored, weights, titles)


@dataclass(frozen=True)
class QuantisedWeights:
    """The quantised weights of a checkpoint."""

    stored: StoredTensors
    by_name: Mapping[str, StoredWeight]


def quantised_weights(source: Source) -> QuantisedWeights | None:
    """Return the quantised weights of a checkpoint; None for one without any.

    Raises:
        BadSource: As `dequantised`.
    """
    if all(tensor.dtype in STORED for tensor in source.tensors.values()):
        return None
    stored = StoredTensors(source)
    weights, _ = _find(stored)
    return QuantisedWeights(stored, weights) if weights else None


def _find(stored: StoredTensors) -> tuple[dict[str, StoredWeight], list[str]]:
    """Find the quantised weights of a checkpoint.

    A quantised weight is stored as several tensors. AWQ, for example, has qweight, qzeros and
    scales for each. All tensors of weights that are found are removed from `stored.remaining`.

    Returns:
        The weights by name, and the usual names of their forms, such as ["AWQ"].
    """
    weights: dict[str, StoredWeight] = {}
    titles = []
    for form in FORMS.values():
        if not form.applies(stored):
            continue
        found = list(form.find(stored))
        for weight in found:
            if weight.name in weights:
                raise BadSource(f"the checkpoint has {weight.name} in two forms; {DOWNLOAD_AGAIN}")
            weights[weight.name] = weight
        _take(stored, found)
        if not found:
            continue

        titles.append(form.title)
        # tensors that no weight of this form needs, such as scales of activations
        unused = [name for name in stored.remaining if name.endswith(form.unused)]
        for name in unused:
            del stored.remaining[name]
    return weights, titles


def _take(stored: StoredTensors, weights: Collection[StoredWeight]) -> None:
    """Take the tensors of weights away from those that are left for other forms."""
    for weight in weights:
        for name in weight.uses:
            stored.remaining.pop(name, None)


def _refuse_others(stored: StoredTensors) -> None:
    """Refuse weights of a quantiser that is not known, whatever their tensors are called."""
    known = {"", "mxfp4"}
    for form in FORMS.values():
        known.update(form.methods)
    left = [tensor for tensor in stored.remaining.values() if tensor.dtype not in STORED]
    if left and stored.method not in known:
        raise UnsupportedBake(
            f"{left[0].name} as {stored.method} stores it",
            "GGUF",
            f"weights are converted in the forms of {', '.join(sorted(known - {''}))}",
            FROM_FLOATS,
        )


class DequantisedCheckpoint(ConvertedSource[DequantisedTensor]):
    """A checkpoint with quantised weights, presented in float32.

    Args:
        stored: The stored tensors.
        weights: The weights that are computed from them, by name.
        titles: The usual names of their forms.
    """

    def __init__(
        self, stored: StoredTensors, weights: Mapping[str, StoredWeight], titles: Sequence[str]
    ) -> None:
        """Show these weights as float32 to readers, and the other tensors unchanged.

        Args:
            stored: The tensors of the checkpoint.
            weights: Its quantised weights by name.
            titles: The usual names of their forms, such as ["AWQ"].
        """
        inner = stored.source
        self.inner = inner
        self.reference = inner.reference
        self.name = inner.name
        self.kind = inner.kind
        self.commit = inner.commit
        self.treat_as = inner.treat_as
        self.as_draft = inner.as_draft
        self._stored = stored
        self._weights = weights
        self._titles = titles

    @property
    def identity(self) -> str:
        return self.inner.identity

    def identities(self, unread: Collection[str] = ()) -> Mapping[Path, FileIdentity | None]:
        return self.inner.identities(unread)

    @property
    def forms(self) -> str:
        """The usual names of the forms of its weights, joined by "and"."""
        return " and ".join(self._titles)

    @property
    def dtype(self) -> str:
        return "float32"

    @property
    def usual_dtype(self) -> str:
        """The type of the first matrix of 16 bits, as in llama.cpp's own converter, which takes
        scales as well (conversion/base.py, "heuristics"); F16 without any.
        """
        for tensor in self.inner.tensors.values():
            if len(tensor.shape) > 1 and tensor.dtype in ("BF16", "F16"):
                return tensor.dtype
        return "F16"

    @cached_property
    def texts(self) -> dict[str, str]:
        config = _without_settings(self.inner.config())
        return {"config.json": jsontext.dump(config), **self.index()}

    def text(self, name: str) -> str | None:
        return self.texts.get(name) or self.inner.text(name)

    def kept_files(self) -> list[SourceFile]:
        made = {*self.texts, *self.inner.weights(), INDEX}
        return [file for file in self.inner.files() if file.name not in made]

    def path(self, name: str) -> Path:
        return self.inner.path(name)

    def local(self, name: str) -> Path | None:
        return self.inner.local(name)

    @cached_property
    def shards(self) -> tuple[ConvertedShard[DequantisedTensor], ...]:
        """The files of the checkpoint as they would be with weights in float32.

        A quantised weight is stored as several tensors, such as qweight and scales. One tensor in
        float32 is in the place of the first of them (`uses[0]`), and the others are left out.
        """
        weight_by_first_tensor = {weight.uses[0]: weight for weight in self._weights.values()}
        not_quantised = self._stored.remaining  # tensors that belong to no quantised weight
        shards = []
        for file, header in self.inner.headers.items():
            tensors = []
            for tensor in sorted(header.tensors.values(), key=lambda tensor: tensor.start):
                weight = weight_by_first_tensor.get(tensor.name)
                if weight is not None:
                    in_float32 = DequantisedTensor(
                        name=weight.name,
                        dtype="F32",
                        shape=weight.shape,
                        file=file,
                        stored=tensor,
                        weight=weight,
                    )
                    tensors.append(in_float32)
                elif tensor.name in not_quantised:
                    unchanged = DequantisedTensor(
                        name=tensor.name,
                        dtype=tensor.dtype,
                        shape=tensor.shape,
                        file=file,
                        stored=tensor,
                    )
                    tensors.append(unchanged)
            shards.append(ConvertedShard(file, tuple(tensors)))
        return tuple(shards)

    def blocks(self, tensors: Sequence[DequantisedTensor]) -> Iterator[memoryview]:
        for tensor in tensors:
            size = tensor.stored.stop - tensor.stored.start
            if tensor.weight is not None:
                size = prod(tensor.shape) * 4
            for start in range(0, size, PIECE):
                yield memoryview(self.part(tensor, start, min(start + PIECE, size)))

    def part(self, tensor: DequantisedTensor, start: int, stop: int) -> bytes:
        """Return the bytes start .. stop - 1 of a tensor, a quantised weight in float32."""
        if tensor.weight is None:  # presented unchanged
            place = self.inner.headers[tensor.file].data_start + tensor.stored.start
            return self._stored.file_bytes(tensor.file, place + start, place + stop)

        # weights are computed in whole rows, of float32: those in which these bytes are
        columns = tensor.shape[-1]
        row_bytes = 4 * columns
        first_row = start // row_bytes
        end_row = -(-stop // row_bytes)  # rounded up
        data = tensor.weight.rows(self._stored, first_row, end_row).tobytes()

        # without what these rows have before the first byte and behind the last one
        rows_start = first_row * row_bytes
        rows_stop = rows_start + len(data)
        if start == rows_start and stop == rows_stop:  # no copy is needed
            return data
        return data[start - rows_start : stop - rows_start]

    def conversion_notes(self) -> tuple[str, ...]:
        return (f"its weights in {self.forms} are dequantised while they are read",)


def _without_settings(config: Config) -> Config:
    """The config of the same model with weights that are not quantised."""
    kept: Config = {key: value for key, value in config.items() if key not in QUANTISATION_KEYS}
    part = kept.get("text_config")
    if isinstance(part, dict):
        kept["text_config"] = {
            key: value for key, value in part.items() if key not in QUANTISATION_KEYS
        }
    return kept
