"""Runner, the interface to what runs the rows of an evaluation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from ...engines.engine import Engine, Output
from ...engines.transformers.load import DeviceSpec, device_spec, stored_dtype
from ...formats.disk import human
from ...formats.jsontext import JsonObject
from ...inspection.kv_cache import KvCache
from ..row import Row
from ..texts import Tokenizer


def memory_sentence(weights: int, cache: KvCache | None, tokens: int, width: int) -> str:
    """The memory that a run takes.

    weights: bytes of the weights. cache: of the model, None where it is not known. tokens: of the longest sequence.
    width: bytes of a number in the cache.
    """
    said = f"The weights take {human(weights)} of memory"
    if cache is None:
        return f"{said}."
    size = next(iter(cache.bytes(tokens).values())) * width // cache.dtypes[0].size
    return f"{said}, keys and values of {tokens:,} tokens {human(size)}."


class Runner(ABC):
    """Runs the rows of an evaluation, one at a time.

    swaps: whether another row costs much less than another sequence, so that every sequence is read by all rows before
    the next one. runtime: name and version. device, dtype: where and in which precision it computes, for the result.
    source: identity of the model, for the journal. trained: context of the unscaled model, in tokens. tokenizer: of the
    model. note: a sentence that belongs to the table, or empty.
    """

    swaps: ClassVar[bool] = False
    runtime: str
    device: str = "cpu"
    dtype: str = ""
    note: str = ""
    source: str
    trained: int
    tokenizer: Tokenizer

    @abstractmethod
    def digest(self, row: Row) -> str:
        """What decides the numbers of a row besides source, runtime and sequence: for the journal.

        Raises RopeconvError where this model cannot have the row.
        """

    def lacks(self, row: Row, output: Output | None) -> str:
        """Why the engine of a row does not give an output, in a sentence; empty where it does, or is not known yet."""
        return ""

    def memory(self, tokens: int) -> str:
        """A sentence on the memory that a sequence of `tokens` tokens takes; empty where it is not known."""
        return ""

    @contextmanager
    @abstractmethod
    def engine(self, row: Row) -> Iterator[Engine]:
        """The engine of a row, while it is entered. Raises RopeconvError where this model cannot have it."""
        raise NotImplementedError
        yield


@dataclass(frozen=True)
class RunnerRequest:
    """What the user named.

    model: a checkpoint, a GGUF file, or an output of `apply`. rows: from --methods; empty where that is not given.
    against: the source of an output. servers: URLs, or NAME=URL. device, dtype, device_map: as in `device_spec`. chunk:
    tokens that a model reads at a time. family: that the model is of, whatever its model_type. trust_remote_code: run
    code of a checkpoint that ropeconv has not written, and load pickled weights. threads: of the CPU; None for
    OMP_NUM_THREADS or the cores.
    """

    model: str
    rows: list[Row]
    against: str = ""
    servers: tuple[str, ...] = ()
    device: str = "auto"
    dtype: str = "auto"
    device_map: str = ""
    chunk: int = 4096
    family: str = ""
    trust_remote_code: bool = False
    threads: int | None = None

    def place(self, config: JsonObject, stands_for: str = "") -> DeviceSpec:
        """Device and precision of a checkpoint. config: its config.json. stands_for: as in DeviceSpec."""
        if self.threads:
            import torch

            torch.set_num_threads(self.threads)
        dtype = stored_dtype(config)
        return device_spec(self.device, self.dtype, self.device_map, dtype, stands_for, self.trust_remote_code)
