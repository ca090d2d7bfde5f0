"""AWQ: whole numbers of 4 bits with a scale and a zero point for groups of inputs.

A layer [outputs, inputs] has
    qweight [inputs, outputs / 8]: the numbers of an input, packed along the outputs
    scales  [groups, outputs]
    qzeros  [groups, outputs / 8]: packed as qweight is

and the weight of output o and input i is scales[g, o] * (q[i, o] - zero[g, o]) with g = i // size.
Eight outputs share a word in the order 0 2 4 6 1 3 5 7 from the lowest bits on (AutoAWQ,
`order_map` in modules/linear/gemm.py). That is the version "gemm", as nearly all are published.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import BadSource
from ....rope.errors import shown
from ..form import (
    DOWNLOAD_AGAIN,
    FROM_FLOATS,
    RowScales,
    StoredForm,
    StoredTensors,
    StoredWeight,
    register,
)

SHIFTS = np.array([0, 16, 4, 20, 8, 24, 12, 28], np.uint32)
"""Where each of the eight outputs of a word has its lowest bit."""


@dataclass(frozen=True)
class AwqWeight(StoredWeight):
    """A layer in AWQ."""

    def rows(self, stored: StoredTensors, first: int, end: int) -> NDArray[np.float32]:
        qweight, scales, qzeros = self.uses
        groups = stored.source.tensors[scales].shape[0]
        numbers = _outputs(stored, qweight, first, end)
        zero = _outputs(stored, qzeros, first, end)
        scale = stored.floats(stored.columns(scales, first, end), scales)

        # [groups, inputs of a group, outputs] less [groups, 1, outputs]
        by_group = numbers.reshape(groups, -1, end - first)
        by_group -= zero[:, None]
        by_group *= scale[:, None]
        return np.ascontiguousarray(numbers.T)

    def scales_of_rows(self, stored: StoredTensors, first: int, end: int) -> RowScales | None:
        name = self.uses[1]
        groups, outputs = stored.source.tensors[name].shape
        starts = range(0, groups * outputs, outputs)
        return RowScales(name, tuple((start + first, start + end) for start in starts))


def _outputs(stored: StoredTensors, name: str, first: int, end: int) -> NDArray[np.float32]:
    """The numbers of outputs first .. end - 1, for each input or group."""
    first_word = first // 8
    words: NDArray[Any] = stored.columns(name, first_word, -(-end // 8))
    numbers = words[:, :, None] >> SHIFTS
    numbers &= 15
    start = first - 8 * first_word
    return numbers.reshape(len(words), -1)[:, start : start + end - first].astype(np.float32)


@register
class Awq(StoredForm):
    """Layers with qweight, qzeros and scales in the version "gemm"."""

    title = "AWQ"
    methods = ("awq",)

    def find(self, stored: StoredTensors) -> Iterator[StoredWeight]:
        settings = stored.settings
        version = settings.get("version") or settings.get("checkpoint_format") or "gemm"
        is_read = str(version).lower() == "gemm"
        if not is_read or settings.get("backend") == "llm-awq":
            raise BadSource(
                f"weights in AWQ are read in the version gemm, and config.json states"
                f" {shown(version)}; {FROM_FLOATS}"
            )
        for name in list(stored.remaining):
            if name.endswith(".qweight"):
                yield _weight(stored, name.removesuffix(".qweight"))


def _weight(stored: StoredTensors, layer: str) -> AwqWeight:
    """Describe a weight that AWQ stores as three tensors, and check that their shapes fit.

    Args:
        stored: The tensors of the checkpoint.
        layer: The name of the weight without an ending, e.g. "model.layers.0.self_attn.q_proj".

    Raises:
        BadSource: Its tensors do not fit together.
    """
    qweight = stored.tensor(f"{layer}.qweight", layer)
    scales = stored.tensor(f"{layer}.scales", layer)
    qzeros = stored.tensor(f"{layer}.qzeros", layer)
    problem = BadSource(
        f"the tensors of {layer} do not fit together: qweight {qweight.dtype}"
        f" {list(qweight.shape)}, scales {list(scales.shape)}, qzeros {list(qzeros.shape)};"
        f" {DOWNLOAD_AGAIN}"
    )

    are_words = qweight.dtype == qzeros.dtype == "I32"
    are_matrices = len(qweight.shape) == len(scales.shape) == 2
    if not are_words or not are_matrices or 0 in scales.shape:
        raise problem

    # qweight is [inputs, outputs / 8] and qzeros [groups, outputs / 8]: a word has eight outputs
    groups, outputs = scales.shape
    inputs, words = qweight.shape
    fills_words = outputs % 8 == 0
    groups_are_equal = inputs % groups == 0
    if not fills_words or not groups_are_equal:
        raise problem
    if words != outputs // 8 or qzeros.shape != (groups, words):
        raise problem

    uses = (qweight.name, scales.name, qzeros.name)
    return AwqWeight(f"{layer}.weight", (outputs, inputs), uses)
