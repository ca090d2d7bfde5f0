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
    """Layers with the same rotation and attention window.

    kind: as in RopeSpec. window: tokens that they see, None for the whole context. count: number of
    layers.
    """

    kind: LayerKind
    window: int | None
    count: int


def layer_groups(spec: RopeSpec) -> tuple[LayerGroup, ...]:
    """Return the groups of a model's layers. A window as long as the declared context counts as
    none.
    """
    pairs = zip_longest(spec.layers, spec.windows[: len(spec.layers)])
    counts = Counter(
        (kind, window if window and window < spec.context else None) for kind, window in pairs
    )
    order = {"global": 0, "local": 1, "none": 2}
    groups = (LayerGroup(kind, window, count) for (kind, window), count in counts.items())
    return tuple(sorted(groups, key=lambda group: (order[group.kind], group.window or 0)))


def describe_layers(spec: RopeSpec) -> str:
    """Return the groups in words, such as
    `24 rotate and see 4,096 tokens (sliding window); 8 do not rotate ...`.
    """
    groups = layer_groups(spec)
    has_window = any(group.window for group in groups)
    return "; ".join(_words(group, spec, has_window) for group in groups)


def _words(group: LayerGroup, spec: RopeSpec, has_window: bool) -> str:
    form = f" with {describe(spec.local_form)}" if group.kind == "local" and spec.local_form else ""
    words = (
        ("does not rotate", "do not rotate")
        if group.kind == "none"
        else (f"rotates{form}", f"rotate{form}")
    )
    rotate = counted(group.count, *words)
    see = "sees" if group.count == 1 else "see"
    if group.window:
        return f"{rotate} and {see} {group.window:,} tokens ({spec.window_kind})"
    return rotate + (f" and {see} the whole context" if has_window else "")


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A JSON document, or a part of one."""

    def to_dict(self) -> JsonObject:
        """Return the document as JSON-ready data."""
        data: JsonObject = msgspec.json.decode(msgspec.json.encode(self))
        return data


class SourceDocument(Document, frozen=True, kw_only=True):
    """A source. reference: as the user named it. kind: folder, hub, meta, config or gguf. commit:
    on the Hub.
    """

    reference: str
    kind: str
    commit: str | None


class SizeDocument(Document, frozen=True, kw_only=True):
    """The bytes of a key-value cache by dtype, at a number of tokens."""

    tokens: int
    bytes: dict[str, int]


class KvCacheDocument(Document, frozen=True, kw_only=True):
    """The key-value cache of one sequence.

    bytes: by dtype. layers: in groups that keep the same. states: layers with a state of fixed
    size, not counted. source: of a plan, the cache at the length that the source declares.
    """

    tokens: int
    bytes: dict[str, int]
    layers: tuple[CachedLayers, ...]
    states: int
    source: SizeDocument | UnsetType = UNSET


class Problem(msgspec.Struct, frozen=True):
    """A problem in the settings of a model.

    code: a stable name. message: a sentence. repair: flags of `ropeconv apply` that fix it, or
    None.
    """

    code: str
    message: str
    repair: str | None = None


class InspectionDocument(Document, frozen=True, kw_only=True):
    """The RoPE of a checkpoint or GGUF file: `Inspection.to_dict`.

    rope: the numbers of its rope_type. original_context, context: trained and declared tokens.
    layers: how many are "global", "local" and "none". repairs: of the command, for runtimes that do
    not compute it.
    """

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
    rope_theta: float
    attention_factor: float
    softmax_scale: float
    original_context: int
    original_context_source: ContextSource
    original_context_reference: str | None
    context: int
    scaled: bool
    layers: dict[LayerKind, int]
    layer_groups: tuple[LayerGroup, ...]
    visible: int
    effective_length: int | None
    mrope_section: tuple[int, ...]
    nope_query_scaling: QueryScaling | None
    custom_code: str | None
    local_theta: float | None
    refuse: str | None
    notes: tuple[str, ...]
    problems: tuple[Problem, ...]
    runtimes: tuple[RuntimeRecord, ...]
    kv_cache: KvCacheDocument | None
    schedule: ScheduleRecord
    repairs: tuple[Problem, ...] | UnsetType = UNSET
