"""Whether the tensors of a checkpoint are those of the family that its config names, or that it is treated as."""

from __future__ import annotations

import re

from ..errors import BadSource, shown
from ..families import Family
from ..families.config import Config
from ..families.rows import layer_prefix, layer_prefixes
from ..sources.source import Source

DRAFT_CLASS = re.compile(r"Eagle(?!\d_)|Medusa|MTP|Draft|Speculator", re.IGNORECASE)
"""Names of the classes of draft models; Eagle 2.5 is a model of its own."""
DRAFT_TENSOR = re.compile(r"(model\.)?(fc\.weight|midlayer\..*|d2t|t2d|medusa_heads?\..*)$")
"""Names of tensors that only draft models have, EAGLE, EAGLE-3 and Medusa."""
DRAFT_PART = re.compile(r"(^|\.)(mtp|draft|eagle|medusa|midlayer)")
DRAFT = "transformers does not load it as a model, and it has no context of its own to extend: give the model it is for"


def check_weights(source: Source, config: Config, family: Family, layers: int) -> None:
    """Raises BadSource for the draft model of another one, and where no layer has the projections of its family.

    source: the checkpoint; one whose tensors cannot be listed without fetching them passes, if its config does. config:
    its config.json. family: of its model_type, or that it is treated as. layers: how many it has.
    """
    listed = config.get("architectures")
    named = [one for one in listed if DRAFT_CLASS.search(str(one))] if isinstance(listed, list) else []
    if named:
        raise BadSource(
            f"{source.reference} names {shown(named[0])} in architectures, a draft model for speculative decoding; "
            f"{DRAFT}"
        )
    names = source.tensor_names() if source.weights() else None
    if not names:
        return
    draft = next((name for name in names if DRAFT_TENSOR.match(name)), None)
    if draft and not family.assumed:
        raise BadSource(
            f"{source.reference} has the config of a {family.name} model and the tensor {draft}, which only draft "
            f"models for speculative decoding have; {DRAFT}"
        )
    if family.assumed:
        _check_assumed(source, family, layers, set(names))
    elif not _has_projections(family, layers, names):
        raise BadSource(
            f"{source.reference} has the config of a {family.name} model and none of its {layers} layers has "
            f"{_projections(family)[0]}; if it is a draft model for speculative decoding, such as MTP layers alone: "
            f"{DRAFT}"
        )


def _projections(family: Family) -> list[str]:
    """The names of what makes queries and keys in a layer."""
    return [name for name in (family.weights.fused, family.weights.q, family.weights.k) if name]


def _has_projections(family: Family, layers: int, names: tuple[str, ...]) -> bool:
    """Whether some layer has a projection, whatever the model around it and the quantisation are called."""
    wanted = _projections(family)
    ends = {prefix.partition(".")[2] or prefix for i in range(layers) for prefix in layer_prefixes(i, family)}
    probes = tuple(f"{end}{name}." for end in ends for name in wanted)
    return not wanted or any(
        any(f".{probe}" in f".{name}" for probe in probes) and not DRAFT_PART.search(name) for name in names
    )


def _check_assumed(source: Source, family: Family, layers: int, known: set[str]) -> None:
    prefix = next((found for i in range(layers) if (found := layer_prefix(i, family, known)) is not None), None)
    absent = [name for name in _projections(family) if prefix is None or f"{prefix}{name}.weight" not in known]
    if absent:
        raise BadSource(
            f"{source.reference} has no {absent[0]} in its layers, where a model of the family {family.name} makes "
            "queries and keys; name another --family"
        )
