"""The effective length of every head of a checkpoint, by the variances of its queries and keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
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

    layer: its number. below: distances below it were tested: the length, or the layer's window if that is shorter.
    effective_lengths: one less than the first distance with a negative sum, None if there is none. violations: number
    of distances with a negative sum. Both have one entry per query head.
    """

    layer: int
    below: int
    effective_lengths: tuple[int | None, ...]
    violations: tuple[int, ...]

    @property
    def worst(self) -> tuple[int, int] | None:
        """The head with the shortest effective length, and that length; None if no sum is negative."""
        lengths = [(length, head) for head, length in enumerate(self.effective_lengths) if length is not None]
        return (min(lengths)[1], min(lengths)[0]) if lengths else None

    @property
    def violating(self) -> int:
        """Number of heads with a negative sum."""
        return sum(count > 0 for count in self.violations)


@dataclass(frozen=True)
class HeadLengths:
    """The effective lengths of all heads of a model. layers: those with the frequencies of the schedule."""

    layers: tuple[LayerReach, ...]

    @property
    def heads(self) -> int:
        """Number of heads that were tested."""
        return sum(len(layer.violations) for layer in self.layers)

    @property
    def violating(self) -> int:
        """Number of heads with a negative sum."""
        return sum(layer.violating for layer in self.layers)

    @property
    def worst(self) -> int | None:
        """The shortest effective length; None if no sum is negative."""
        return min((layer.worst[1] for layer in self.layers if layer.worst), default=None)

    @property
    def median(self) -> int | None:
        """The lower median of the effective lengths; None if fewer than half of the heads have a negative sum."""
        lengths = [length for layer in self.layers for length in layer.effective_lengths]
        middle = median_low(np.inf if length is None else length for length in lengths)
        return None if middle == np.inf else int(middle)

    def to_dict(self) -> JsonObject:
        """Return the figures and the layers as JSON-ready data; keys stay within a schema."""
        return {
            "heads": self.heads,
            "heads_with_violations": self.violating,
            "effective_length": self.worst,
            "median_effective_length": self.median,
            "layers": [asdict(layer) for layer in self.layers],
        }


@dataclass(frozen=True)
class HeadWeights:
    """The weights of a model's heads. spec: its RoPE. layers: the number and the weights of each measured layer."""

    spec: RopeSpec
    layers: tuple[tuple[int, PairWeights], ...]

    def below(self, layer: int, length: int) -> int:
        """Return the limit of the distances of a layer that are tested: a length, or its window."""
        window = self.spec.windows[layer] if self.spec.windows else None
        return min(length, window or length)

    def work(self, length: int) -> int:
        """Return how many distances `reach` tests."""
        return sum({self.below(layer, length) - 1 for layer, _ in self.layers})

    def reach(self, schedule: Schedule, length: int, advance: Callable[[int], None] = lambda done: None) -> HeadLengths:
        """Return the effective length of every head with a schedule. Raises what `head_reach` raises.

        length: distances below it are tested, in tokens. advance: called with the number of distances done since the
        last call.
        """
        results: list[LayerReach] = []
        ordered = sorted(self.layers, key=lambda item: self.below(item[0], length))
        for below, group in groupby(ordered, key=lambda item: self.below(item[0], length)):
            layers = list(group)
            rotated, unrotated = (np.concatenate(parts) for parts in zip(*(heads for _, heads in layers), strict=True))
            weights = PairWeights(rotated, unrotated).times(schedule.attention_factor)
            reach = head_reach(schedule.inv_freq, weights, below, advance)
            lengths, counts, begin = reach.effective_lengths, reach.count.tolist(), 0
            for layer, layer_weights in layers:
                heads = slice(begin, begin + len(layer_weights.unrotated))
                begin = heads.stop
                results.append(LayerReach(layer, below, tuple(lengths[heads]), tuple(counts[heads])))
        return HeadLengths(tuple(sorted(results, key=lambda result: result.layer)))

    def to_list(self) -> list[JsonObject]:
        """Return the weights, to six digits: per layer `pairs` [heads][pairs] and `unrotated` [heads]."""
        return [
            {
                "layer": layer,
                "pairs": [[_rounded(weight) for weight in head] for head in weights.rotated],
                "unrotated": [_rounded(weight) for weight in weights.unrotated],
            }
            for layer, weights in self.layers
        ]


@dataclass(frozen=True)
class HeadReading:
    """A checkpoint whose projections are read for the weights of its heads. layers: their projections."""

    source: Source
    spec: RopeSpec
    family: Family
    layers: tuple[AttentionLayer, ...]

    @property
    def size(self) -> int:
        """Number of bytes to read."""
        return bytes_to_read(self.layers, self.spec.head_dim)

    def weights(self, advance: Callable[[int], None] = lambda done: None) -> HeadWeights:
        """Read the projections by range, one layer at a time. Raises what `measure` raises.

        advance: called with the bytes read since the last call.
        """
        spec = self.spec
        variances = measure(self.source, self.layers, self.family, spec.head_dim, advance)
        layers = ((row.layer, pair_weights(row.queries, row.keys, spec.rotary_dim, spec.layout)) for row in variances)
        return HeadWeights(spec, tuple(layers))


def head_reading(inspection: Inspection) -> HeadReading:
    """Find the projections of a checkpoint by its headers.

    Raises BadSource for a source without safetensors weights, and what `attention_layers` raises.
    """
    source = inspection.source
    if not isinstance(inspection, ConfigInspection) or not isinstance(source, Source):
        raise BadSource(f"{source.reference} is a GGUF file; give the safetensors checkpoint that it was made from")
    if source.kind == "meta" and source.commit:
        raise BadSource(
            f"{source.reference} has Meta's layout, whose files cannot be read in part from the Hub; download it with "
            "`hf download`, and name its folder"
        )
    if not source.weights():
        raise BadSource(f"{source.reference} has no safetensors weights; give a checkpoint folder or a Hub id")
    layers = attention_layers(inspection.spec, inspection.family, source.config(), source.tensors)
    if not layers:
        raise BadSource(f"no layer of {source.reference} has frequencies that a method changes; leave --weights out")
    return HeadReading(source, inspection.spec, inspection.family, layers)


def _rounded(number: float) -> float:
    return float(f"{number:.{DIGITS}g}")
