"""GPTQ: whole numbers of 2, 3, 4 or 8 bits with a scale and a zero point for groups of inputs.

A layer [outputs, inputs] has
    qweight [inputs * bits / 32, outputs]: the numbers of an output, packed along its inputs
    scales  [groups, outputs]
    qzeros  [groups, outputs * bits / 32]: the zero points of a group, packed along the outputs
    g_idx   [inputs]: the group of each input, in any order where `desc_act` is true

and the weight of output o and input i is scales[g, o] * (q[i, o] - zero[g, o]) with g = g_idx[i].
Files of version 1 store each zero point less one (AutoGPTQ, `zeros -= 1` in QuantLinear.pack),
those of gptq_v2 store it unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....errors import BadSource
from ....rope.errors import shown
from ..form import AGAIN, FROM_FLOATS, RowScales, StoredForm, StoredTensors, StoredWeight, register
from ..numbers import unpack

LESS_ONE = {"gptq": 1, "gptq_v2": 0}
"""The number to add to a stored zero point, by `checkpoint_format`."""


@dataclass(frozen=True)
class GptqWeight(StoredWeight):
    """A layer in GPTQ."""

    bits: int
    """Bits of a number."""

    less: int
    """The number that was subtracted from each stored zero point."""

    def rows(self, stored: StoredTensors, first: int, end: int) -> NDArray[np.float32]:
        qweight, scales, qzeros, *_ = self.uses
        inputs = self.shape[1]
        group = self._groups(stored)

        # [inputs, outputs] of these outputs, and their scales and zero points [groups, outputs]
        words = stored.columns(qweight, first, end)
        weights = unpack(words, self.bits, inputs).astype(np.float32)
        scale = stored.floats(stored.columns(scales, first, end), scales)
        zero = self._zeros(stored, qzeros, first, end) + np.float32(self.less)

        size = -(-inputs // len(scale))  # rounded up
        in_order = inputs % size == 0 and np.array_equal(group, np.arange(inputs) // size)
        if in_order:  # without a copy of scales and zero points for each input
            by_group = weights.reshape(-1, size, end - first)
            by_group -= zero[:, None]
            by_group *= scale[:, None]
        else:
            weights -= zero[group]
            weights *= scale[group]
        return np.ascontiguousarray(weights.T)

    def scales_of_rows(self, stored: StoredTensors, first: int, end: int) -> RowScales | None:
        name = self.uses[1]
        groups, outputs = stored.source.tensors[name].shape
        starts = range(0, groups * outputs, outputs)
        return RowScales(name, tuple((start + first, start + end) for start in starts))

    def _groups(self, stored: StoredTensors) -> NDArray[np.int64]:
        """The group of each input.

        Raises:
            BadSource: A group has no scale.
        """
        _, scales, _, *index = self.uses
        inputs = self.shape[1]
        count = stored.source.tensors[scales].shape[0]
        if not index:
            return np.arange(inputs) // -(-inputs // count)
        group = stored.whole_numbers(index[0])
        if group.max() >= count:
            raise BadSource(f"{index[0]} names group {group.max()} of {count}; {AGAIN}")
        return group

    def _zeros(
        self, stored: StoredTensors, qzeros: str, first: int, end: int
    ) -> NDArray[np.float32]:
        """The stored zero points of some outputs, [groups, outputs]."""
        # the words that these outputs are in, from a word in which a number begins
        start = first // 32 * 32
        first_word = start * self.bits // 32
        end_word = -(-end * self.bits // 32)  # rounded up
        words = stored.columns(qzeros, first_word, end_word)
        zeros = unpack(np.ascontiguousarray(words.T), self.bits, end - start)
        return zeros[first - start :].T.astype(np.float32)


@register
class Gptq(StoredForm):
    """Layers with qweight, qzeros, scales and g_idx."""

    title = "GPTQ"
    methods = ("gptq",)

    def find(self, stored: StoredTensors) -> Iterator[StoredWeight]:
        settings = stored.settings
        version = settings.get("checkpoint_format") or settings.get("format") or "gptq"
        if version not in LESS_ONE:
            raise BadSource(
                f"weights in GPTQ are read in the formats gptq and gptq_v2, and config.json states"
                f" {shown(version)}; {FROM_FLOATS}"
            )
        for name in list(stored.left):
            if name.endswith(".qweight"):
                yield _weight(stored, name.removesuffix(".qweight"), LESS_ONE[version])


def _weight(stored: StoredTensors, layer: str, less: int) -> GptqWeight:
    """The weight of a layer.

    Raises:
        BadSource: Its tensors do not fit together.
    """
    qweight = stored.tensor(f"{layer}.qweight", layer)
    scales = stored.tensor(f"{layer}.scales", layer)
    qzeros = stored.tensor(f"{layer}.qzeros", layer)
    uses = [qweight.name, scales.name, qzeros.name]
    index = stored.source.tensors.get(f"{layer}.g_idx")
    if index is not None:
        uses.append(index.name)

    are_words = qweight.dtype == qzeros.dtype == "I32"
    are_matrices = len(qweight.shape) == len(scales.shape) == len(qzeros.shape) == 2
    if not are_words or not are_matrices or not all((*scales.shape, *qweight.shape)):
        raise BadSource(
            f"{qweight.name} is {qweight.dtype} {list(qweight.shape)}, and weights in GPTQ are"
            f" read from matrices of I32; {FROM_FLOATS}"
        )

    # the bits of this layer by its shapes: `dynamic` may give some layers others than `bits`
    groups, outputs = scales.shape
    bits = qzeros.shape[1] * 32 // outputs
    is_known = bits in (2, 3, 4, 8) and qzeros.shape == (groups, outputs * bits // 32)
    inputs = qweight.shape[0] * 32 // bits if is_known else 0
    has_index = index is None or index.shape == (inputs,)
    if not is_known or qweight.shape != (inputs * bits // 32, outputs) or not has_index:
        raise BadSource(
            f"the shapes of {layer} do not fit together: qweight {list(qweight.shape)}, scales"
            f" {list(scales.shape)}, qzeros {list(qzeros.shape)}; {AGAIN}"
        )
    return GptqWeight(f"{layer}.weight", (outputs, inputs), tuple(uses), bits, less)
