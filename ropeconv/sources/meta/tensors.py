"""Converts consolidated.NN.pth to safetensors, one tensor at a time, from memory-mapped files loaded weights-only."""

from __future__ import annotations

import io
import pickletools
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ...errors import BadSource, counted, shown
from ...formats.safetensors import write_stream
from .layout import DTYPES, Shard, Target

MOST_DIRECTORY, MOST_PICKLE = 2 << 20, 1 << 20
"""Bytes of the table of entries, and of the pickle. Llama 3.1 405B has 1,141 entries per part, which take 100 kB, and a
pickle of 200 kB."""
UNUSED = "rope.freqs"
"""Frequencies, which Meta's own code computes again; nothing is made of them, so that they may have another dtype."""
STORAGES = {"BFloat16Storage": "bfloat16", "HalfStorage": "float16", "FloatStorage": "float32"}


class BoundedFile(io.BufferedReader):
    """A file of which no large part is read at once.

    zipfile takes the size of the table of entries from the end of the file, reads all of it, and makes an object of
    each entry before it can be asked how many there are.
    """

    def read(self, size: int | None = -1) -> bytes:
        """Raises BadSource for more bytes than the table of entries of any model has."""
        if size is not None and size > MOST_DIRECTORY:
            raise BadSource(
                f"{Path(self.name).name} has {size:,} bytes of entries, more than any model; download it again"
            )
        return super().read(size)


def peek_dtype(path: Path) -> str:
    """The dtype of the weights in a .pth file, from the names in its pickle; nothing is executed.

    Raises BadSource when it is not a zip of the kind torch.save writes, or holds another dtype, or several.
    """
    try:
        with BoundedFile(io.FileIO(path)) as file, zipfile.ZipFile(file) as archive:
            pickled = archive.read(_checked_pickle(archive, path))
        found = {dtype: name for name, dtype in _stored(pickletools.genops(pickled)) if name != UNUSED}
    except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError, RuntimeError, struct.error, IndexError):
        raise BadSource(
            f"{path.name} is not a checkpoint that torch.save wrote, or is truncated; download it again"
        ) from None
    if not found:
        raise BadSource(f"{path.name} holds no tensor in {', '.join(STORAGES.values())}; convert it with torch first")
    if len(found) > 1:
        (one, name), (other, another), *_ = found.items()
        raise BadSource(
            f"{path.name} mixes dtypes: {shown(name)} is in {one}, {shown(another)} in {other}; convert them to one "
            "with torch first"
        )
    return next(iter(found))


def _checked_pickle(archive: zipfile.ZipFile, path: Path) -> zipfile.ZipInfo:
    """The entry with the pickle. Raises BadSource for an archive that holds more than its file, or no single pickle.

    torch.save never compresses, so an entry that would inflate is none of its own, nor are entries that share bytes.
    """
    entries = archive.infolist()
    for entry in entries:
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size or entry.flag_bits & 1:
            raise BadSource(f"{path.name} is compressed, which torch.save never does; download it again")
    if sum(entry.file_size for entry in entries) > path.stat().st_size:
        raise BadSource(f"{path.name} has entries that overlap, which torch.save never writes; download it again")
    found = [entry for entry in entries if entry.filename.rpartition("/")[2] == "data.pkl"]
    if len(found) != 1:
        raise BadSource(f"{path.name} is not a checkpoint that torch.save wrote; download it again")
    if found[0].file_size > MOST_PICKLE:
        raise BadSource(
            f"{path.name} has a pickle of {found[0].file_size:,} bytes, too many for a model; download it again"
        )
    return found[0]


def _stored(operations: Any) -> Iterator[tuple[str, str]]:
    """Yields (name, dtype) of tensors of a dictionary: its key, then "storage" and the class of its numbers.

    operations: of the pickle, from pickletools. A class or text that was there before stands as its place in the memo.
    """
    memo: dict[int, str] = {}
    texts, last = ("", ""), ""
    for code, argument, _ in operations:
        if code.name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = last
            continue
        kept = memo.get(argument, "") if code.name in ("BINGET", "LONG_BINGET") else argument
        last = kept if isinstance(kept, str) else ""
        dtype = STORAGES.get(last.removeprefix("torch "))
        if dtype is not None:
            yield texts[0], dtype
        elif last and code.name != "GLOBAL" and not last.startswith("torch."):
            texts = (texts[1], last)


def write_shard(shard: Shard, parts: list[Path], path: Path, advance: Callable[[int], None]) -> None:
    """Writes one safetensors file, tensor by tensor.

    shard, parts: as in `shard_blocks`, whose errors it raises. path: the file to write. advance: called with the bytes
    of each tensor.
    """

    def blocks() -> Iterator[memoryview]:
        for block in shard_blocks(shard, parts):
            yield block
            advance(len(block))

    write_stream(path, shard.header(), blocks())


def shard_blocks(shard: Shard, parts: list[Path]) -> Iterator[memoryview]:
    """Yields the data of one safetensors file, tensor by tensor.

    shard: what it holds. parts: the .pth files of all model-parallel parts, in order. Raises BadSource for .pth files
    that torch cannot load as plain weights, and for tensors that are missing or of another shape.
    """
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loaded = [torch.load(part, map_location="cpu", weights_only=True, mmap=True) for part in parts]
    except Exception as problem:
        raise BadSource(
            f"{parts[0].name} cannot be read as plain weights ({type(problem).__name__}); download it again"
        ) from None

    for part, found in zip(parts, loaded, strict=True):
        if not isinstance(found, dict):
            raise BadSource(f"{part.name} holds no tensors by name; download it again")
    dtype = next(name for name, stored in DTYPES.items() if stored == shard.dtype)
    for target in shard.targets:
        tensor = _make(target, dtype, loaded)
        yield memoryview(tensor.detach().contiguous().view(torch.uint8).numpy().reshape(-1))


def _make(target: Target, dtype: str, parts: list[dict[str, Any]]) -> Any:
    import torch

    missing = [part for part in parts if target.origin not in part]
    if missing:
        raise BadSource(f"the .pth files have no {target.origin}; download the checkpoint again")
    pieces = [part[target.origin] for part in parts]
    for piece in pieces:
        if not _plain(piece, dtype):
            raise BadSource(f"{target.origin} is no tensor of {dtype} in the .pth files; download the checkpoint again")
    join = target.join
    if target.origin.startswith("tok_embeddings") and pieces[0].shape[-1:] == target.shape[-1:]:
        join = 0  # Llama 3 splits the vocabulary, Llama 2 the width
    if _joined([tuple(piece.shape) for piece in pieces], join) != target.shape:
        raise BadSource(
            f"{target.origin} has shape {list(pieces[0].shape)} in each of {counted(len(pieces), 'file')} where "
            f"params.json implies {list(target.shape)} in all; the files do not belong together, download the "
            "checkpoint again"
        )
    whole = pieces[0] if join is None or len(pieces) == 1 else torch.cat(pieces, dim=join)
    return _halves(whole, target.heads) if target.heads else whole


def _plain(piece: Any, dtype: str) -> bool:
    """Whether an object of a .pth file is a tensor of a dtype with its numbers in memory."""
    import torch

    dense = isinstance(piece, torch.Tensor) and piece.layout == torch.strided and piece.device.type == "cpu"
    return dense and piece.dtype == getattr(torch, dtype)


def _joined(shapes: list[tuple[int, ...]], join: int | None) -> tuple[int, ...]:
    """The shape of the parts together; empty where they do not fit. join: as in `Target`."""
    first = shapes[0]
    if join is None or len(shapes) == 1:
        return first
    rest = {shape[:join] + shape[join + 1 :] for shape in shapes}
    if len(first) <= join or len(rest) != 1 or any(len(shape) != len(first) for shape in shapes):
        return ()
    return (*first[:join], sum(shape[join] for shape in shapes), *first[join + 1 :])


def _halves(weight: Any, heads: int) -> Any:
    """Rows of each head from pairs (0, 1), (2, 3), ... to halves (0, r/2), (1, r/2 + 1), ..."""
    rows, columns = weight.shape
    pairs = weight.view(heads, rows // heads // 2, 2, columns)
    return pairs.transpose(1, 2).reshape(rows, columns)
