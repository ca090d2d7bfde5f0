"""What the programs of mlx-lm and mlx-vlm share: a watch on what a model rotates, and a reader of
rotations.

Nothing is read out of attributes. A few tokens go through the real model while `mx.fast.rope` and
`mx.fast.scaled_dot_product_attention` are watched, so a layer has the rope that its attention
really applies to queries and keys. That object is then called on unit vectors: the matrix that
comes back gives pairs, angles and the factor.

mlx is lazy: the pass builds the whole graph, with every check of shapes, but computes nothing
unless asked. So models of any size are passed; only small ones are computed.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np
import protocol
from mlx.utils import tree_flatten

SMALL = 50_000_000
"""Models with fewer parameters than this are computed."""
TOKENS = (5, 6, 7, 8, 9, 10)
PERIODS = {
    "gemma3_text": ("sliding_window_pattern", 6),
    "cohere2": ("sliding_window_pattern", 4),
    "qwen3_next": ("full_attention_interval", 4),
    "qwen3_5_text": ("full_attention_interval", 4),
}
"""Where they know kinds of layers by a period instead of layer_types: its key and default."""
PUBLISHED: dict[str, dict[str, Any]] = {
    "apertus": {"mlp_bias": False, "post_norm": False, "qk_norm": True},
    "exaone4": {"rope_scaling": None},
    "glm4v_moe": {"use_qk_norm": False},
    "glm4_moe": {"rope_scaling": None},
    "minimax_m2": {"shared_intermediate_size": 0},
    "qwen3_vl_moe": {"norm_topk_prob": True},
}
"""Keys that they require, every published config of the family has, and configs made by
transformers 5 lack.
"""
REAL_ROPE = mx.fast.rope
REAL_ATTENTION = mx.fast.scaled_dot_product_attention


def complete(config: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """What is added to a config of the lab, so that its size alone stops nothing; nothing that
    concerns RoPE.

    The second value: the layers are then of other kinds than layer_types says, except in the first
    period.
    """
    inner = config.get("text_config") or config
    model_type = inner.get("model_type", config["model_type"])
    kinds = inner.get("layer_types")
    added = {
        key: value
        for key, value in PUBLISHED.get(config["model_type"], {}).items()
        if key not in inner
    }
    if (
        model_type == "exaone4"
        and kinds
        and not isinstance(inner.get("sliding_window_pattern"), str)
    ):
        added["sliding_window_pattern"] = "".join(
            "L" if kind == "sliding_attention" else "G" for kind in kinds
        )
    if model_type == "granitemoehybrid" and kinds:
        added["layer_types"] = [
            "mamba" if kind == "linear_attention" else "attention" for kind in kinds
        ]
    key, period = PERIODS.get(model_type, ("", 0))
    if key and kinds and key not in inner:
        full = [kind == "full_attention" for kind in kinds]
        if full != [(number + 1) % period == 0 for number in range(len(kinds))] and any(full):
            added[key] = full.index(True) + 1
    return added, key in added


@dataclass
class Watch:
    """What a forward pass did. calls: per layer the owners of rope calls and the size of the
    vectors they got.

    indexers: the ropes, by id, of modules that only choose tokens. heads: per layer the number and
    size of the heads of queries and keys. vectors: per layer the queries and keys of the last pass.
    """

    layers: dict[int, int]
    layer: int | None = None
    indexers: set[int] = field(default_factory=set)
    calls: dict[int, list[tuple[Any, int]]] = field(default_factory=dict)
    scales: dict[int, list[float]] = field(default_factory=dict)
    heads: dict[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    vectors: dict[int, tuple[mx.array, ...]] = field(default_factory=dict)
    query_scale: Callable[[int], float] | None = None
    position: int | None = None

    def rope(self, x: mx.array, *args: Any, **kwargs: Any) -> mx.array:
        """mx.fast.rope, remembered; while probing, at the position that was asked for."""
        if self.position is not None:
            kwargs["offset"] = self.position
        elif self.layer is not None:
            owner = sys._getframe(1).f_locals.get("self")
            if id(owner) not in self.indexers:
                self.calls.setdefault(self.layer, []).append((owner, x.shape[-1]))
        return REAL_ROPE(x, *args, **kwargs)

    def attention(self, *args: Any, **kwargs: Any) -> mx.array:
        """mx.fast.scaled_dot_product_attention, remembered."""
        if self.layer is not None:
            self.scales.setdefault(self.layer, []).append(float(kwargs["scale"]))
            self.vectors[self.layer] = args[:2]
            self.heads[self.layer] = tuple((array.shape[1], array.shape[3]) for array in args[:2])
        return REAL_ATTENTION(*args, **kwargs)


@contextmanager
def watching(watch: Watch, layers: list[Any]) -> Iterator[None]:
    """Puts the watch in place of mlx's functions, and notes which layer is running."""
    name = "_get_llama_4_attn_scale"
    mx.fast.rope = watch.rope
    mx.fast.scaled_dot_product_attention = watch.attention
    originals = {kind: kind.__call__ for kind in {type(layer) for layer in layers}}
    users = [
        module
        for key, module in sys.modules.items()
        if key.startswith(("mlx_lm.models.", "mlx_vlm.models.")) and hasattr(module, name)
    ]
    temperature: Any = getattr(users[0], name) if users else None

    def watched(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
            watch.layer = watch.layers.get(id(layer))
            try:
                return original(layer, *args, **kwargs)
            finally:
                watch.layer = None

        return call

    def scaled(size: int, offset: Any, *args: Any, **kwargs: Any) -> mx.array:
        watch.query_scale = lambda position: temperature(1, position, *args, **kwargs).item()
        return temperature(size, offset, *args, **kwargs)

    for kind, original in originals.items():
        kind.__call__ = watched(original)
    for user in users:
        setattr(user, name, scaled)
    try:
        yield
    finally:
        mx.fast.rope = REAL_ROPE
        mx.fast.scaled_dot_product_attention = REAL_ATTENTION
        for kind, original in originals.items():
            kind.__call__ = original
        for user in users:
            setattr(user, name, temperature)


@dataclass(frozen=True)
class Runner:
    """How a runtime is used. build: makes the model of a config. layers: its decoder layers, in
    their order. run: a forward pass over tokens. otherwise: the rope of each layer of a model that
    does not call `mx.fast.rope`.
    """

    build: Callable[[dict[str, Any]], Any]
    layers: Callable[[Any], list[Any]]
    run: Callable[[Any, mx.array], Any]
    otherwise: Callable[[Any, list[Any], Watch], list[protocol.Answer | None]] | None = None


def forward(runner: Runner, model: Any, layers: list[Any]) -> Watch:
    """A watched pass of a few tokens. Raises Refused where the model fails."""
    watch = Watch({id(layer): number for number, layer in enumerate(layers)})
    modules = (module for layer in layers for module in layer.modules())
    watch.indexers = {
        id(getattr(module, "rope", None))
        for module in modules
        if "Indexer" in type(module).__name__
    }
    with watching(watch, layers):
        try:
            result = runner.run(model, mx.array([TOKENS]))
            if sum(math.prod(value.shape) for _, value in tree_flatten(model.parameters())) < SMALL:
                mx.eval(getattr(result, "logits", result))
        except Exception as error:
            raise protocol.Refused("forward", error) from error
    return watch


def rotation(watch: Watch, owner: Any, size: int, length: int) -> np.ndarray:
    """What a rope object makes of the unit vectors at position 1, as the last token of a sequence
    of that length.
    """
    unit = mx.eye(size, dtype=mx.float32).reshape(1, size, 1, size)
    mx.fast.rope, watch.position = watch.rope, 1
    try:
        turned = np.array(owner(unit, offset=length - 1).astype(mx.float32)).reshape(size, size)
    finally:
        mx.fast.rope, watch.position = REAL_ROPE, None
    return turned


def read(matrix: np.ndarray) -> tuple[list[float], float, str]:
    """Frequencies, attention_factor and pairs of a rotation; row i is what it makes of unit vector
    i.

    Raises AssertionError for a matrix that rotates neither halves nor neighbours.
    """
    size = len(matrix)
    beside = matrix - np.diag(np.diag(matrix))
    turned = [i for i in range(size) if beside[i].any() or matrix[i, i] != 1.0]
    dims = len(turned)
    low = list(range(dims // 2))
    if dims < size and turned == [
        *low,
        *(i + size // 2 for i in low),
    ]:  # the other pairs of the head stand still
        dims = size
    else:
        assert turned == list(range(dims)), f"rotates dimensions {turned}"
    assert dims > 0, "rotates nothing"
    assert dims % 2 == 0, f"rotates {dims} dimensions"
    partner = int(np.abs(beside[0]).argmax())
    half = partner == dims // 2
    assert half or partner == 1, f"dimension 0 is paired with {partner} of {dims}"
    pairs = [(i, i + dims // 2) if half else (2 * i, 2 * i + 1) for i in range(dims // 2)]
    rebuilt = np.eye(size, dtype=matrix.dtype)
    for a, b in pairs:
        rebuilt[np.ix_((a, b), (a, b))] = matrix[np.ix_((a, b), (a, b))]
        assert matrix[a, a] == matrix[b, b], "no rotation"
        assert matrix[a, b] == -matrix[b, a], "no rotation"
    assert (rebuilt == matrix).all(), "rotates more than pairs"
    inv_freq, attention_factor = protocol.from_cos_sin(
        [float(matrix[a, a]) for a, _ in pairs], [float(matrix[a, b]) for a, b in pairs]
    )
    return inv_freq, float(f"{attention_factor:.7g}"), "half" if half else "interleaved"


def rope_of(
    watch: Watch, calls: list[tuple[Any, int]], trained: int, context: int
) -> protocol.Answer:
    """The rope of one layer from the calls it made; one call where it takes the keys of another
    layer.

    Raises AssertionError unless queries and keys share one.
    """
    owner, size = calls[0]
    assert len(calls) <= 2, f"{len(calls)} calls"
    assert all(caller is owner and dim == size for caller, dim in calls), f"calls {calls}"
    assert owner is not None, "the rope belongs to no module"
    assert not owner.children(), f"{type(owner).__name__} rotates by itself"
    inv_freq, attention_factor, pairs = read(rotation(watch, owner, size, context))
    short, short_attention_factor, short_pairs = read(rotation(watch, owner, size, trained))
    assert short_pairs == pairs
    return {
        **protocol.rope(inv_freq, attention_factor, short, short_attention_factor),
        "pairs": pairs,
    }


def scaling_of(watch: Watch, layers: list[Any]) -> float:
    """The factor on the logits of attention. Raises AssertionError where layers differ."""
    distinct = {f"{scale:.7g}" for scales in watch.scales.values() for scale in scales}
    if not distinct:  # attention written out, as in gemma 2
        distinct = {
            f"{module.scale:.7g}"
            for layer in layers
            for module in layer.modules()
            if isinstance(getattr(module, "scale", None), float)
            and "Attention" in type(module).__name__
        }
    assert len(distinct) == 1, f"scales {distinct}"
    return float(distinct.pop())


def ask(runner: Runner, config: dict[str, Any], question: dict[str, Any]) -> protocol.Answer:
    """What a runtime does with one config."""
    added, by_kind = complete(config)
    inner = config.get("text_config") or config
    inner.update(added)
    model = runner.build(config)
    layers = runner.layers(model)
    assert layers, "no layers"
    watch = forward(runner, model, layers)
    ropes: list[protocol.Answer | None]
    if watch.calls or runner.otherwise is None:
        trained = question["trained"]
        context = question["context"]
        ropes = [
            rope_of(watch, watch.calls[number], trained, context) if number in watch.calls else None
            for number in range(len(layers))
        ]
    else:
        ropes = runner.otherwise(model, layers, watch)
    assert any(ropes), "no layer rotates"
    if by_kind:
        ropes = [ropes[inner["layer_types"].index(kind)] for kind in inner["layer_types"]]
    more: dict[str, Any] = {"completed": added} if added else {}
    more |= {"scaling": scaling_of(watch, layers)}
    if watch.query_scale is not None:
        more["query_scale"] = float(f"{watch.query_scale(question['context'] - 1):.7g}")
    return protocol.answer(ropes, mixed=True, **more)
