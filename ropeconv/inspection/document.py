"""Types of the JSON document of an inspection and of its parts, which plans have too.

docs/python.md describes them.
"""

from collections import Counter
from dataclasses import dataclass
from itertools import zip_longest

import msgspec
from msgspec import UNSET, UnsetType

from ..formats.jsontext import JsonObject
from ..models.config import CachedLayers
from ..rope.errors import counted
from ..rope.schedule import QueryScaling
from ..rope.spec import ContextSource, LayerKind, RopeSpec
from ..runtimes.verdict import describe
from ..version import SCHEMA
from .receipts.receipt import RuntimeRecord, ScheduleRecord


@dataclass(frozen=True)
class LayerGroup:
    """Layers with the same rotation and attention window."""

    kind: LayerKind
    """How they rotate, as in RopeSpec."""

    window: int | None
    """The tokens that they see; None for the whole context."""

    count: int
    """The number of layers."""


def layer_groups(spec: RopeSpec) -> tuple[LayerGroup, ...]:
    """Return the groups of equal layers of a model: those that rotate first, then by their window.

    Gemma 3 4B gives LayerGroup("global", None, 5) and LayerGroup("local", 1024, 29). A window as
    long as the declared context counts as none.
    """
    # `windows` has one entry per layer, or none at all in a model without sliding windows
    counts = Counter[tuple[LayerKind, int | None]]()
    for kind, window in zip_longest(spec.layers, spec.windows[: len(spec.layers)]):
        if window and window >= spec.context:
            window = None
        counts[kind, window or None] += 1

    order = {"global": 0, "local": 1, "none": 2}
    groups = [LayerGroup(kind, window, count) for (kind, window), count in counts.items()]
    groups.sort(key=lambda group: (order[group.kind], group.window or 0))
    return tuple(groups)


def describe_layers(spec: RopeSpec) -> str:
    """Return the groups in words.

    Such as `24 rotate and see 4,096 tokens (sliding window); 8 do not rotate ...`.
    """
    groups = layer_groups(spec)
    if not groups:
        return "their number is not stated"
    has_window = any(group.window for group in groups)
    return "; ".join(_describe_group(group, spec, has_window) for group in groups)


def _describe_group(group: LayerGroup, spec: RopeSpec, has_window: bool) -> str:
    """One group of layers in words, such as `24 rotate and see 4,096 tokens (sliding window)`.

    Args:
        group: The group.
        spec: The RoPE of the model.
        has_window: Whether any group of the model has a window; without one, what layers see is
            left out.
    """
    if group.kind == "none":
        rotate = counted(group.count, "does not rotate", "do not rotate")
    elif group.kind == "local" and spec.local_form:
        # "theta 10000"; an unscaled RoPE would be "default, theta 10000"
        form = describe(spec.local_form).removeprefix("default, ")
        rotate = counted(group.count, f"rotates with {form}", f"rotate with {form}")
    else:
        rotate = counted(group.count, "rotates", "rotate")

    see = "sees" if group.count == 1 else "see"
    if group.window:
        return f"{rotate} and {see} {group.window:,} tokens ({spec.window_kind})"
    if has_window:
        return f"{rotate} and {see} the whole context"
    return rotate


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A JSON document, or a part of one."""

    def to_dict(self) -> JsonObject:
        """Return the document as JSON-ready data."""
        data: JsonObject = msgspec.json.decode(msgspec.json.encode(self))
        return data


class SourceDocument(Document, frozen=True, kw_only=True):
    """A source."""

    reference: str
    """As the user named it."""

    kind: str
    """folder, hub, meta, config or gguf."""

    commit: str | None
    """The commit on the Hub; None for sources from elsewhere."""


class SizeDocument(Document, frozen=True, kw_only=True):
    """The bytes of a key-value cache by dtype, at a number of tokens."""

    tokens: int
    bytes: dict[str, int]


class KvCacheDocument(Document, frozen=True, kw_only=True):
    """The key-value cache of one sequence."""

    tokens: int

    bytes: dict[str, int]
    """The size by dtype."""

    layers: tuple[CachedLayers, ...]
    """The layers in groups that keep the same."""

    states: int
    """Layers with a state of fixed size, which is not counted."""

    source: SizeDocument | UnsetType = UNSET
    """The cache at the length that the source of a plan declares."""


class ThriftyDocument(Document, frozen=True, kw_only=True):
    """The longest context with a smaller type of the cache."""

    cache_type: str
    option: str
    """The option of the runtime that sets it."""

    longest: int


class MachineDocument(Document, frozen=True, kw_only=True):
    """The memory that a need was compared with."""

    kind: str
    name: str
    bytes: int
    """The memory of one device."""

    count: int
    usable: int
    """The bytes of one device that the model can have in the runtime."""


class FitDocument(Document, frozen=True, kw_only=True):
    """The memory that a context takes in a runtime in bytes, and whether it fits."""

    runtime: str
    tokens: int
    cache_type: str

    weights: int | None
    """Null where the source has none."""

    kv_cache: int

    activations: int
    """All else, at the peak."""

    total: int
    machine: MachineDocument

    fits: bool
    """On the devices together."""

    devices: int
    """How many of them it needs; 0 where all are too small."""

    longest: int
    """The longest context that fits; 0 where even the weights do not."""

    thrifty: ThriftyDocument | None
    """A type of the cache with which more fits; null where none helps or is needed."""


class Problem(msgspec.Struct, frozen=True):
    """A problem in the settings of a model."""

    code: str
    """A stable name."""

    message: str
    """A sentence."""

    repair: str | None = None
    """Flags of `ropeconv apply` that fix it."""


class InspectionDocument(Document, frozen=True, kw_only=True):
    """The RoPE of a checkpoint or GGUF file: `Inspection.to_dict`."""

    schema: int = SCHEMA
    source: SourceDocument
    family: str
    assumption: str | None
    head_dim: int
    rotary_dim: int
    layout: str
    mla: bool
    encoder: bool
    draft: str | None
    rope_type: str

    rope: JsonObject
    """The numbers of its rope_type."""

    rope_theta: float
    attention_factor: float
    softmax_scale: float

    original_context: int
    """The tokens that it was trained with."""

    original_context_source: ContextSource
    original_context_reference: str | None

    context: int
    """The tokens that it declares."""

    scaled: bool

    layers: dict[LayerKind, int]
    """How many layers are "global", "local" and "none"."""

    layer_groups: tuple[LayerGroup, ...]
    visible: int
    effective_length: int | None
    mrope_section: tuple[int, ...]
    nope_query_scaling: QueryScaling | None
    custom_code: str | None
    local_theta: float | None
    refuse: str | None
    """Why the model cannot be extended; None where it can."""

    gguf_only: bool
    """Whether `refuse` does not hold for GGUF files."""

    notes: tuple[str, ...]
    problems: tuple[Problem, ...]
    runtimes: tuple[RuntimeRecord, ...]
    kv_cache: KvCacheDocument | None
    memory: tuple[FitDocument, ...]
    """At the declared context, for each runtime whose formulas are known."""

    schedule: ScheduleRecord

    repairs: tuple[Problem, ...] | UnsetType = UNSET
    """Repairs that the command prints, for runtimes that do not compute the RoPE."""
