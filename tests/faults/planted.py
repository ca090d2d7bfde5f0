"""Mistakes that are planted into an output after it was written, and before `apply` checks it: a
wrong factor, a fold that was left out of a layer, a stale table, a metadata key that was dropped.

A case is a command and a change of the files that it wrote. Each is a mistake that a writer of such
files could make, so only what a method changes is wrong, or the order of rows, in which formats
differ.
"""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from ropeconv.formats.gguf.edit import Edit, write_new
from ropeconv.formats.gguf.file import GgufFile
from ropeconv.formats.gguf.header import GgufValue, f32, string, u32

from ..bake.test_companions import head_of
from ..support import graphs
from ..support.adapters import lora
from ..support.baking import recipe_of
from ..support.llamacpp import bake, checkpoint, lively
from ..support.models import make
from .wrong_bakes import Change, interleaved


@dataclass(frozen=True)
class Mistake:
    """A mistake in the output of a command."""

    what: str
    """What is wrong."""

    scene: str
    """The files that the command finds in its folder: a name in SCENES."""

    family: str
    """The model type of the source."""

    words: str
    """The options of the command."""

    change: Change
    """Makes the mistake in a folder of the output, or in its GGUF file."""

    @property
    def right(self) -> tuple[str, str, str]:
        """The command without the mistake, which several cases share."""
        return self.scene, self.family, self.words

    def __str__(self) -> str:
        return "-".join((self.scene, self.family, self.what)).replace(" ", "_")


# What the commands find


def folder(place: Path, family: str) -> None:
    """A checkpoint in `model`, with random biases and norms."""
    lively(make(family, place / "model"))


def gguf_file(place: Path, family: str) -> None:
    """A checkpoint in `model`, and what it becomes in GGUF, in float32."""
    checkpoint(family, place / "model")
    bake(place / "model", recipe_of("as-is"), place / "model.gguf")


def convertible(place: Path, family: str) -> None:
    """A checkpoint with a tokenizer in `model`."""
    checkpoint(family, place / "model")


def pair(place: Path, family: str) -> None:
    """A checkpoint, and a smaller one that was trained on half as many tokens."""
    folder(place, family)
    lively(make(family, place / "small", max_position_embeddings=32))


def pair_with_head(place: Path, family: str) -> None:
    """A checkpoint, and an EAGLE-3 head for it."""
    folder(place, family)
    head_of(place / "model", place / "head")


def gguf_pair(place: Path, family: str) -> None:
    """The same as `pair` in GGUF."""
    gguf_file(place, family)
    checkpoint(family, place / "second", max_position_embeddings=32)
    bake(place / "second", recipe_of("as-is"), place / "small.gguf")


def graph(place: Path, family: str) -> None:
    """An export of torch, which computes cos and sin from a vector of frequencies."""
    graphs.exported(place)


def tables(place: Path, family: str) -> None:
    """A graph with tables of cos and sin."""
    angles = np.outer(np.arange(64), 10_000.0 ** (-np.arange(32) / 32))
    cos = np.cos(angles).astype(np.float32)
    sin = np.sin(angles).astype(np.float32)
    graphs.with_tables(place / "onnx" / "model.onnx", cos, sin)
    graphs.write_config(place / "onnx")


def with_adapter(place: Path, family: str) -> None:
    """A checkpoint, and a LoRA adapter of it."""
    folder(place, family)
    lora(place / "model", place / "adapter")


@dataclass(frozen=True)
class Scene:
    """The files that a command finds, and how it begins."""

    fill: Callable[[Path, str], None]
    command: str
    """The command without its options; OUT is replaced by the output."""

    out: str = "out"
    """The name of the output."""


SCENES = {
    "checkpoint": Scene(folder, "apply model -o OUT"),
    "GGUF": Scene(gguf_file, "apply model.gguf -o OUT", "out.gguf"),
    "conversion": Scene(convertible, "apply model --to gguf --outtype f32 -o OUT", "out.gguf"),
    "in place": Scene(gguf_file, "apply model.gguf --in-place", "model.gguf"),
    "draft": Scene(pair, "apply model --draft small -o OUT", "out-draft"),
    "head": Scene(pair_with_head, "apply model --draft head -o OUT", "out-draft"),
    "GGUF draft": Scene(gguf_pair, "apply model.gguf --draft small.gguf -o OUT", "out-draft.gguf"),
    "graph": Scene(graph, "apply onnx/model.onnx -o OUT"),
    "tables": Scene(tables, "apply onnx/model.onnx -o OUT"),
    "adapter": Scene(with_adapter, "apply model --adapter adapter -o OUT", "out-adapter"),
    "profiles": Scene(folder, "profiles model base,yarn:4,linear:2 -o OUT"),
}


# Changes of a checkpoint

A = 1 + 0.1 * np.log(16.0)
"""The attention factor of YaRN with a factor of 16."""


SOURCES = {"out-draft": ("small", "head"), "out": ("model", "onnx")}
"""The folders that an output may be made from, by its name."""


def find_model(out: Path) -> Path:
    """The model that an output was made from: it is beside the output, or its hidden folder."""
    for above in out.parents:
        for name in SOURCES[out.name]:
            if (above / name / "config.json").exists():
                return above / name
    raise LookupError(out)


def refold(power: int, only: str = "") -> Change:
    """Multiplies what a fold has changed by another power of A than A^2: 0 leaves the fold out.

    Args:
        power: The power.
        only: A pattern of the names of the tensors that have the mistake.
    """

    def alter(before: Tensor, after: Tensor) -> Tensor:
        # a norm that stores w - 1 is multiplied as 1 + w; both are linear in the factor
        share = (A**power - 1) / (A**2 - 1)
        return before + share * (after - before)

    return folded(alter, only)


def folded(alter: Callable[[Tensor, Tensor], Tensor], only: str = "") -> Change:
    """Changes tensors that a fold has changed, by a function of them in the source and output."""

    def change(out: Path) -> None:
        before = safetensors.torch.load_file(find_model(out) / "model.safetensors")
        path = out / "model.safetensors"
        after = safetensors.torch.load_file(path)
        count = 0
        for name, tensor in after.items():
            if re.search(only, name) and not tensor.equal(before[name]):
                after[name] = alter(before[name], tensor).contiguous()
                count += 1
        assert count, f"nothing is folded into {only or 'the output'}"
        safetensors.torch.save_file(after, path, {"format": "pt"})

    return change


def rest_too(before: Tensor, after: Tensor) -> Tensor:
    """Multiplies the part of a tensor that a fold has left alone, because it does not rotate."""
    unchanged = before == after
    assert unchanged.any()
    return torch.where(unchanged, after * A**2, after)


def first_half_only(before: Tensor, after: Tensor) -> Tensor:
    """Leaves the fold out of the second half of the rows, such as those of the last heads."""
    rows = len(after) // 2
    return torch.cat([after[:rows], before[rows:]])


def stored(alter: Callable[[Tensor], Tensor], only: str = "inv_freq") -> Change:
    """Changes tensors in every file of an output."""

    def change(out: Path) -> None:
        count = 0
        for path in sorted(out.glob("*.safetensors")):
            tensors = safetensors.torch.load_file(path)
            for name, tensor in tensors.items():
                if re.search(only, name):
                    tensors[name] = alter(tensor).contiguous()
                    count += 1
            safetensors.torch.save_file(tensors, path, {"format": "pt"})
        assert count, f"it has no {only}"

    return change


def times(place: int, factor: float) -> Callable[[Tensor], Tensor]:
    """Multiplies one number."""

    def alter(tensor: Tensor) -> Tensor:
        tensor = tensor.clone()
        tensor.view(-1)[place] *= factor
        return tensor

    return alter


def stale(table: Any) -> Any:
    """The frequencies of the source, 10,000^(-2i/d), in the shape of a tensor or an array."""
    count = table.shape[-1]
    values = 10_000.0 ** (-np.arange(count) / count)
    if isinstance(table, Tensor):
        return table.new_tensor(values).expand(table.shape)
    return np.broadcast_to(values, table.shape)


def exchange_pairs(rows: Tensor, width: int = 64) -> Tensor:
    """The rows of every head in pairs in place of halves, as the other layout has them."""
    return torch.cat([interleaved(head) for head in rows.split(width)])


def of_source(out: Path) -> None:
    """The config of the source: nothing is extended."""
    shutil.copy(find_model(out) / "config.json", out / "config.json")


def in_json(name: str = "adapter_config.json", **values: Any) -> Change:
    """Other values of keys of a JSON file."""

    def change(out: Path) -> None:
        document = json.loads((out / name).read_text())
        (out / name).write_text(json.dumps(document | values))

    return change


def without_file(name: str) -> Change:
    return lambda out: (out / name).unlink()


def within(name: str, change: Change) -> Change:
    """The same change in a subfolder."""
    return lambda out: change(out / name)


def exchanged(first: str, second: str, name: str = "config.json") -> Change:
    """Exchanges a file of two profiles."""

    def change(out: Path) -> None:
        texts = [(out / profile / name).read_bytes() for profile in (first, second)]
        for profile, text in zip((second, first), texts, strict=True):
            path = out / profile / name
            path.unlink()
            path.write_bytes(text)

    return change


# Changes of a GGUF file


def rewritten(path: Path, edit: Edit) -> None:
    """Writes a file again with an edit."""
    spare = path.with_name(f"spare-{path.name}")
    write_new(GgufFile.open(path), 0, edit, spare)
    spare.replace(path)


def key_of(path: Path, end: str) -> str:
    """The metadata key with this end."""
    keys = [key for key in GgufFile.open(path).header.values if key.endswith(f".{end}")]
    assert len(keys) == 1, keys
    return keys[0]


def with_key(end: str, value: Any) -> Change:
    """Another value of a metadata key; a function is given the present value."""

    def change(path: Path) -> None:
        key = key_of(path, end)
        before = GgufFile.open(path).header.values[key].decode()
        number = value(before) if callable(value) else value
        assert number != before
        rewritten(path, Edit({key: encode(number)}))

    return change


def encode(value: Any) -> GgufValue:
    if isinstance(value, str):
        return string(value)
    return u32(value) if isinstance(value, int) else f32(value)


def without_key(end: str) -> Change:
    def change(path: Path) -> None:
        key = key_of(path, end)
        rewritten(path, Edit(dropped=frozenset({key})))

    return change


def without_tensor(name: str) -> Change:
    return lambda path: rewritten(path, Edit(removed=frozenset({name})))


def with_rows(pattern: str, alter: Callable[[Any], Any]) -> Change:
    """Changes the rows of the tensors whose names match, in the file itself, by gguf-py."""

    def change(path: Path) -> None:
        reader = gguf.GGUFReader(path, "r+")
        count = 0
        for tensor in reader.tensors:
            if re.search(pattern, tensor.name):
                before = tensor.data.copy()
                tensor.data[:] = alter(before.copy())
                assert not np.array_equal(before, tensor.data)
                count += 1
        assert count, f"it has no {pattern}"
        reader.data.flush()

    return change


def divisors(alter: Callable[[Any], Any]) -> Change:
    return with_rows(r"^rope_(freqs|factors_\w+)\.weight$", alter)


def in_halves(rows: Any, width: int = 64) -> Any:
    """Rows in pairs in halves, as if the conversion had not reordered them."""
    heads = rows.reshape(-1, width // 2, 2, *rows.shape[1:])
    return np.swapaxes(heads, 1, 2).reshape(rows.shape)


def in_pairs(rows: Any, width: int = 64) -> Any:
    """The reverse of `in_halves`, as if it had reordered them although it should not."""
    heads = rows.reshape(-1, 2, width // 2, *rows.shape[1:])
    return np.swapaxes(heads, 1, 2).reshape(rows.shape)


def scalar(end: str, value: float) -> Change:
    """Another number of a metadata key, in the file itself."""

    def change(path: Path) -> None:
        reader = gguf.GGUFReader(path, "r+")
        [field] = [field for name, field in reader.fields.items() if name.endswith(f".{end}")]
        assert field.parts[-1][0] != value
        field.parts[-1][0] = value
        reader.data.flush()

    return change


# Changes of a graph


def with_constant(name: str, alter: Callable[[Any], Any]) -> Change:
    """Changes the constants of an ONNX graph whose names match."""

    def change(out: Path) -> None:
        import onnx
        from onnx import numpy_helper

        path = out / "model.onnx"
        model = onnx.load(path)
        count = 0
        for constant in model.graph.initializer:
            if re.search(name, constant.name):
                before = numpy_helper.to_array(constant)
                after = np.asarray(alter(before.copy()), before.dtype)
                constant.CopyFrom(numpy_helper.from_array(after, constant.name))
                count += 1
        assert count, [constant.name for constant in model.graph.initializer]
        onnx.save(model, path)

    return change


def set_item(place: Any, factor: float) -> Callable[[Any], Any]:
    def alter(array: Any) -> Any:
        array[place] = array[place] * factor
        return array

    return alter
