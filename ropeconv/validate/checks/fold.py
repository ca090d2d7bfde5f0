"""Compares folded weights with those of the source times the factors of the schedule."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...encode.fold.arithmetic import scaled
from ...encode.fold.placement import fold
from ...errors import BadSource, Disagreement
from ...formats.floats import STORED, widened
from ...formats.index import INDEX
from ...sources import Source
from ...sources.folder import FolderSource
from ..comparison import Comparison


def check_fold(comparison: Comparison) -> None:
    """Raises Disagreement where a folded tensor is not that of the source times the factors of the schedule, rounded.

    Raises BadSource where the receipt lists no fold, or a tensor is missing.
    """
    baked, source, said = comparison.baked, comparison.checkpoint, comparison.receipt.fold
    if said is None:
        raise BadSource(f"the receipt of {baked} does not say what was folded; run apply again")
    config = source.config()
    expected = fold(comparison.schedule, comparison.spec, source.family, config, source.tensors, said.fold_into)
    ours = FolderSource(baked)
    for name in expected.tensors:
        old, dtype = _numbers(source, name)
        new, stored = _numbers(ours, name)
        wanted = old if stored == dtype else widened(old, dtype)
        for scaling in expected.scalings:
            if scaling.tensor == name:
                for start, stop in scaling.spans:
                    wanted[start:stop] = scaled(wanted[start:stop], stored, scaling.factor, scaling.plus_one)
        if not np.array_equal(wanted.view(np.uint8), new.view(np.uint8)):
            raise Disagreement(
                f"{name} of {baked} is not its source's with the attention factor folded in; run apply again"
            )


def _numbers(source: Source, name: str) -> tuple[NDArray[Any], str]:
    """The flat numbers of a tensor as numpy reads them, and their dtype as safetensors names it."""
    for shard, header in source.headers.items():
        if name in header.tensors:
            tensor, start = header.tensors[name], header.data_start
            found = np.frombuffer(source.read(shard, start + tensor.start, start + tensor.stop), STORED[tensor.dtype])
            return found.copy(), tensor.dtype
    raise BadSource(f"{INDEX} and the shards have no {name}; download the checkpoint again, or run apply again")
