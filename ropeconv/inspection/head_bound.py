"""The effective length of every head of a checkpoint, by the variances of its queries and keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from statistics import median_low

import numpy as np

from ..errors import BadSource
from ..formats.jsontext import JsonObject
from ..models.family import Family
from ..models.source import Source
from ..rope.bound.reach import head_reach
from ..rope.bound.sums import PairWeights, pair_weights
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from .inspection import ConfigInspection, Inspection
from .variances import AttentionLayer, attention_layers, bytes_to_read, measure

DIGITS = 6


@dataclass(frozen=True)
class LayerReach:
    """The effective lengths of a layer's heads, in tokens.

    layer: its number. below: distances below it were judged: the length, or the layer's window where that is shorter.
    effective_lengths: one less than the first distance with a negative sum, None where there is none. violations:
    number of distances with a negative sum. Both with one entry per head of queries.
    """

    layer: int
    below: int
    effective_lengths: tuple[int | None, ...]
    violations: tuple[int, ...]

    @property
    def worst(self) -> tuple[int, int] | None:
        """The head with the shortest effective length, and that length; None where no sum is negative."""
        known = [(length, head) for head, length in enumerate(self.effective_lengths) if length is not None]
        return (min(known)[1], min(known)[0]) if known else None

    @property
    def violating(self) -> int:
        """Number of heads with a negative sum."""
        return sum(count > 0 for count in self.violations)

    def to_dict(self) -> JsonObject:
        """The fields as JSON-ready data."""
        return {
            "layer": self.layer,
            "below": self.below,
            "effective_lengths": list(self.effective_lengths),
            "violations": list(self.violations),
        }


@dataclass(frozen=True)
class HeadLengths:
    """The effective lengths of all heads of a model. layers: those that rotate as the schedule says."""

    layers: tuple[LayerReach, ...]

    @property
    def heads(self) -> int:
        """Number of heads that were judged."""
        return sum(len(one.violations) for one in self.layers)

    @property
    def violating(self) -> int:
        """Number of heads with a negative sum."""
        return sum(one.violating for one in self.layers)

    @property
    def worst(self) -> int | None:
        """The shortest effective length; None where no sum is negative."""
        return min((one.worst[1] for one in self.layers if one.worst), default=None)

    @property
    def median(self) -> int | None:
        """The lower median of the effective lengths; None where fewer than half of the heads have a negative sum."""
        found = [np.inf if length is None else length for one in self.layers for length in one.effective_lengths]
        middle = median_low(found)
        return None if middle == np.inf else int(middle)

    def to_dict(self) -> JsonObject:
        """The figures and the layers as JSON-ready data; keys stay within a schema."""
        return {
            "heads": self.heads,
            "heads_with_violations": self.violating,
            "effective_length": self.worst,
            "median_effective_length": self.median,
            "layers": [one.to_dict() for one in self.layers],
        }


@dataclass(frozen=True)
class HeadWeights:
    """The weights of a model's heads. spec: its RoPE. layers: which were measured, with the weights of each."""

    spec: RopeSpec
    layers: tuple[tuple[int, PairWeights], ...]

    def below(self, layer: int, length: int) -> int:
        """The distances of a layer that are judged: up to a length, or to its window."""
        window = self.spec.windows[layer] if self.spec.windows else None
        return min(length, window or length)

    def work(self, length: int) -> int:
        """How many distances `reach` looks at."""
        return sum({self.below(layer, length) - 1 for layer, _ in self.layers})

    def reach(self, schedule: Schedule, length: int, advance: Callable[[int], None] = lambda done: None) -> HeadLengths:
        """The effective length of every head with a schedule.

        schedule: its frequencies and attention factor. length: distances below it are judged, in tokens. advance:
        called with the number of distances done since the last call. Raises what `head_reach` raises.
        """
        found: list[LayerReach] = []
        ordered = sorted(self.layers, key=lambda one: self.below(one[0], length))
        for below, group in groupby(ordered, key=lambda one: self.below(one[0], length)):
            layers = list(group)
            rotated, unrotated = (np.concatenate(parts) for parts in zip(*(own for _, own in layers), strict=True))
            weights = PairWeights(rotated, unrotated).times(schedule.attention_factor)
            reached = head_reach(schedule.inv_freq, weights, below, advance)
            lengths, counts, begin = reached.effective_lengths, reached.count.tolist(), 0
            for layer, own in layers:
                heads = slice(begin, begin + len(own.unrotated))
                begin = heads.stop
                found.append(LayerReach(layer, below, tuple(lengths[heads]), tuple(counts[heads])))
        return HeadLengths(tuple(sorted(found, key=lambda one: one.layer)))

    def to_list(self) -> list[JsonObject]:
        """The weights as JSON-ready data, to six digits: per layer `pairs` [heads][pairs] and `unrotated` [heads]."""
        return [
            {
                "layer": layer,
                "pairs": [[_rounded(weight) for weight in head] for head in own.rotated],
                "unrotated": [_rounded(weight) for weight in own.unrotated],
            }
            for layer, own in self.layers
        ]


@dataclass(frozen=True)
class HeadReading:
    """What of a checkpoint has to be read for the weights of its heads.

    source: the checkpoint. spec, family: of it. layers: their projections.
    """

    source: Source
    spec: RopeSpec
    family: Family
    layers: tuple[AttentionLayer, ...]

    @property
    def size(self) -> int:
        """How many bytes are read."""
        return bytes_to_read(self.layers, self.spec.head_dim)

    def weights(self, advance: Callable[[int], None] = lambda done: None) -> HeadWeights:
        """Reads the projections by range, one layer at a time. Raises what `measure` raises.

        advance: called with the bytes read since the last call.
        """
        spec = self.spec
        variances = measure(self.source, self.layers, self.family, spec.head_dim, advance)
        found = ((one.layer, pair_weights(one.queries, one.keys, spec.rotary_dim, spec.layout)) for one in variances)
        return HeadWeights(spec, tuple(found))


def head_reading(seen: Inspection) -> HeadReading:
    """What of a checkpoint has to be read, from its headers alone.

    seen: its inspection. Raises BadSource for what has no safetensors weights, and what `attention_layers` raises.
    """
    source = seen.source
    if not isinstance(seen, ConfigInspection) or not isinstance(source, Source):
        raise BadSource(
            f"{source.reference} is GGUF, and only safetensors are measured; give the checkpoint it is from"
        )
    if source.kind == "meta" and source.commit:
        raise BadSource(
            f"{source.reference} is in Meta's layout, whose files cannot be read in part from the Hub; download it "
            "with `hf download`, and name its folder"
        )
    if not source.weights():
        raise BadSource(f"{source.reference} has no safetensors weights; give a checkpoint folder or a Hub id")
    layers = attention_layers(seen.spec, seen.family, source.config(), source.tensors)
    if not layers:
        raise BadSource(f"no layer of {source.reference} rotates as a method would change it; leave --weights out")
    return HeadReading(source, seen.spec, seen.family, layers)


def _rounded(number: float) -> float:
    return float(f"{number:.{DIGITS}g}")
