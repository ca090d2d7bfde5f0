"""Runner, which runs the rows of an evaluation, and the request of a user."""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar

from ropeconv.engines.engine import Engine, Output
from ropeconv.engines.transformers.load import DeviceSpec, stored_dtype
from ropeconv.errors import UsageError
from ropeconv.formats.disk import human
from ropeconv.formats.jsontext import JsonObject
from ropeconv.inspection.inspection import Inspection
from ropeconv.inspection.kv_cache import KvCache
from ropeconv.options import RunOptions, check_bounds
from ropeconv.verbs.rows import Row

from ..options import EvalOptions
from ..texts import Tokenizer


def memory_sentence(weights: int, cache: KvCache | None, tokens: int, width: int) -> str:
    """Return a sentence on the memory of a run.

    Args:
        weights: Bytes of the weights.
        cache: The key-value cache of the model, None where it is not known.
        tokens: The tokens of the longest sequence.
        width: Bytes of a number in the cache.
    """
    memory = f"The weights take {human(weights)} of memory"
    if cache is None:
        return f"{memory}."

    # `cache` has a size for each type that the config names, such as 2 bytes for bfloat16. The run
    # may use another one: 4 bytes of float32 take twice as much.
    in_first_dtype = next(iter(cache.bytes(tokens).values()))
    size = in_first_dtype * width // cache.dtypes[0].size
    return f"{memory}, keys and values of {tokens:,} tokens {human(size)}."


def refuse_without_next_token(inspection: Inspection) -> None:
    """Refuse a model that has no loss on a text.

    Raises:
        UsageError: It is an encoder, or a diffusion model.
    """
    if inspection.encoder:
        raise UsageError(
            f"{inspection.source.reference} reads in both directions and predicts no next token;"
            " evaluate it on its own task"
        )


class Runner(ABC):
    """Runs the rows of an evaluation, one at a time."""

    swaps: ClassVar[bool] = False
    """Whether changing the row is cheap, so that all rows read a sequence before the next one."""

    may_change: ClassVar[bool] = False
    """Whether a row may compute something else later under the same digest, as on a server."""

    runtime: str
    """Name and version of what runs the model."""

    device: str = "cpu"
    """The device, for the result."""

    dtype: str = ""
    """The precision, for the result."""

    note: str = ""
    """A sentence for below the tables, or empty."""

    source: str
    """The identity of the model, for the journal."""

    model: str = ""
    """The name of the source of an output; empty where the user has named the model itself."""

    trained: int
    """The trained context in tokens."""

    original_context: int = 0
    """The context before the scaling of the model, in tokens; 0 for the trained context."""

    sliding_window: int = 0
    """The tokens that most layers see, in a model with other layers that see all tokens.

    0 for any other model, and where it is not known.
    """

    tokenizer: Tokenizer

    @abstractmethod
    def digest(self, row: Row) -> str:
        """Return a digest of what a row changes in the model, for the key of the journal.

        Raises:
            RopeconvError: This model cannot have the row.
        """

    def lacks(self, row: Row, output: Output | None) -> str:
        """Return why the engine of a row does not give an output.

        It is empty where the engine gives it, or where that is not known yet.
        """
        return ""

    def memory(self, tokens: int) -> str:
        """Return a sentence on the memory of a sequence; empty where it is not known."""
        return ""

    @abstractmethod
    def engine(self, row: Row) -> AbstractContextManager[Engine]:
        """Return a context manager that gives the loaded model of a row.

        Raises:
            RopeconvError: This model cannot have the row.
        """


@dataclass(frozen=True)
class RunnerRequest:
    """The model and the rows that a user named."""

    model: str
    """A checkpoint, a GGUF file, or an output of `apply`."""

    rows: list[Row]
    """The rows of --methods, or empty."""

    against: str = ""
    """The source of an output."""

    servers: tuple[str, ...] = ()
    """URLs, or NAME=URL."""

    device: str = "auto"
    """As in `DeviceSpec`."""

    dtype: str = "auto"
    """As in `DeviceSpec`."""

    device_map: str = ""
    """As in `DeviceSpec`."""

    chunk: int = 4096
    """Tokens that a model reads at a time."""

    family: str = ""
    """The family in place of that of the model_type."""

    trust_remote_code: bool = False
    """Whether to run code of a checkpoint that is not of ropeconv, and load pickled weights."""

    threads: int | None = None
    """Threads of the CPU; None for OMP_NUM_THREADS or the cores."""

    def __post_init__(self) -> None:
        check_bounds(vars(self), RunOptions, EvalOptions)

    def set_torch_threads(self) -> None:
        """Let torch compute with as many threads as --threads says, in this whole process."""
        if self.threads:
            import torch

            torch.set_num_threads(self.threads)

    def choose_device(self, config: JsonObject, loaded_as: str = "") -> DeviceSpec:
        """Return the device and the precision for a checkpoint.

        Without --device this is a GPU where there is one. Without --dtype the weights get the
        precision of config.json on a GPU, and float32 on a CPU.

        Args:
            config: The config.json of the checkpoint.
            loaded_as: The model type as which transformers loads the checkpoint, such as "llama";
                empty for the model type of the config.json.
        """
        requested = DeviceSpec(
            device=self.device,
            dtype=self.dtype,
            device_map=self.device_map,
            loaded_as=loaded_as,
            pickles=self.trust_remote_code,  # pickled weights can run code too
        )
        return requested.resolve(stored_dtype(config))
