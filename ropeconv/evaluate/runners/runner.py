"""Runner, which runs the rows of an evaluation, and the request of a user."""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar

from ...engines.engine import Engine, Output
from ...engines.transformers.load import DeviceSpec, stored_dtype
from ...formats.disk import human
from ...formats.jsontext import JsonObject
from ...inspection.kv_cache import KvCache
from ..row import Row
from ..texts import Tokenizer


def memory_sentence(weights: int, cache: KvCache | None, tokens: int, width: int) -> str:
    """The memory of a run.

    weights: bytes of the weights. cache: of the model, None where it is not known. tokens: of the
    longest sequence. width: bytes of a number in the cache.
    """
    memory = f"The weights take {human(weights)} of memory"
    if cache is None:
        return f"{memory}."
    size = next(iter(cache.bytes(tokens).values())) * width // cache.dtypes[0].size
    return f"{memory}, keys and values of {tokens:,} tokens {human(size)}."


class Runner(ABC):
    """Runs the rows of an evaluation, one at a time.

    swaps: whether changing the row is cheap, so that all rows read a sequence before the next one.
    runtime: name and version. device, dtype: for the result. source: identity of the model, for the
    journal. trained: context of the unscaled model, in tokens. note: a sentence below the tables,
    or empty.
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
        """The part of the journal's key that tells rows apart.

        Raises RopeconvError where this model cannot have the row.
        """

    def lacks(self, row: Row, output: Output | None) -> str:
        """Why the engine of a row does not give an output; empty where it does, or is not known
        yet.
        """
        return ""

    def memory(self, tokens: int) -> str:
        """A sentence on the memory of a sequence; empty where it is not known."""
        return ""

    @abstractmethod
    def engine(self, row: Row) -> AbstractContextManager[Engine]:
        """The engine of a row, while it is entered. Raises RopeconvError where this model cannot
        have it.
        """


@dataclass(frozen=True)
class RunnerRequest:
    """The model and the rows that a user named.

    model: a checkpoint, a GGUF file, or an output of `apply`. rows: of --methods, or empty.
    against: the source of an output. servers: URLs, or NAME=URL. device, dtype, device_map: as in
    `DeviceSpec`. chunk: tokens that a model reads at a time. family: in place of that of the
    model_type. trust_remote_code: run code of a checkpoint that is not of ropeconv, and load
    pickled weights. threads: of the CPU; None for OMP_NUM_THREADS or the cores.
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
        """Device and precision of a checkpoint. config: its config.json. stands_for: as in
        DeviceSpec.
        """
        if self.threads:
            import torch

            torch.set_num_threads(self.threads)
        at = DeviceSpec(
            self.device, self.dtype, self.device_map, stands_for, self.trust_remote_code
        )
        return at.resolve(stored_dtype(config))
