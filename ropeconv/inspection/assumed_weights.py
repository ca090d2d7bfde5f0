"""Whether the weights of a checkpoint are named as those of the family that it is treated as."""

from __future__ import annotations

from ..errors import BadSource
from ..families import Family
from ..families.rows import layer_prefix
from ..sources.source import Source


def check_assumed_weights(source: Source, family: Family, layers: int) -> None:
    """Raises BadSource where no layer has the projections and norms that an assumed family has.

    source: the checkpoint; one whose tensors cannot be listed without fetching them passes. family: that it is treated
    as. layers: how many it has.
    """
    names = source.tensor_names() if family.assumed and source.weights() else None
    if names is None:
        return
    known, weights = set(names), family.weights
    prefix = next((found for i in range(layers) if (found := layer_prefix(i, family, known)) is not None), None)
    wanted = [name for name in (weights.fused, weights.q, weights.k) if name]
    absent = [name for name in wanted if prefix is None or f"{prefix}{name}.weight" not in known]
    if absent:
        raise BadSource(
            f"{source.reference} has no {absent[0]} in its layers, where a model of the family {family.name} makes "
            "queries and keys; name another --family"
        )
