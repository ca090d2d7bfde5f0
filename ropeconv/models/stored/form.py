"""StoredForm, a form in which weights are stored quantised, and what it is asked for.

A form is one module in `forms/`. It finds its weights among the tensors of a checkpoint by what
`quantization_config` states and by the tensors that are there, and computes rows of them in
float32. Read `StoredForm` first, then `forms/awq.py`, a short one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import BadSource
from ...formats.files import open_regular
from ...formats.jsontext import parse
from ...formats.safetensors import Tensor, widen
from ...rope.registry import Registry
from ..schema import Config
from ..source import Source, read_exactly
from .numbers import EIGHT_BITS, NUMPY, POWERS

QUANTISATION_KEYS = ("quantization_config", "compression_config")
"""Keys of config.json that state how weights are stored; the second is an older name."""
MODELOPT_FILE = "hf_quant_config.json"
"""The file in which ModelOpt states it, older versions of it only there."""
DOWNLOAD_AGAIN = "download the checkpoint again"
FROM_FLOATS = (
    "run `ropeconv apply BASE` with the checkpoint that it was made from, which its model card"
    " names"
)
"""The command that helps where a form is not converted."""


@dataclass(frozen=True)
class RowScales:
    """Scales of some rows of a weight."""

    tensor: str
    """Their tensor."""

    spans: tuple[tuple[int, int], ...]
    """[start, stop) in the flat tensor."""


@dataclass(frozen=True)
class StoredWeight(ABC):
    """A weight that is computed from stored tensors."""

    name: str
    """Its name in a checkpoint that is not quantised."""

    shape: tuple[int, ...]
    """Its shape there, [rows, columns] or [matrices, rows, columns]."""

    uses: tuple[str, ...]
    """The names of the tensors it is computed from; the first one gives its place in a file."""

    @abstractmethod
    def rows(self, stored: StoredTensors, first: int, end: int) -> NDArray[np.float32]:
        """Return the rows first .. end - 1, counted through all matrices, [rows, columns].

        Raises:
            BadSource: The stored numbers contradict each other.
        """

    def scales_of_rows(self, stored: StoredTensors, first: int, end: int) -> RowScales | None:
        """Return the scales that the rows first .. end - 1 of a matrix have for themselves.

        Multiplying them multiplies these rows. None where other rows have scales in common with
        them, and where a form does not have such scales.
        """
        return None


class StoredForm(ABC):
    """A form in which weights are stored."""

    title: str
    """Its usual name."""

    methods: tuple[str, ...] = ()
    """The values of `quant_method` that state it."""

    unused: tuple[str, ...] = ()
    """Ends of the names of tensors that no weight needs, such as scales of activations."""

    def applies(self, stored: StoredTensors) -> bool:
        """Return whether a checkpoint may have weights of this form."""
        return stored.method in self.methods

    @abstractmethod
    def find(self, stored: StoredTensors) -> Iterator[StoredWeight]:
        """Yield the weights of this form among the tensors that no form before it has taken.

        Only shapes, dtypes and settings are read, no numbers, except a description of a few bytes.

        Raises:
            BadSource: A tensor is missing, or has an unexpected shape.
        """


FORMS: Registry[StoredForm] = Registry("stored form", "ropeconv.models.stored.forms")
"""The forms, in the order in which they take their tensors."""


def register(form: type[StoredForm]) -> type[StoredForm]:
    """Register a form under the name of its module."""
    return _add(form, 0)


def register_first(form: type[StoredForm]) -> type[StoredForm]:
    """Register a form that takes its tensors before others.

    NVFP4 has scales in FP8, and the form of FP8 would miss scales of them.
    """
    return _add(form, -1)


def _add(form: type[StoredForm], order: int) -> type[StoredForm]:
    FORMS.add(form.__module__.rpartition(".")[2], form(), form.__module__, order)
    return form


class StoredTensors:
    """The stored tensors of a checkpoint, and its statement on their form.

    Args:
        source: The checkpoint.

    Attributes:
        remaining: The tensors that no form has taken yet, by name.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.remaining: dict[str, Tensor] = dict(source.tensors)
        self._file_by_tensor = {}
        for file, header in source.headers.items():
            for name in header.tensors:
                self._file_by_tensor[name] = file
        self._path = lru_cache(maxsize=None)(source.path)
        """The path of a file, which is fetched and checked once."""
        self.whole = lru_cache(maxsize=16)(self._read_whole)
        """The numbers of a small tensor in float32, flat; the last ones are kept."""
        self.whole_numbers = lru_cache(maxsize=16)(self._read_whole_numbers)
        """The numbers of a small tensor of whole numbers, flat; the last ones are kept."""

    @cached_property
    def settings(self) -> Config:
        """The settings of the quantiser, e.g. {"quant_method": "awq", "bits": 4}; else empty.

        They are in config.json. Older versions of ModelOpt write them only to
        hf_quant_config.json.
        """
        config = self.source.config()
        for part in (config, config.get("text_config")):
            if not isinstance(part, dict):
                continue
            for key in QUANTISATION_KEYS:  # "quantization_config", or its older name
                settings = part.get(key)
                if isinstance(settings, dict):
                    return dict(settings)

        text = self.source.text(MODELOPT_FILE)
        if text is None:
            return {}
        # ModelOpt does not name itself in its own file
        settings = parse(text, MODELOPT_FILE).get("quantization")
        if not isinstance(settings, dict):
            settings = {}
        return {"quant_method": "modelopt", **settings}

    @property
    def method(self) -> str:
        """The quantiser by `quant_method`, "" where none is stated."""
        method = self.settings.get("quant_method")
        if not method and self.settings.get("quant_algo"):  # ModelOpt before 0.29
            return "modelopt"
        return str(method or "")

    def tensor(self, name: str, of: str) -> Tensor:
        """Return a tensor without which another one cannot be read, such as its scales.

        Args:
            name: The name of the tensor.
            of: The name of the other one, for the message.

        Raises:
            BadSource: The checkpoint does not have it.
        """
        tensor = self.source.tensors.get(name)
        if tensor is None:
            raise BadSource(f"{of} has no {name}; {DOWNLOAD_AGAIN}")
        return tensor

    def file(self, name: str) -> str:
        """Return the name of the file of a tensor."""
        return self._file_by_tensor[name]

    def numbers(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Return the stored numbers start .. stop - 1 of a tensor, as numpy reads them."""
        tensor = self.source.tensors[name]
        kind = np.dtype(NUMPY[tensor.dtype])
        if stop is None:
            stop = prod(tensor.shape)
        raw = self.data(name, start * kind.itemsize, stop * kind.itemsize)
        return np.frombuffer(raw, kind)

    def rows(self, name: str, first: int, end: int) -> NDArray[Any]:
        """Return stored rows first .. end - 1 of a tensor, which follow each other in the file."""
        columns = self.source.tensors[name].shape[-1]
        return self.numbers(name, first * columns, end * columns).reshape(-1, columns)

    def columns(self, name: str, first: int, end: int) -> NDArray[Any]:
        """Return stored columns first .. end - 1 of a matrix, which are apart in the file."""
        tensor = self.source.tensors[name]
        kind = np.dtype(NUMPY[tensor.dtype])
        file = self.file(name)
        start = self.source.headers[file].data_start + tensor.start
        path = self._path(file)
        # a mapped file that is cut off while it is read would end the process
        if path.stat().st_size < start + tensor.stop - tensor.start:
            raise BadSource(f"{file} was cut off while it was read; {DOWNLOAD_AGAIN}")
        # mapped for these columns only, so that the pages of others do not stay in memory
        matrix = np.memmap(path, kind, "r", start, tensor.shape)
        return np.array(matrix[:, first:end])

    def floats(self, numbers: NDArray[Any], name: str) -> NDArray[np.float32]:
        """Return the scales of quantised weights in float32, from the form that a file has.

        Args:
            numbers: The stored numbers; for F8 and U8, their bytes.
            name: The name of the tensor that they are of.

        Raises:
            BadSource: The dtype of the tensor is not one of scales.
        """
        dtype = self.source.tensors[name].dtype
        decoded: NDArray[np.float32]
        if dtype in ("F8_E8M0", "U8"):  # exponents of two
            decoded = POWERS[numbers]
            return decoded
        if dtype == "F8_E4M3":
            decoded = EIGHT_BITS[dtype][numbers]
            return decoded
        if dtype in ("F32", "F16", "BF16"):
            return widen(numbers, dtype)
        raise BadSource(
            f"{name} is {dtype}, and scales are F32, F16, BF16, F8_E4M3 or F8_E8M0; dequantise the"
            " checkpoint with its own tools"
        )

    def data(self, name: str, start: int, stop: int) -> bytes:
        """Return bytes start .. stop - 1 of a stored tensor, whose file is fetched as a whole."""
        file = self.file(name)
        tensor = self.source.tensors[name]
        place = self.source.headers[file].data_start + tensor.start
        return self.file_bytes(file, place + start, place + stop)

    def file_bytes(self, file: str, start: int, stop: int) -> bytes:
        """Return bytes of a stored file, which is fetched as a whole: all rows are needed."""
        with open_regular(self._path(file)) as opened:
            return read_exactly(opened, file, start, stop)

    def description(self, name: str) -> str:
        """Return the text that bitsandbytes stores as the bytes of a tensor.

        The file of the tensor is not downloaded as a whole.

        Raises:
            BadSource: It is not text.
        """
        file = self.file(name)
        tensor = self.source.tensors[name]
        place = self.source.headers[file].data_start + tensor.start
        raw = self.source.read(file, place, place + tensor.stop - tensor.start)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise BadSource(f"{name} is not text; {DOWNLOAD_AGAIN}") from None

    def _read_whole(self, name: str) -> NDArray[np.float32]:
        """The numbers of a tensor of scales in float32, flat."""
        return self.floats(self.numbers(name), name)

    def _read_whole_numbers(self, name: str) -> NDArray[np.int64]:
        """The numbers of a tensor of indices or sizes, flat.

        Raises:
            BadSource: They are not whole numbers, or below 0.
        """
        tensor = self.source.tensors[name]
        numbers = self.numbers(name).astype(np.int64) if tensor.dtype in ("I32", "I64") else None
        if numbers is None or numbers.size == 0 or numbers.min() < 0:
            raise BadSource(f"{name} has no whole numbers from 0 on; {DOWNLOAD_AGAIN}")
        return numbers
