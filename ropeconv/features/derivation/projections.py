"""Which modules of a layer make queries and keys, and which norms they pass.

The experiment begins with a calm run, in which all projections give zeros, since they have no
weights. Then the output of one module is random, and nothing else. The dimensions of queries and
keys that differ from the calm run are those that this module makes:

    effects["self_attn.q_proj"]["model.layers.0"] == Effect(queries={0, 1, ..., 63}, keys={})

A module before another projection, such as q_a_proj before q_b_proj, has no effect: the zeros of
the later one hide it. With all modules that have one random at once, `measure_layers` measures how
queries and keys rotate. The last of them before the attention that makes the dimensions that rotate
is the projection whose rows a factor can be folded into.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from .asked_model import NotDerivable
from .norms import is_norm
from .observing import TOKENS, AttentionObserver, Seen, randomize
from .rotation import Attention, NotARotation, Numbers, Rotation, measure
from .weightless import NORM_NAME

if TYPE_CHECKING:
    from torch.nn import Module

LONGEST_CHAIN = 8
"""The most modules that are followed from a projection back to the norm of the layer's input."""


@dataclass(frozen=True)
class Effect:
    """The dimensions of a head that the output of one module changes in one layer."""

    queries: frozenset[int]
    """Dimensions of queries, of any head."""

    keys: frozenset[int]
    """Dimensions of keys, likewise."""


Effects = dict[str, dict[str, Effect]]
"""The effect of each module on each layer, by the name inside a layer, then the layer's name."""

Side = Literal["queries", "keys"]


@dataclass
class Projections:
    """Names inside a layer of the modules that make queries and keys."""

    q: str
    """The last projection that makes queries."""

    k: str
    """The last projection that makes keys; the same one where it is fused."""

    layer: str
    """The name of the first layer that rotates, in which they were found."""

    every: tuple[str, ...] = ()
    """All projections that change queries or keys: their outputs are random to see a rotation."""

    q_norm: str = ""
    """The norm of queries; empty without one."""

    k_norm: str = ""
    """The norm of keys; empty without one."""

    input_norm: str = ""
    """The norm before the projections; empty without one."""


def find_projections(observer: AttentionObserver, calm: dict[str, Seen]) -> Projections:
    """Return the modules that make the queries and keys of the first layer that rotates.

    Such as self_attn.q_proj and self_attn.k_proj of model.layers.0. They are found by runs in which
    the output of a module is random: the queries that change are made from that output.

    Args:
        observer: The model, which runs with outputs of its modules replaced, and notes queries and
            keys.
        calm: The queries and keys of each layer, by its name, in a run in which no output is
            replaced.

    Raises:
        NotDerivable: No layer rotates, or nothing was found that makes its queries or keys.
    """
    # for each linear layer before the attention, the dimensions of queries and keys that change
    effects = find_effects(observer, calm, is_projection)
    every_projection = tuple(effects)

    # with random outputs of all of them at once, the layers that rotate are seen
    attention = measure_layers(observer, every_projection)
    rotating_layers = [name for name, item in attention.items() if item.rotates]
    if not rotating_layers:
        raise NotDerivable(_why_still(observer, attention))
    layer = rotating_layers[0]
    queries = attention[layer].queries
    keys = attention[layer].keys
    assert queries is not None
    if keys is None or not keys.inv_freq:
        raise NotDerivable("its queries rotate, and its keys do not")

    # several modules in a row may change them; the last one makes the dimensions that rotate
    order = calm[layer].ran_before
    q = _last_maker(effects, layer, "queries", queries, order)
    k = _last_maker(effects, layer, "keys", keys, order)

    # the norms before and after them
    norm_effects = find_effects(observer, calm, is_norm)
    return Projections(
        q,
        k,
        layer,
        every_projection,
        q_norm=_find_norm(norm_effects, layer, "queries", order),
        k_norm=_find_norm(norm_effects, layer, "keys", order),
        input_norm=_find_input_norm(observer, calm[layer], layer, q),
    )


def is_projection(module: Module) -> bool:
    """Whether a module has weights of two dimensions, and is not a norm of each head."""
    if NORM_NAME.search(type(module).__name__):
        return False
    return any(parameter.dim() >= 2 for parameter in module.parameters(recurse=False))


def find_effects(
    observer: AttentionObserver,
    calm: dict[str, Seen],
    is_candidate: Callable[[Module], bool],
) -> Effects:
    """Return which dimensions of queries and keys change when one module's output is random.

    Args:
        observer: The model, which runs once for each module.
        calm: The queries and keys of each layer in a run in which no output is replaced.
        is_candidate: Whether to look at a module.

    Returns:
        The effects of each module that changes some layer.
    """
    candidates: dict[str, None] = {}
    for seen in calm.values():
        for name in seen.ran_before:
            if is_candidate(observer.modules[name]):
                candidates[name] = None

    effects = {}
    for name in candidates:
        disturbed = observer.run(randomize([name]))
        by_layer = {}
        for layer, seen in disturbed.items():
            by_layer[layer] = Effect(
                queries=_changed_dimensions(calm[layer].queries, seen.queries),
                keys=_changed_dimensions(calm[layer].keys, seen.keys),
            )
        if any(effect.queries or effect.keys for effect in by_layer.values()):
            effects[name] = by_layer
    return effects


def _changed_dimensions(calm: Numbers, disturbed: Numbers) -> frozenset[int]:
    """Return the dimensions in which two arrays of shape (heads, tokens, width) differ."""
    if calm.shape != disturbed.shape:
        return frozenset()
    differs = (calm != disturbed).any((0, 1))
    return frozenset(np.flatnonzero(differs).tolist())


def measure_layers(observer: AttentionObserver, names: Iterable[str]) -> dict[str, Attention]:
    """Return how the queries and keys of each layer rotate, by the name of the layer.

    Args:
        observer: The model, which runs with outputs of its modules replaced, and notes queries and
            keys.
        names: The modules whose outputs are random, so that queries and keys are not zeros.

    Raises:
        NotDerivable: Some queries or keys change with the position in another way.
    """
    found = {}
    for layer, seen in observer.run(randomize(names)).items():
        try:
            queries = measure(seen.queries, observer.positions)
            keys = measure(seen.keys, observer.positions)
        except NotARotation as problem:
            reason = _why_no_rotation(observer, seen)
            raise NotDerivable(reason or str(problem)) from None
        heads, _, width = seen.queries.shape
        found[layer] = Attention(queries, keys, heads, width)
    return found


def _why_no_rotation(observer: AttentionObserver, seen: Seen) -> str:
    """Return why a query or key depends on other tokens than its own; empty where it does not.

    The words are for a message.

    Args:
        observer: The model, which runs with outputs of its modules replaced, and notes queries and
            keys.
        seen: The attention of a layer.
    """
    for name in seen.ran_before:
        if isinstance(observer.modules[name], torch.nn.Conv1d):  # Zaya
            return (
                f"a convolution ({name}) mixes the queries and keys of several tokens behind their"
                " projections"
            )

    # JetMoE: experts make queries, and get the tokens that were given to them, in their order
    shapes: dict[str, tuple[int, ...]] = {}

    def note_shape(name: str, output: torch.Tensor) -> None:
        shapes[name] = tuple(output.shape)

    observer.run(note_shape)
    for name in seen.ran_before:
        module = observer.modules[name]
        if name in shapes and is_projection(module) and TOKENS not in shapes[name][:-1]:
            return (
                f"its queries or keys are made by experts ({name}), which are chosen by the token,"
                " so that no row of a projection makes a dimension of them"
            )
    return ""


def _why_still(observer: AttentionObserver, attention: dict[str, Attention]) -> str:
    """Return why no layer of a model rotates its queries, in words for a message.

    Args:
        observer: The model, which runs with outputs of its modules replaced.
        attention: How the queries and keys of each layer depend on the position, as measured.
    """
    for module in observer.model.modules():
        # RoFormer's angles are the weights of a module, which have no numbers here
        own_class = type(module)
        is_table = isinstance(module, torch.nn.Embedding) and own_class is not torch.nn.Embedding
        if is_table and "Position" in own_class.__name__:
            return (
                f"its positions come from a table ({own_class.__name__}) whose numbers no key of"
                " its config sets"
            )
    if any(item.queries is not None for item in attention.values()):
        return "its queries are scaled by the position, and nothing rotates"
    return (
        "no layer rotates its queries and keys (positions may enter by a bias on the scores, as"
        " in ALiBi, or by embeddings)"
    )


def _dimensions(effect: Effect, side: Side) -> frozenset[int]:
    """Return the dimensions of queries, or of keys, in an effect."""
    return effect.queries if side == "queries" else effect.keys


def _last_maker(
    effects: Effects, layer: str, side: Side, rotation: Rotation, order: list[str]
) -> str:
    """Return the name of the last module that makes the rotating dimensions of queries or keys.

    Such as "self_attn.q_proj". Latent attention (DeepSeek) makes the other dimensions of its keys
    by another module.

    Args:
        effects: For each projection and layer, the dimensions of queries and of keys that change
            with its output.
        layer: The name of the layer.
        side: Queries or keys.
        rotation: How they rotate.
        order: The modules of the layer in the order in which they run.
    """
    rotating = set(range(rotation.start, rotation.start + rotation.width))
    makers = []
    for name, by_layer in effects.items():
        if _dimensions(by_layer[layer], side) & rotating:
            makers.append(name)
    if not makers:
        raise NotDerivable(f"nothing was found that makes its {side}")
    return max(makers, key=order.index)


def _find_norm(norm_effects: Effects, layer: str, side: Side, order: list[str]) -> str:
    """Return the name of the norm of queries or keys, such as "self_attn.q_norm"; empty for none.

    Args:
        norm_effects: The effects of norms. That of the layer's input has none, since projections
            have no weights in these runs.
        layer: The name of the layer.
        side: Queries or keys.
        order: The modules of the layer in the order in which they run.
    """
    names = []
    for name, by_layer in norm_effects.items():
        if _dimensions(by_layer[layer], side):
            names.append(name)
    if not names:
        return ""

    # a module with a norm for each head, as self_attn.q_layernorm of StableLM
    for name in names:
        _, _, last_part = name.rpartition(".")
        if last_part.isdigit():  # self_attn.q_layernorm.norms.0
            return name.rsplit(".", 2)[0]
    return max(names, key=order.index)  # the last one that runs


def _find_input_norm(observer: AttentionObserver, seen: Seen, layer: str, projection: str) -> str:
    """Return the name of the norm of the layer's input, such as "input_layernorm"; else empty.

    It is first looked for among the modules that give each other their outputs, as
    input_layernorm, self_attn.q_a_proj, self_attn.q_a_layernorm, self_attn.q_b_proj do, then among
    all that ran before.

    Args:
        observer: The model, which runs with outputs of its modules replaced, and notes queries and
            keys.
        seen: Its queries and keys, and the order of its modules, in a run in which no output is
            replaced.
        layer: The name of the layer.
        projection: That of queries.
    """
    chain = [projection]
    while chain[-1] in seen.input_from and len(chain) < LONGEST_CHAIN:
        chain.append(seen.input_from[chain[-1]])

    # norms of the attention itself, such as q_a_layernorm, are not those of the layer's input
    attention_module = projection.rpartition(".")[0]
    for name in reversed(chain[1:]):
        if _is_outer_norm(observer, name, attention_module):
            return name
    return _find_norm_before(observer, seen, layer, chain[-1], attention_module)


def _is_outer_norm(observer: AttentionObserver, name: str, attention_module: str) -> bool:
    """Whether a module is a norm outside the attention module (self_attn)."""
    is_inside = bool(attention_module) and name.startswith(f"{attention_module}.")
    return is_norm(observer.modules[name]) and not is_inside


def _find_norm_before(
    observer: AttentionObserver, seen: Seen, layer: str, target: str, attention_module: str
) -> str:
    """Return the norm whose output reaches a module through other computations; empty without one.

    From the target backwards, the output of each earlier module is replaced by NaN. NaN passes
    through any computation, so if it arrives at the input of the target, the target is computed
    from that module. Then the module is the norm, or it is traced further in place of the target.

    Args:
        observer: The model, which runs with outputs of its modules replaced, and notes queries and
            keys.
        seen: Its queries and keys, and the order of its modules, in a run in which no output is
            replaced.
        layer: The name of the layer.
        target: The module whose input is traced.
        attention_module: The name of the module that has the projections.
    """
    order = seen.ran_before
    ran_earlier = order[: order.index(target)]
    traced = target
    for candidate in reversed(ran_earlier):
        if not observer.reaches(layer, candidate, traced):
            continue
        if _is_outer_norm(observer, candidate, attention_module):
            return candidate
        traced = candidate
    return ""
