"""Groups of layers that rotate alike and see equally far, and what an extension of their RoPE can reach."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import zip_longest

from ..errors import counted
from ..rope.spec import LayerKind, RopeSpec
from ..runtimes.compare import describe


@dataclass(frozen=True)
class LayerGroup:
    """Layers that rotate alike and see equally far.

    kind: as in RopeSpec. window: tokens that they see, None for the whole context. count: number of layers.
    """

    kind: LayerKind
    window: int | None
    count: int


def layer_groups(spec: RopeSpec) -> tuple[LayerGroup, ...]:
    """The groups of a model's layers; windows as long as the declared context count as none."""
    pairs = zip_longest(spec.layers, spec.windows[: len(spec.layers)])
    seen = Counter((kind, size if size and size < spec.context else None) for kind, size in pairs)
    order = {"global": 0, "local": 1, "none": 2}
    found = (LayerGroup(kind, size, count) for (kind, size), count in seen.items())
    return tuple(sorted(found, key=lambda one: (order[one.kind], one.window or 0)))


def describe_layers(spec: RopeSpec) -> str:
    """The groups in words: `24 rotate and see 4,096 tokens (sliding window); 8 see the whole context without RoPE`."""
    groups = layer_groups(spec)
    several = any(one.window for one in groups)
    return "; ".join(_words(one, spec, several) for one in groups)


def _words(group: LayerGroup, spec: RopeSpec, several: bool) -> str:
    own = f" with {describe(spec.local_form)}" if group.kind == "local" and spec.local_form else ""
    words = ("does not rotate", "do not rotate") if group.kind == "none" else (f"rotates{own}", f"rotate{own}")
    rotate, see = counted(group.count, *words), "sees" if group.count == 1 else "see"
    if group.window:
        return f"{rotate} and {see} {group.window:,} tokens ({_kind(spec)})"
    return rotate + (f" and {see} the whole context" if several else "")


def _kind(spec: RopeSpec) -> str:
    return "chunks" if spec.chunked else "sliding window"


def cannot_gain(spec: RopeSpec, context: int) -> str:
    """Why an extension of RoPE does not extend what a model sees, and what would; empty where it does.

    spec: of the model. context: the tokens that the output declares.
    """
    window = spec.rotating_window
    if window is None or window >= context:
        return ""
    words = f"{window:,} tokens ({_kind(spec)})"
    count, still = spec.count("global"), spec.count("none")
    if still:
        return (
            f"the {counted(count, 'layer that rotates sees', 'layers that rotate see')} {words}, and the "
            f"{counted(still, 'that sees the whole context has', 'that see the whole context have')} no RoPE: "
            f"the extension changes only the former, `--as-is --context {context}` raises the context without it"
        )
    return (
        f"every layer that rotates sees {words}, whatever the context, so the extension adds nothing beyond them; "
        "set sliding_window to null first where the model was trained without it"
    )
