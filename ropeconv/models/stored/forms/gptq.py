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
from ..form import (
    DOWNLOAD_AGAIN,
    FROM_FLOATS,
    RowScales,
    StoredForm,
    StoredTensors,
    StoredWeight,
    register,
)
from ..numbers import unpack

SUBTRACTED_FROM_ZEROS = {"gptq": 1, "gptq_v2": 0}
"""The number to add to a stored zero point, by `checkpoint_format`."""


@dataclass(frozen=True)
class GptqWeight(StoredWeight):
    """A layer in GPTQ."""

    bits: int
    """Bits of a number."""

    subtracted_from_zeros: int
    """The number that was subtracted from each stored zero point."""

    def rows(self, stored: StoredTensors, first: int, end: int) -> NDArray[np.float32]:
        """Return the rows first .. end - 1 in float32, [rows, columns].

        GPTQ stores small whole numbers. A weight is (number - zero point) * scale, and groups of
        inputs share a zero point and a scale for each output.
        """
        # the names of the tensors; a fourth one, g_idx, is read by `_groups`
        qweight, scales, qzeros, *_ = self.uses

        # a row of the weight makes one output, so these are the outputs first .. end - 1
        outputs = end - first
        inputs = self.shape[1]
        words = stored.columns(qweight, first, end)
        weights = unpack(words, self.bits, inputs).astype(np.float32)  # [inputs, outputs]
        scale = stored.floats(stored.columns(scales, first, end), scales)  # [groups, outputs]
        # files of version 1 have all zero points smaller by 1 (subtracted_from_zeros)
        stored_zero = self._zeros(stored, qzeros, first, end)  # [groups, outputs]
        zero = stored_zero + np.float32(self.subtracted_from_zeros)

        # weight = (number - zero) * scale, with the zero point and the scale of the input's group
        group_of_input = self._groups(stored)
        groups = len(scale)
        group_size = -(-inputs // groups)  # rounded up
        groups_are_equal = inputs % group_size == 0
        neighbours = np.arange(inputs) // group_size
        if groups_are_equal and np.array_equal(group_of_input, neighbours):
            # Groups of neighbours need no copy of a scale and a zero point for each input.
            # `by_group` is a view, so these operations change `weights`.
            by_group = weights.reshape(-1, group_size, outputs)
            by_group -= zero[:, None]
            by_group *= scale[:, None]
        else:
            weights -= zero[group_of_input]
            weights *= scale[group_of_input]
        return np.ascontiguousarray(weights.T)

    def scales_of_rows(self, stored: StoredTensors, first: int, end: int) -> RowScales | None:
        name = self.uses[1]
        groups, outputs = stored.source.tensors[name].shape
        starts = range(0, groups * outputs, outputs)
        return RowScales(name, tuple((start + first, start + end) for start in starts))

    def _groups(self, stored: StoredTensors) -> NDArray[np.int64]:
        """Return the group of each input, whose scale and zero point it has, as int64 [inputs].

        g_idx states it. Without that tensor, groups are neighbours: 0 0 0 0 1 1 1 1.

        Raises:
            BadSource: A group has no scale.
        """
        _, scales, _, *index = self.uses  # g_idx is the fourth tensor, where there is one
        inputs = self.shape[1]
        groups = stored.source.tensors[scales].shape[0]
        if not index:
            group_size = -(-inputs // groups)  # rounded up
            return np.arange(inputs) // group_size

        index_name = index[0]
        group_of_input = stored.whole_numbers(index_name)
        if group_of_input.max() >= groups:
            raise BadSource(
                f"{index_name} names group {group_of_input.max()} of {groups}; {DOWNLOAD_AGAIN}"
            )
        return group_of_input

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
        if version not in SUBTRACTED_FROM_ZEROS:
            raise BadSource(
                f"weights in GPTQ are read in the formats gptq and gptq_v2, and config.json states"
                f" {shown(version)}; {FROM_FLOATS}"
            )
        for name in list(stored.remaining):
            if name.endswith(".qweight"):
                yield _weight(stored, name.removesuffix(".qweight"), SUBTRACTED_FROM_ZEROS[version])


def _weight(stored: StoredTensors, layer: str, subtracted_from_zeros: int) -> GptqWeight:
    """Describe a weight that GPTQ stores as three or four tensors, and check their shapes.

    Args:
        stored: The tensors of the checkpoint.
        layer: The name of the weight without an ending, e.g. "model.layers.0.self_attn.q_proj".
        subtracted_from_zeros: The number that was subtracted from each stored zero point.

    Raises:
        BadSource: Its tensors do not fit together.
    """
    qweight = stored.tensor(f"{layer}.qweight", layer)
    scales = stored.tensor(f"{layer}.scales", layer)
    qzeros = stored.tensor(f"{layer}.qzeros", layer)
    index = stored.source.tensors.get(f"{layer}.g_idx")

    are_words = qweight.dtype == qzeros.dtype == "I32"
    are_matrices = len(qweight.shape) == len(scales.shape) == len(qzeros.shape) == 2
    are_empty = 0 in scales.shape or 0 in qweight.shape
    if not are_words or not are_matrices or are_empty:
        raise BadSource(
            f"{qweight.name} is {qweight.dtype} {list(qweight.shape)}, and weights in GPTQ are"
            f" read from matrices of I32; {FROM_FLOATS}"
        )

    # The bits of this layer follow from its shapes, since `dynamic` in the settings may give some
    # layers others than `bits`. qzeros is [groups, outputs * bits / 32], and qweight
    # [inputs * bits / 32, outputs].
    message = (
        f"the shapes of {layer} do not fit together: qweight {list(qweight.shape)}, scales"
        f" {list(scales.shape)}, qzeros {list(qzeros.shape)}; {DOWNLOAD_AGAIN}"
    )
    groups, outputs = scales.shape
    bits = qzeros.shape[1] * 32 // outputs
    if bits not in (2, 3, 4, 8) or qzeros.shape != (groups, outputs * bits // 32):
        raise BadSource(message)
    inputs = qweight.shape[0] * 32 // bits
    if qweight.shape != (inputs * bits // 32, outputs):
        raise BadSource(message)

    uses = [qweight.name, scales.name, qzeros.name]
    if index is not None:
        if index.shape != (inputs,):
            raise BadSource(message)
        uses.append(index.name)
    return GptqWeight(
        name=f"{layer}.weight",
        shape=(outputs, inputs),
        uses=tuple(uses),
        bits=bits,
        subtracted_from_zeros=subtracted_from_zeros,
    )
