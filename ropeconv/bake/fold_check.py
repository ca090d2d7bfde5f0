"""Compares the layers of a folded output with each other: each is changed as the first of its kind.

`refuse_uneven_fold` is the function to read first. The layer check runs the first layer of each
kind only, since the attention of all layers would be gigabytes to read. A fold that forgets a later
layer, or changes it twice, shows in the weights: the factors by which its rows are multiplied are
not those of the first. They are measured in the files, on some rows of each tensor, and do not
follow from the fold that was planned.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..convert.fold import FLOATS
from ..errors import Disagreement
from ..formats.files import open_regular
from ..formats.safetensors import STORED, Header, Tensor, read_header, widen
from ..models.config import text_part
from ..models.layers import key_layers, layer_prefix
from ..models.source import read_exactly
from .checkpoint import CheckpointPlan

Numbers = NDArray[np.float64]

SAMPLED_ROWS = 64
"""Rows of a tensor that are read."""
SAMPLED_COLUMNS = 32
"""Numbers of a row that are read."""
GOLDEN = 0.6180339887
"""The step from row to row, as a part of all rows: it meets every place in heads of any width."""
PRECISION = {"F64": 2.0**-23, "F32": 2.0**-23, "F16": 2.0**-10, "BF16": 2.0**-7}
"""The distance of neighbouring numbers, relatively; numbers are compared as 32-bit floats."""
EXPERTS = ".experts."


@dataclass(frozen=True)
class _Weights:
    """The tensors of some safetensors files."""

    files: Mapping[str, tuple[Path, Header]]
    """Where each tensor is, by its name."""

    def tensor(self, name: str) -> Tensor:
        """Return the entry of a tensor in the header of its file."""
        return self.files[name][1].tensors[name]

    def sample(self, name: str) -> Numbers:
        """Return the first columns of some rows of a tensor, float64 [rows, columns].

        About 64 rows are read, spread over the tensor. Each number of a vector, such as a bias, is
        a row.
        """
        # a tensor [4096, 1024] has 4096 rows of 1024 numbers; for a vector [4096], `row_shape` is
        # empty, and math.prod(()) is 1
        path, header = self.files[name]
        tensor = header.tensors[name]
        row_count, *row_shape = tensor.shape
        row_width = math.prod(row_shape)
        sampled_width = min(row_width, SAMPLED_COLUMNS)

        # numpy has no BF16, so the 16 bits are read as an integer, of which `widen` makes a float
        stored_type = np.dtype(STORED[tensor.dtype])

        rows = []
        tensor_start = header.data_start + tensor.start
        with open_regular(path) as file:
            for row_number in sample_rows(row_count):
                start = tensor_start + row_number * row_width * stored_type.itemsize
                stop = start + sampled_width * stored_type.itemsize
                raw = read_exactly(file, path.name, start, stop)
                rows.append(widen(np.frombuffer(raw, stored_type), tensor.dtype))
        return np.array(rows, np.float64)


def sample_rows(count: int) -> list[int]:
    """Return the numbers of the rows that are read, for a tensor that has `count` rows."""
    if count <= SAMPLED_ROWS:
        return list(range(count))
    rows = {int(number * GOLDEN % 1 * count) for number in range(SAMPLED_ROWS)}
    return sorted(rows | {0, count - 1})


@dataclass(frozen=True)
class _FoldCheck:
    """A folded output and its source, both on this disk."""

    plan: CheckpointPlan
    before: _Weights
    after: _Weights

    @cached_property
    def stored_minus_one(self) -> frozenset[str]:
        """The tensors that store their numbers minus 1, as norms of Gemma do."""
        fold = self.plan.result.fold
        scalings = fold.scalings if fold is not None else ()
        return frozenset(scaling.tensor for scaling in scalings if scaling.plus_one)

    def run(self) -> None:
        """Compare each layer with the first of its kind. Raises Disagreement."""
        plan = self.plan
        layer_kinds = plan.before.layers  # e.g. ("local", "local", "global", ...)
        config = text_part(plan.source.config(), plan.source.family)
        # for each layer, the one that computes its keys: some models share them between layers
        key_makers = key_layers(config, plan.source.family, len(layer_kinds))

        first_of_kind: dict[str, int] = {}
        for layer, kind in enumerate(layer_kinds):
            if key_makers[layer] != layer:  # it has no weights for keys
                continue
            first = first_of_kind.setdefault(kind, layer)
            if first != layer:
                self._compare(first, layer)

    def _compare(self, first: int, layer: int) -> None:
        """Check that a fold has multiplied a layer by the same factors as another layer of its
        kind.

        A factor is measured for each row, from its numbers before the fold and after it.

        Args:
            first: The number of the first layer of the kind, whose factors are expected.
            layer: The number of the layer that is checked.

        Raises:
            Disagreement: A row has another factor.
        """
        for name, other in self._pairs(first, layer):  # such as the weights of both for keys
            expected = self._factors(name)
            measured = self._factors(other)
            # rounding may change each of the two by the distance of neighbouring numbers
            precision = PRECISION[self.before.tensor(name).dtype]
            allowed = 2 * precision * np.maximum(np.abs(expected), 1.0)
            differences = np.abs(measured - expected)
            if (differences > allowed).any():
                row = int(np.argmax(differences))
                raise Disagreement(
                    f"layer {layer} is not changed as layer {first}: rows of {other} are"
                    f" multiplied by {measured[row]:.6g}, and those of {name} by"
                    f" {expected[row]:.6g}; report it"
                )

    def _pairs(self, layer: int, other_layer: int) -> Iterator[tuple[str, str]]:
        """Yield the names of the tensors that two layers both have, and that a fold may multiply.

        Such as ("model.layers.0.self_attn.k_proj.weight",
        "model.layers.5.self_attn.k_proj.weight") for the layers 0 and 5.
        """
        family = self.plan.source.family
        prefix = layer_prefix(layer, family, self.before.files)  # "model.layers.0."
        other_prefix = layer_prefix(other_layer, family, self.before.files)
        if prefix is None or other_prefix is None:
            return
        for name in self.before.files:
            is_of_expert = EXPERTS in name  # a fold multiplies attention only
            if not name.startswith(prefix) or is_of_expert:
                continue
            other_name = other_prefix + name.removeprefix(prefix)
            if other_name not in self.before.files:
                continue
            tensor = self.before.tensor(name)
            is_scalar = not tensor.shape
            if is_scalar or tensor.dtype not in FLOATS:
                continue
            # layers of one kind may have heads of other sizes
            if tensor.shape == self.before.tensor(other_name).shape:
                yield name, other_name

    def _factors(self, name: str) -> Numbers:
        """By what each row of a tensor is multiplied, float64 [rows]; 1 for a row of zeros."""
        # norms of Gemma store w - 1
        offset = 1.0 if name in self.stored_minus_one else 0.0
        before = self.before.sample(name) + offset
        after = self.after.sample(name) + offset
        # the factor f with the least squares of after - f * before
        squares = (before * before).sum(axis=1)
        products = (before * after).sum(axis=1)
        factors = np.ones(len(before))
        np.divide(products, squares, out=factors, where=squares > 0)
        return factors


def refuse_uneven_fold(plan: CheckpointPlan, folder: Path) -> None:
    """Raise Disagreement where a layer of a folded output is changed otherwise than its kind.

    A fold (`--encoding weights`) multiplies rows of weights such as q_proj and k_proj, so that they
    have the attention factor in them; in all layers of one kind by the same numbers. Nothing is
    compared where no fold was planned, and where the source is converted or on the Hub.

    Args:
        plan: The plan of the output.
        folder: The folder of its files; those that are copied may be missing there.
    """
    if plan.result.fold is None:
        return
    source = plan.source
    if not source.has_stored_weights:
        return

    # where each tensor is in the source, and in the output: copied files are those of the source
    before: dict[str, tuple[Path, Header]] = {}
    for file, header in source.headers.items():
        for name in header.tensors:
            before[name] = (source.path(file), header)
    after = dict(before)
    for planned in plan.files:
        path = folder / planned.name
        if not planned.name.endswith(".safetensors") or not path.exists():
            continue
        header = read_header(path)
        for name in header.tensors:
            after[name] = (path, header)
    _FoldCheck(plan, _Weights(before), _Weights(after)).run()
