"""The size of the key-value cache of a model, by the number of tokens and by dtype.

`config_cache` and `gguf_cache` make a `KvCache`, which says its sizes in words.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from msgspec import UNSET, UnsetType

from ..formats.gguf.header import TYPES, TensorType
from ..models.config import CachedLayers, cached_layers, text_part
from ..models.family import Family
from ..models.schema import Config
from ..rope.errors import counted
from ..runtimes.llamacpp.archs import Arch, HeaderKeys, arch_table
from ..runtimes.llamacpp.layers import cached_layers as cached_layers_of_header
from ..runtimes.llamacpp.layers import count_states
from .document import KvCacheDocument, SizeDocument

CACHE_DTYPES = {
    "float32": TensorType("float32", 1, 4),
    "bfloat16": TensorType("bfloat16", 1, 2),
    "float16": TensorType("float16", 1, 2),
    "fp8": TensorType("fp8", 1, 1),
}
GGUF_CACHE_DTYPES = {
    kind.name.lower(): kind for kind in TYPES.values() if kind.name in ("F16", "Q8_0", "Q4_0")
}
"""By the values of llama.cpp's `--cache-type-k` and `--cache-type-v`."""
UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True)
class KvCache:
    """The key-value cache of one sequence."""

    layers: tuple[CachedLayers, ...]
    """The layers in groups with the same size per token."""

    dtypes: tuple[TensorType, ...]
    """The types that the cache can have, the usual one first."""

    states: int = 0
    """Layers with a state of fixed size instead, which is not counted."""

    def bytes(self, tokens: int) -> dict[str, int]:
        """Return the size of the cache of one sequence in bytes, by dtype.

        It has sum over layers of (keys + values) min(tokens, window) numbers. A dtype whose blocks
        do not divide the keys or values of a layer is left out.

        Args:
            tokens: The length of the sequence.
        """
        # a layer with a sliding window keeps only the tokens that it still sees
        numbers = 0
        for group in self.layers:
            kept = min(tokens, group.window or tokens)
            numbers += group.count * kept * (group.keys + group.values)

        # Q8_0, for example, stores a block of 32 numbers in 34 bytes
        sizes = {}
        for dtype in self.dtypes:
            if self._divides(dtype.block):
                sizes[dtype.name.lower()] = numbers // dtype.block * dtype.size
        return sizes

    def _divides(self, block: int) -> bool:
        """Whether the keys and the values of every layer are whole blocks."""
        return all(group.keys % block == 0 and group.values % block == 0 for group in self.layers)

    def document(self, tokens: int, source: int | None = None) -> KvCacheDocument:
        """Return the cache as documents have it. Parameters as in `sentence`."""
        at_source: SizeDocument | UnsetType = UNSET
        if source is not None:
            at_source = SizeDocument(tokens=source, bytes=self.bytes(source))
        return KvCacheDocument(
            tokens=tokens,
            bytes=self.bytes(tokens),
            layers=self.layers,
            states=self.states,
            source=at_source,
        )

    def sentence(self, tokens: int, source: int | None = None) -> str:
        """Return the size for display.

        Args:
            tokens: The length of one sequence.
            source: The tokens that the source of a plan declares.
        """
        return f"KV cache at {tokens:,} tokens: {self.sizes(tokens, source)}."

    def short(self, tokens: int, source: int | None = None) -> str:
        """Return the size in the dtype of the model, in a sentence. Parameters as in `sentence`."""
        dtype, size = next(iter(self.bytes(tokens).items()))
        before = ""
        if source is not None and source != tokens:
            size_before = self.bytes(source or 1)[dtype]
            before = f" ({display(size_before)} before)"
        return f"KV cache: {display(size)} at {tokens:,} tokens in {dtype}{before}."

    def sizes(self, tokens: int, source: int | None = None) -> str:
        """Return the size of the cache in words, such as `4.0 GiB in bfloat16, 2.0 GiB in fp8`.

        Args:
            tokens: The length of one sequence.
            source: The tokens that the source of a plan declares, whose size is shown beside it.
        """
        # the size in each dtype, such as "4.0 GiB in bfloat16"
        sizes = self.bytes(tokens)
        text = ", ".join(f"{display(size)} in {name}" for name, size in sizes.items())

        # the size of the source in the first dtype, which is the usual one
        if source is not None and source != tokens:
            source_size = next(iter(self.bytes(source).values()))
            text += f" (source at {source:,}: {display(source_size)})"

        # layers that keep less, such as "; 24 layers keep a window of 4,096 tokens"
        for group in self.layers:
            if group.window is not None and group.window < tokens:
                layers_keep = counted(group.count, "layer keeps", "layers keep")
                text += f"; {layers_keep} a window of {group.window:,} tokens"
        if self.states:
            layers_keep = counted(self.states, "layer keeps", "layers keep")
            text += f"; {layers_keep} a state of fixed size, not counted"
        return text


def config_cache(config: Config, family: Family) -> KvCache | None:
    """Return the key-value cache that a checkpoint needs, in the dtype of its weights and in fp8.

    Returns None for a config that does not state the number of heads.

    Raises:
        BadSource: The numbers of heads are invalid.
    """
    cached = cached_layers(config, family)
    if cached is None:
        return None
    # `layers` have keys and values for each token; the other layers have a state of fixed size
    # (Mamba, linear attention)
    layers, number_of_states = cached
    dtype = CACHE_DTYPES.get(dtype_of(config, family), CACHE_DTYPES["bfloat16"])
    return KvCache(layers, (dtype, CACHE_DTYPES["fp8"]), states=number_of_states)


def dtype_of(config: Config, family: Family) -> str:
    """Return the dtype that a config declares, in its text part or around it."""
    for part in (text_part(config, family), config):
        for key in ("dtype", "torch_dtype"):
            if part.get(key):
                return str(part[key]).removeprefix("torch.")
    return "bfloat16"


def gguf_cache(keys: HeaderKeys, arch: Arch) -> KvCache | None:
    """Return the cache of a GGUF model in llama.cpp; None for an architecture that has none.

    Args:
        keys: The keys of its header.
        arch: Its architecture.
    """
    if arch.name in arch_table().cacheless:
        return None
    dtypes = tuple(GGUF_CACHE_DTYPES[name] for name in ("f16", "q8_0", "q4_0"))
    return KvCache(cached_layers_of_header(keys, arch), dtypes, count_states(keys, arch))


def display(size: float) -> str:
    """Return a number of bytes with a binary unit, such as `16.0 GiB`."""
    unit = 0
    while size >= 1024 and unit < len(UNITS) - 1:
        size /= 1024
        unit += 1
    return f"{size:.1f} {UNITS[unit]}" if unit else f"{size:,.0f} bytes"


def described_size(path: Path) -> str:
    """Return the size of a file, or of a folder with the number of its files, for display.

    It is empty if the path does not exist.
    """
    try:
        if path.is_file():
            return display(path.stat().st_size)
        files = [file for file in path.rglob("*") if file.is_file()]
        size = sum(file.stat().st_size for file in files)
    except OSError:
        return ""
    if not files:
        return ""
    return f"{display(size)} in {counted(len(files), 'file')}"


def now() -> str:
    """Return the time in UTC, to the minute."""
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
