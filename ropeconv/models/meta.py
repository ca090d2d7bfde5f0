"""MetaSource: Meta's original files, presented as a checkpoint in the HF layout.

Tensors of consolidated.NN.pth are read by rows, from memory-mapped files that are loaded
weights-only.
"""

from __future__ import annotations

import errno
import io
import pickletools
import re
import struct
import warnings
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..environment import Requirement
from ..errors import TOO_MANY, BadSource
from ..formats import jsontext
from ..formats.disk import FileIdentity, identity, sha256, text_digest
from ..formats.kind import WORDS, kind_of
from ..formats.package_data import as_type
from ..formats.safetensors import tensor_bytes
from ..loader import load_pickled
from ..rope.errors import counted, shown
from . import meta_layout
from .folder import ConvertedShard, ConvertedSource, FolderSource, check_link, in_shards
from .meta_layout import DTYPES, Params, TensorTarget
from .schema import Config
from .source import GeneratedFile, Source, SourceFile

if TYPE_CHECKING:
    from torch import Tensor

PART = re.compile(r"consolidated\.(\d\d)\.pth")
TOKENIZER = "tokenizer.model"
LEFT = {"params.json", "checklist.chk", "tokenizer_checklist.chk"}


class SharedTokenizer(NamedTuple):
    """The tokenizer that the sizes of a release share, outside of their folders."""

    path: Path

    identity: FileIdentity | None
    """Its identity when it was found, by which a later change is noticed."""


class MetaSource(ConvertedSource[TensorTarget]):
    """A checkpoint in Meta's layout; config, index, tokenizer settings and shards are made from it.

    Args:
        inner: The source of these files, which are fetched when they are read. tokenizer.model may
            also be one level above its folder, where Meta's download of several sizes has it.
    """

    kind = "meta"

    def __init__(self, inner: Source) -> None:
        self.inner = inner
        self.reference = inner.reference
        self.name = inner.name
        self.commit = inner.commit

    @cached_property
    def params(self) -> Params:
        """The content of params.json.

        Raises:
            BadSource: Where it is not as Meta writes it.
        """
        params = jsontext.parse(self.inner.text("params.json") or "", "params.json")
        return as_type(params, Params, "params.json")

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """File names of the model-parallel parts, in order.

        Raises:
            BadSource: Where one is missing.
        """
        names = sorted(file.name for file in self.inner.files() if PART.fullmatch(file.name))
        expected = [f"consolidated.{number:02d}.pth" for number in range(len(names))]
        if names != expected:
            missing = next(name for name in expected if name not in names)
            raise BadSource(f"{self.reference} lacks {missing}; download the checkpoint again")
        return tuple(names)

    @cached_property
    def dtype(self) -> str:
        if self.inner.kind == "hub":
            return "bfloat16"  # as in every release; checked against the file when it is there
        return peek_dtype(self.inner.path(self.parts[0]))

    @property
    def requirements(self) -> tuple[Requirement, ...]:
        return (TORCH, *meta_layout.tokenizer_requirements(self._tokenizer))

    @cached_property
    def _config(self) -> Config:
        """The config.json that is made."""
        size = self.params.vocab_size
        if size <= 0:
            size = meta_layout.vocabulary_size(self._tokenizer)
        return meta_layout.hf_config(self.params, size, self.dtype)

    @cached_property
    def _shared_tokenizer(self) -> SharedTokenizer | None:
        """Return the tokenizer.model one level above the folder; None if there is no such file.

        Meta's download script puts the tokenizer that the sizes of a release share beside their
        folders: tokenizer.model, 7B/params.json, 13B/params.json.

        Raises:
            BadSource: It has another number of tokens than params.json.
        """
        is_inside = any(file.name == TOKENIZER for file in self.inner.files())
        if is_inside or not isinstance(self.inner, FolderSource):
            return None
        folder_above = self.inner.root.resolve().parent
        path = folder_above / TOKENIZER
        if not path.is_file():
            return None

        # the folder above may hold the tokenizer of another release, with another number of tokens
        check_link(path, folder_above)
        tokens = meta_layout.vocabulary_size(path)
        expected_tokens = self.params.vocab_size
        is_stated = expected_tokens > 0  # params.json of Llama 2 has -1
        if is_stated and tokens != expected_tokens:
            raise BadSource(
                f"{path} has {tokens:,} tokens and params.json says {expected_tokens:,}; put the"
                " release's own file beside it"
            )
        return SharedTokenizer(path, identity(path))

    @property
    def _tokenizer(self) -> Path:
        """The path of tokenizer.model."""
        if self._shared_tokenizer is not None:
            return self._shared_tokenizer.path
        if all(file.name != TOKENIZER for file in self.inner.files()):
            raise BadSource(
                f"{self.reference} has no {TOKENIZER}; put the release's file beside params.json,"
                " or one level above"
            )
        return self.inner.path(TOKENIZER)

    @cached_property
    def shards(self) -> tuple[ConvertedShard[TensorTarget], ...]:
        return in_shards(meta_layout.targets(self._config))

    @cached_property
    def texts(self) -> dict[str, str]:
        """The files that Meta's layout does not have: configs, and the index of shards."""
        config = self._config
        generation = {
            "_from_model_config": True,
            "bos_token_id": config["bos_token_id"],
            "eos_token_id": config["eos_token_id"],
        }
        context = config["max_position_embeddings"]
        tokenizer = meta_layout.tokenizer_config(self.params.version, context)
        return {
            "config.json": jsontext.dump(config),
            "generation_config.json": jsontext.dump(generation),
            "tokenizer_config.json": jsontext.dump(tokenizer),
            **self.index(),
        }

    def kept_files(self) -> list[SourceFile]:
        kept = [
            file
            for file in self.inner.files()
            if file.name not in LEFT and not PART.fullmatch(file.name)
        ]
        if self._shared_tokenizer is not None:
            kept.append(SourceFile(TOKENIZER, self._shared_tokenizer.path.stat().st_size))
        return kept

    def path(self, name: str) -> Path:
        if name == TOKENIZER and self._shared_tokenizer is not None:
            return self._shared_tokenizer.path
        return self.inner.path(name)

    def local(self, name: str) -> Path | None:
        # model.safetensors is made of Meta's parts, so that no file has it
        if name in self.weights():
            return None
        if name == TOKENIZER and self._shared_tokenizer is not None:
            return self._shared_tokenizer.path
        return self.inner.local(name)

    @cached_property
    def identity(self) -> str:
        if self._shared_tokenizer is None:
            return self.inner.identity
        return text_digest(self.inner.identity, sha256(self._shared_tokenizer.path))

    def identities(self, unread: Collection[str] = ()) -> Mapping[Path, FileIdentity | None]:
        identities = dict(self.inner.identities(unread))
        if self._shared_tokenizer is not None and TOKENIZER not in unread:
            identities[self._shared_tokenizer.path] = self._shared_tokenizer.identity
        return identities

    def conversion_notes(self) -> tuple[str, ...]:
        """Return the sentence on a tokenizer that is not in the folder."""
        if self._shared_tokenizer is None:
            return ()
        return (f"{TOKENIZER} is that of {self._shared_tokenizer.path.parent}",)

    def text(self, name: str) -> str | None:
        if name in self.texts:
            return self.texts[name]
        return self.inner.text(name)

    def tokenizer(self) -> GeneratedFile | None:
        model = self._tokenizer
        version = self.params.version
        if not meta_layout.is_tiktoken(model):
            return None
        return GeneratedFile(
            "tokenizer.json",
            model.stat().st_size,
            lambda target, _: meta_layout.write_tokenizer_json(model, target, version),
        )

    def blocks(self, tensors: Sequence[TensorTarget]) -> Iterator[memoryview]:
        yield from self._weights.blocks(tensors)

    def part(self, tensor: TensorTarget, start: int, stop: int) -> bytes:
        return self._weights.bytes(tensor, start, stop)

    @cached_property
    def _weights(self) -> PthFiles:
        """The .pth files, which are fetched whole.

        Raises:
            BadSource: Where one holds another dtype than the first.
        """
        TORCH.check()
        paths = []
        for part in self.parts:
            path = self.inner.path(part)
            paths.append(path)
            dtype = peek_dtype(path)
            if dtype != self.dtype:
                raise BadSource(
                    f"{part} holds {dtype}, not {self.dtype}; fetch the folder and give its path"
                )
        return PthFiles(paths)


TORCH = Requirement("torch", "converting .pth files")
PIECE = 8 << 20  # bytes of a tensor that are converted at a time
MOST_DIRECTORY = 2 << 20
"""The most bytes of the table of entries.

Llama 3.1 405B has 1,141 entries per part, which take 100 kB.
"""
MOST_PICKLE = 1 << 20
"""The most bytes of the pickle; that of Llama 3.1 405B has 200 kB."""
FREQUENCY_TENSOR = "rope.freqs"
"""Frequencies, which Meta's own code computes again; they are dropped, whatever their dtype."""
STORAGES = {"BFloat16Storage": "bfloat16", "HalfStorage": "float16", "FloatStorage": "float32"}
DAMAGE_ERRORS = (
    zipfile.BadZipFile,
    ValueError,
    EOFError,
    NotImplementedError,
    RuntimeError,
    struct.error,
    IndexError,
)
"""Errors of zipfile and pickletools for damaged files."""


class BoundedFile(io.BufferedReader):
    """A file of which no large part is read at once.

    zipfile takes the size of the table of entries from the end of the file, reads all of it, and
    makes an object of each entry before it can be asked how many there are.
    """

    def read(self, size: int | None = -1) -> bytes:
        """Read some bytes, or raise BadSource for more than any model's table of entries has."""
        if size is not None and size > MOST_DIRECTORY:
            raise BadSource(
                f"{Path(self.name).name} has {size:,} bytes of entries, too many for a model;"
                f" {TOO_MANY}"
            )
        return super().read(size)


def peek_dtype(path: Path) -> str:
    """Return the dtype of the weights in a .pth file, from its pickle; nothing is executed.

    A file of torch.save is a zip archive: `data.pkl`, which names the storage class of each tensor
    (torch.BFloat16Storage), and an entry with the numbers of each.

    Raises:
        BadSource: When it is not a zip of the kind torch.save writes, or holds another dtype, or
            several.
    """
    kind = kind_of(path)
    if kind == "pickle":
        raise BadSource(
            f"{path} is in the format of torch before 1.6, which cannot be read in parts; write it"
            " anew with torch.save(torch.load(PATH, weights_only=True), PATH)"
        )
    if kind not in ("torch", "zip", "unknown"):
        raise BadSource(
            f"{path} is {WORDS[kind]} and not a checkpoint that torch.save wrote; download it again"
        )

    example_by_dtype = _example_by_dtype(path)
    dtypes = list(example_by_dtype)
    if not dtypes:
        raise BadSource(
            f"{path.name} contains no tensor in {', '.join(STORAGES.values())}; convert it with"
            " torch first"
        )
    if len(dtypes) > 1:
        first, second, *_ = dtypes
        raise BadSource(
            f"{path.name} mixes dtypes: {shown(example_by_dtype[first])} is in {first},"
            f" {shown(example_by_dtype[second])} in {second}; convert them to one with torch first"
        )
    return dtypes[0]


def _example_by_dtype(path: Path) -> dict[str, str]:
    """Return the name of a tensor of each dtype in a .pth file, e.g. {"bfloat16": "norm.weight"}.

    Raises:
        BadSource: The file is damaged, or is not a zip of the kind torch.save writes.
    """
    examples = {}
    try:
        with BoundedFile(io.FileIO(path)) as file, zipfile.ZipFile(file) as archive:
            pickled = archive.read(_checked_pickle(archive, path))
        # genops yields the operations of a pickle without running them
        for name, dtype in _dtypes_in(pickletools.genops(pickled)):
            if name != FREQUENCY_TENSOR:  # "rope.freqs", which is dropped whatever its dtype
                examples[dtype] = name
    except DAMAGE_ERRORS:
        raise _not_from_torch(path) from None
    except OSError as problem:
        # for wrong numbers at the end of the archive, zipfile seeks to a place before the begin of
        # the file (zipfile.py, _RealGetContents)
        if problem.errno != errno.EINVAL:
            raise
        raise _not_from_torch(path) from None
    return examples


def _not_from_torch(path: Path) -> BadSource:
    return BadSource(
        f"{path.name} is not a checkpoint that torch.save wrote, or is truncated; download it again"
    )


def _checked_pickle(archive: zipfile.ZipFile, path: Path) -> zipfile.ZipInfo:
    """Return the entry with the pickle, after a check that torch.save wrote the archive.

    torch.save never compresses, so an entry that would inflate is none of its own, nor are entries
    that share bytes: both are ways to make a small file that fills the memory.

    Raises:
        BadSource: For an archive that holds more than its file, or no single pickle.
    """
    entries = archive.infolist()
    for entry in entries:
        is_inflated = entry.compress_type != zipfile.ZIP_STORED
        is_encrypted = entry.flag_bits & 1
        has_other_size = entry.file_size != entry.compress_size
        if is_inflated or is_encrypted or has_other_size:
            raise BadSource(
                f"{path.name} is compressed, which torch.save never does; download it again"
            )

    if sum(entry.file_size for entry in entries) > path.stat().st_size:
        raise BadSource(
            f"{path.name} has entries that overlap, which torch.save never writes; download it"
            " again"
        )

    # the pickle is NAME/data.pkl, where NAME is that of the file when torch.save wrote it
    pickles = [entry for entry in entries if entry.filename.rpartition("/")[2] == "data.pkl"]
    if len(pickles) != 1:
        raise BadSource(f"{path.name} is not a checkpoint that torch.save wrote; download it again")
    pickle = pickles[0]
    if pickle.file_size > MOST_PICKLE:
        raise BadSource(
            f"{path.name} has a pickle of {pickle.file_size:,} bytes, too many for a model;"
            " download it again"
        )
    return pickle


def _dtypes_in(operations: Any) -> Iterator[tuple[str, str]]:
    """Yield the name and the dtype of each tensor in a pickle of torch.save.

    A tensor in the pickle is a sequence of texts: "layers.0.attention.wq.weight" (its name),
    "torch._utils _rebuild_tensor_v2" (a function), "storage", and "torch BFloat16Storage" (a class,
    which gives the dtype).

    Args:
        operations: The operations of the pickle from `pickletools.genops`, each as (operation,
            argument, position).
    """
    # A pickle has each text once and gives it a number (BINPUT). If the text comes again, the
    # pickle has the number (BINGET).
    text_by_number: dict[int, str] = {}
    text = ""  # the text of the present operation; "" if its argument is not a text
    # the last two texts without functions and classes: (name, "storage") when a class comes
    last_two_texts = ("", "")
    for operation, argument, _ in operations:
        if operation.name in ("BINPUT", "LONG_BINPUT"):
            text_by_number[argument] = text
            continue
        value = argument
        if operation.name in ("BINGET", "LONG_BINGET"):
            value = text_by_number.get(argument, "")
        text = value if isinstance(value, str) else ""

        dtype = STORAGES.get(text.removeprefix("torch "))
        is_function = operation.name == "GLOBAL" or text.startswith("torch.")
        if dtype is not None:
            tensor_name, _ = last_two_texts
            yield tensor_name, dtype
        elif text and not is_function:
            last_two_texts = (last_two_texts[1], text)


class PthFiles:
    """The model-parallel parts of a checkpoint, memory-mapped, as rows in the HF layout.

    Args:
        paths: The .pth files, in order.

    Raises:
        BadSource: For files that torch cannot load as plain weights.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.parts = [load_pickled(path) for path in paths]
        except Exception as problem:
            raise BadSource(
                f"{paths[0].name} cannot be read as plain weights ({type(problem).__name__});"
                " download it again"
            ) from None
        for path, part in zip(paths, self.parts, strict=True):
            if not isinstance(part, dict):
                raise BadSource(f"{path.name} contains no named tensors; download it again")

    def blocks(self, targets: Iterable[TensorTarget]) -> Iterator[memoryview]:
        """Yield the data of tensors in order, in pieces. Raises what `rows` raises."""
        for target in targets:
            unit = target.head or 1
            step = max(1, PIECE // _row_bytes(target) // unit) * unit
            for first in range(0, target.shape[0], step):
                yield self.rows(target, first, min(first + step, target.shape[0]))

    def bytes(self, target: TensorTarget, start: int, stop: int) -> bytes:
        """Return the bytes start .. stop - 1 of a tensor. Raises what `rows` raises."""
        row = _row_bytes(target)
        first = start // row
        last = -(-stop // row)
        content = self.rows(target, first, last)
        return bytes(content[start - first * row : stop - first * row])

    def rows(self, target: TensorTarget, first: int, stop: int) -> memoryview:
        """Return some rows of a tensor, as transformers has them, as bytes.

        Each file of Meta's has a part of every tensor, and the rows of queries and keys in another
        order. The result has the rows first .. stop - 1 of the whole tensor, in transformers'
        order. A vector counts as a matrix whose rows have one number.

        Raises:
            BadSource: For tensors that are missing or of another dtype or shape.
        """
        import torch

        pieces, axis = self._pieces(target)
        if not target.head:
            tensor = _join_rows(pieces, axis, first, stop)
        else:
            # Queries and keys: all heads in which these rows are, since the rows of a head are
            # reordered. Meta rotates the rows (0, 1), (2, 3), ... of a head, and transformers the
            # rows (0, d/2), (1, d/2 + 1), ...: of 4 rows, 0 1 2 3 become 0 2 1 3.
            head_rows = target.head
            begin = first // head_rows * head_rows
            end = -(-stop // head_rows) * head_rows  # rounded up
            in_meta_order = _join_rows(pieces, axis, begin, end)
            pairs = in_meta_order.view(-1, head_rows // 2, 2, in_meta_order.shape[1])
            heads = pairs.transpose(1, 2).reshape(in_meta_order.shape)
            tensor = heads[first - begin : stop - begin]
        as_bytes = tensor.detach().contiguous().view(torch.uint8).numpy()
        return memoryview(as_bytes.reshape(-1))

    def _pieces(self, target: TensorTarget) -> tuple[list[Tensor], int | None]:
        """Return the pieces of a tensor from all .pth files, and the axis along which to join them.

        The axis is 0 for rows, 1 for columns, and None for a tensor that is whole in each file.

        Args:
            target: The tensor to make: its name in the .pth files, its dtype, shape and axis.
        """
        name = target.origin  # such as "layers.0.attention.wq.weight"
        if any(name not in part for part in self.parts):
            raise BadSource(f"the .pth files have no {name}; download the checkpoint again")
        pieces = [part[name] for part in self.parts]

        # DTYPES is {"bfloat16": "BF16", ...}, and here the name in torch is needed
        torch_names = {in_safetensors: in_torch for in_torch, in_safetensors in DTYPES.items()}
        dtype = torch_names[target.dtype]
        if not all(_is_dense_tensor(piece, dtype) for piece in pieces):
            raise BadSource(
                f"{name} is not a tensor of {dtype} in the .pth files; download the"
                " checkpoint again"
            )

        # The files of Llama 2 divide the embedding by columns, as `target.join` says. The files of
        # Llama 3 divide the embedding by rows, so a piece is as wide as the whole embedding.
        shapes = [tuple(piece.shape) for piece in pieces]
        axis = target.join
        is_as_wide_as_whole = shapes[0][-1:] == target.shape[-1:]
        if name.startswith("tok_embeddings") and is_as_wide_as_whole:
            axis = 0
        if _joined_shape(shapes, axis) != target.shape:
            raise BadSource(
                f"{name} has shape {list(shapes[0])} in each of"
                f" {counted(len(pieces), 'file')} where params.json implies {list(target.shape)} in"
                " all; the files do not belong together, download the checkpoint again"
            )
        return pieces, axis


def _join_rows(pieces: Sequence[Tensor], axis: int | None, begin: int, end: int) -> Tensor:
    """Return rows begin .. end - 1 of a tensor that Meta divides between several files.

    Args:
        pieces: The part of the tensor in each file, in order.
        axis: 0 where each file has some of the rows, 1 where it has some of the columns, and None
            for norms, which each file has as a whole.
        begin: The first row, counted in the whole tensor.
        end: The row behind the last.
    """
    import torch

    if axis is None or len(pieces) == 1:
        return pieces[0][begin:end]
    if axis == 1:
        return torch.cat([piece[begin:end] for piece in pieces], dim=1)

    parts = []
    piece_start = 0  # the row of the whole tensor with which a piece begins
    for piece in pieces:
        piece_stop = piece_start + len(piece)
        overlaps = begin < piece_stop and end > piece_start
        if overlaps:
            from_row = max(begin - piece_start, 0)
            parts.append(piece[from_row : end - piece_start])
        piece_start = piece_stop
    return torch.cat(parts)


def _row_bytes(target: TensorTarget) -> int:
    """Return the bytes of a row of a tensor."""
    return tensor_bytes(target.dtype, target.shape[1:])


def _is_dense_tensor(piece: Tensor, dtype: str) -> bool:
    """Whether an object of a .pth file is a tensor of a dtype with its numbers in memory."""
    import torch

    if not isinstance(piece, torch.Tensor) or piece.layout != torch.strided:
        return False
    return bool(piece.device.type == "cpu" and piece.dtype == getattr(torch, dtype))


def _joined_shape(shapes: list[tuple[int, ...]], join: int | None) -> tuple[int, ...]:
    """The shape of parts that are concatenated along an axis; empty where they do not fit."""
    first = shapes[0]
    if join is None or len(shapes) == 1:
        return first
    if len(first) <= join or any(len(shape) != len(first) for shape in shapes):
        return ()
    other_sizes = {shape[:join] + shape[join + 1 :] for shape in shapes}
    if len(other_sizes) != 1:
        return ()
    return (*first[:join], sum(shape[join] for shape in shapes), *first[join + 1 :])
