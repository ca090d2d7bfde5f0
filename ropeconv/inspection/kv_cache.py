"""The size of the key-value cache of a model, by the number of tokens and by dtype."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from msgspec import UNSET

from ..formats.gguf.header import TYPES, TensorType
from ..models.config import CachedLayers, cached_layers, text_part
from ..models.family import Family
from ..models.schema import Config
from ..rope.errors import counted
from ..runtimes.llamacpp.archs import Arch, HeaderKeys, arch_table
from ..runtimes.llamacpp.layers import cached_layers as cached_layers_of_header
from .document import KvCacheDocument, SizeDocument

OF_CHECKPOINTS = {
    "float32": TensorType("float32", 1, 4),
    "bfloat16": TensorType("bfloat16", 1, 2),
    "float16": TensorType("float16", 1, 2),
    "fp8": TensorType("fp8", 1, 1),
}
OF_GGUF = {
    kind.name.lower(): kind for kind in TYPES.values() if kind.name in ("F16", "Q8_0", "Q4_0")
}
"""By the values of llama.cpp's `--cache-type-k` and `--cache-type-v`."""
UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True)
class KvCache:
    """The key-value cache of one sequence.

    layers: in groups with the same size per token. dtypes: the usual one first. states: number of
    layers with a state of fixed size instead, which is not counted.
    """

    layers: tuple[CachedLayers, ...]
    dtypes: tuple[TensorType, ...]
    states: int = 0

    def bytes(self, tokens: int) -> dict[str, int]:
        """Return the bytes of one sequence by dtype: sum_layers (keys + values) min(tokens,
        window).

        A dtype whose blocks do not divide the keys or values of a layer is left out.
        """
        numbers = sum(
            group.count * min(tokens, group.window or tokens) * (group.keys + group.values)
            for group in self.layers
        )
        return {
            kind.name.lower(): numbers // kind.block * kind.size
            for kind in self.dtypes
            if all(
                number % kind.block == 0
                for group in self.layers
                for number in (group.keys, group.values)
            )
        }

    def document(self, tokens: int, source: int | None = None) -> KvCacheDocument:
        """Return the cache as documents have it. Parameters as in `sentence`."""
        return KvCacheDocument(
            tokens=tokens,
            bytes=self.bytes(tokens),
            layers=self.layers,
            states=self.states,
            source=(
                UNSET if source is None else SizeDocument(tokens=source, bytes=self.bytes(source))
            ),
        )

    def sentence(self, tokens: int, source: int | None = None) -> str:
        """Return the size for display. tokens: of one sequence. source: tokens that the source
        declares, for a plan.
        """
        return f"KV cache at {tokens:,} tokens: {self.sizes(tokens, source)}."

    def short(self, tokens: int, source: int | None = None) -> str:
        """Return the size in the dtype of the model, in a sentence. Parameters as in `sentence`."""
        dtype, size = next(iter(self.bytes(tokens).items()))
        before = (
            ""
            if source in (None, tokens)
            else f" ({display(self.bytes(source or 1)[dtype])} before)"
        )
        return f"KV cache: {display(size)} at {tokens:,} tokens in {dtype}{before}."

    def sizes(self, tokens: int, source: int | None = None) -> str:
        """Return the size in every dtype for display, with remarks. Parameters as in `sentence`."""
        sizes = self.bytes(tokens)
        text = ", ".join(f"{display(size)} in {name}" for name, size in sizes.items())
        if source is not None and source != tokens:
            text += f" (source at {source:,}: {display(next(iter(self.bytes(source).values())))})"
        for group in self.layers:
            if group.window is not None and group.window < tokens:
                text += (
                    f"; {counted(group.count, 'layer keeps', 'layers keep')} a window of"
                    f" {group.window:,} tokens"
                )
        if self.states:
            text += (
                f"; {counted(self.states, 'layer keeps', 'layers keep')} a state of fixed size, not"
                " counted"
            )
        return text


def config_cache(config: Config, family: Family) -> KvCache | None:
    """Return the cache of a checkpoint, in the dtype of its weights and fp8; None if the config
    gives no heads.

    Raises BadSource for invalid numbers of heads.
    """
    cached = cached_layers(config, family)
    if cached is None:
        return None
    names = (
        part.get(key)
        for part in (text_part(config, family), config)
        for key in ("dtype", "torch_dtype")
    )
    dtype = next((str(name).removeprefix("torch.") for name in names if name), "bfloat16")
    dtypes = (OF_CHECKPOINTS.get(dtype, OF_CHECKPOINTS["bfloat16"]), OF_CHECKPOINTS["fp8"])
    layers, states = cached
    return KvCache(layers, dtypes, states)


def gguf_cache(keys: HeaderKeys, arch: Arch) -> KvCache | None:
    """Return the cache of a GGUF model in llama.cpp; None for an architecture that has none. keys:
    of its header.
    """
    if arch.name in arch_table().cacheless:
        return None
    order = ("f16", "q8_0", "q4_0")
    return KvCache(cached_layers_of_header(keys, arch), tuple(OF_GGUF[name] for name in order))


def display(size: float) -> str:
    """Return a number of bytes with a binary unit, such as `16.0 GiB`."""
    unit = 0
    while size >= 1024 and unit < len(UNITS) - 1:
        size = size / 1024
        unit = unit + 1
    return f"{size:.1f} {UNITS[unit]}" if unit else f"{size:,.0f} bytes"


def described_size(path: Path) -> str:
    """Return the size of a file, or of a folder with the number of its files; empty if it does not
    exist.
    """
    try:
        files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
        size = display(sum(file.stat().st_size for file in files))
    except OSError:
        return ""
    if not files:
        return ""
    return size if path.is_file() else f"{size} in {counted(len(files), 'file')}"


def now() -> str:
    """Return the time in UTC, to the minute."""
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
