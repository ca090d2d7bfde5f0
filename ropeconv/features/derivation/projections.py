"""Which modules of a layer make queries and keys, and which norms they pass.

The experiment begins with an undisturbed run, in which all projections give zeros, since they have
no weights. Then the output of one module is random, and nothing else. The dimensions of queries and
keys that differ from the undisturbed run are those that this module makes:

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

MOST_MODULES_IN_CHAIN = 8
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

    q_proj: str
    """The last projection that makes queries."""

    k_proj: str
    """The last projection that makes keys; the same one where it is fused."""

    layer: str
    """The name of the first layer that rotates, in which they were found."""

    all_names: tuple[str, ...] = ()
    """All projections that change queries or keys: their outputs are random to see a rotation."""

    q_norm: str = ""
    """The norm of queries; empty without one."""

    k_norm: str = ""
    """The norm of keys; empty without one."""

    input_norm: str = ""
    """The norm before the projections; empty without one."""


def find_projections(observer: AttentionObserver, undisturbed: dict[str, Seen]) -> Projections:
    """Return the modules that make the queries and keys of the first layer that rotates.

    For Llama, self_attn.q_proj and self_attn.k_proj of model.layers.0. Each run of the model
    replaces the output of one module by random numbers. If queries change, the module makes them.

    Args:
        observer: The model, which runs with outputs of its modules replaced, and notes queries and
            keys.
        undisturbed: The queries and keys of each layer, by its name, in a run in which no output is
            replaced.

    Raises:
        NotDerivable: No layer rotates, or nothing was found that makes its queries or keys.
    """
    # the dimensions of queries and keys that change with each projection, by its name
    effects = find_effects(observer, undisturbed, is_projection)
    all_projections = tuple(effects)

    # a run with random outputs of all projections shows which layers rotate
    attention = measure_layers(observer, all_projections)
    rotating_layers = [name for name, item in attention.items() if item.rotates]
    if not rotating_layers:
        raise NotDerivable(_why_nothing_rotates(observer, attention))
    layer = rotating_layers[0]
    queries = attention[layer].queries
    keys = attention[layer].keys
    assert queries is not None
    if keys is None or not keys.inv_freq:
        raise NotDerivable("its queries rotate, and its keys do not")

    # Latent attention (DeepSeek) makes queries by two projections, q_a_proj and q_b_proj. The last
    # one makes the dimensions that rotate.
    order = undisturbed[layer].ran_before  # the modules of the layer, in the order of their calls
    q_proj = _find_last_projection(effects, layer, "queries", queries, order)
    k_proj = _find_last_projection(effects, layer, "keys", keys, order)

    # the norms of queries and keys, and the norm of the input of the layer
    norm_effects = find_effects(observer, undisturbed, is_norm)
    return Projections(
        q_proj=q_proj,
        k_proj=k_proj,
        layer=layer,
        all_names=all_projections,
        q_norm=_find_norm_of_side(norm_effects, layer, "queries", order),
        k_norm=_find_norm_of_side(norm_effects, layer, "keys", order),
        input_norm=_find_input_norm(observer, undisturbed[layer], layer, q_proj),
    )


def is_projection(module: Module) -> bool:
    """Whether a module has weights of two dimensions, and is not a norm of each head."""
    if NORM_NAME.search(type(module).__name__):
        return False
    return any(parameter.dim() >= 2 for parameter in module.parameters(recurse=False))


def find_effects(
    observer: AttentionObserver,
    undisturbed: dict[str, Seen],
    is_candidate: Callable[[Module], bool],
) -> Effects:
    """Return which dimensions of queries and keys change when one module's output is random.

    Args:
        observer: The model, which runs once for each module.
        undisturbed: The queries and keys of each layer in a run in which no output is replaced.
        is_candidate: Returns whether a module is tried.

    Returns:
        The effects of each module that changes some layer.
    """
    candidates: dict[str, None] = {}
    for seen in undisturbed.values():
        for name in seen.ran_before:
            if is_candidate(observer.modules[name]):
                candidates[name] = None

    effects = {}
    for name in candidates:
        disturbed = observer.run(randomize([name]))
        by_layer = {}
        for layer, seen in disturbed.items():
            by_layer[layer] = Effect(
                queries=_changed_dimensions(undisturbed[layer].queries, seen.queries),
                keys=_changed_dimensions(undisturbed[layer].keys, seen.keys),
            )
        if any(effect.queries or effect.keys for effect in by_layer.values()):
            effects[name] = by_layer
    return effects


def _changed_dimensions(undisturbed: Numbers, disturbed: Numbers) -> frozenset[int]:
    """Return the dimensions in which two arrays of shape (heads, tokens, width) differ."""
    if undisturbed.shape != disturbed.shape:
        return frozenset()
    differs = (undisturbed != disturbed).any((0, 1))
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
    """Return why queries and keys differ by more than a rotation, in words for a message.

    Args:
        observer: The model, which runs with outputs of its modules replaced, and notes queries and
            keys.
        seen: The attention of a layer, with the modules that ran before it.

    Returns:
        The reason; empty where none is found.
    """
    # Zaya: a convolution over tokens
    for name in seen.ran_before:
        if isinstance(observer.modules[name], torch.nn.Conv1d):
            return (
                f"a convolution ({name}) mixes the queries and keys of several tokens behind their"
                " projections"
            )

    # JetMoE: experts make queries. An expert gets only the tokens that chose it, so its output has
    # fewer rows than the run has tokens.
    shape_by_name: dict[str, tuple[int, ...]] = {}

    def record_shape(name: str, output: torch.Tensor) -> None:
        """Record the shape of the output of a module, and keep the output (None)."""
        shape_by_name[name] = tuple(output.shape)

    observer.run(record_shape)  # calls it for the output of each module
    for name in seen.ran_before:
        if name not in shape_by_name or not is_projection(observer.modules[name]):
            continue
        *sizes_before_width, _width = shape_by_name[name]
        has_row_for_each_token = TOKENS in sizes_before_width
        if not has_row_for_each_token:
            return (
                f"its queries or keys are made by experts ({name}), which are chosen by the token,"
                " so that no row of a projection makes a dimension of them"
            )
    return ""


def _why_nothing_rotates(observer: AttentionObserver, attention: dict[str, Attention]) -> str:
    """Return why no layer of a model rotates its queries, in words for a message.

    Args:
        observer: The model, whose modules are searched.
        attention: How the queries and keys of each layer change with the position, as measured.
    """
    # RoFormer: its cosines and sines are the weights of RoFormerSinusoidalPositionalEmbedding, a
    # subclass of torch's Embedding. The model has no weights here, so nothing rotates.
    for module in observer.model.modules():
        module_class = type(module)
        is_embedding = isinstance(module, torch.nn.Embedding)
        is_subclass = is_embedding and module_class is not torch.nn.Embedding
        if is_subclass and "Position" in module_class.__name__:
            return (
                f"its positions come from a table ({module_class.__name__}) whose numbers no key of"
                " its config sets"
            )

    # queries change with the position: without a rotation, only their length can
    queries_change = any(layer.queries is not None for layer in attention.values())
    if queries_change:
        return "its queries are scaled by the position, and nothing rotates"

    return (
        "no layer rotates its queries and keys (positions may enter by a bias on the scores, as"
        " in ALiBi, or by embeddings)"
    )


def _dimensions(effect: Effect, side: Side) -> frozenset[int]:
    """Return the dimensions of queries, or of keys, in an effect."""
    return effect.queries if side == "queries" else effect.keys


def _find_last_projection(
    effects: Effects, layer: str, side: Side, rotation: Rotation, order: list[str]
) -> str:
    """Return the last projection that makes the rotating dimensions of queries or keys.

    For the queries of Llama it is "self_attn.q_proj".

    Args:
        effects: For each projection and layer, the dimensions of queries and of keys that change
            with the output of the projection.
        layer: The name of the layer.
        side: "queries" or "keys".
        rotation: How the queries or keys rotate.
        order: The modules of the layer in the order in which they run.

    Raises:
        NotDerivable: No projection changes these dimensions.
    """
    rotating_dimensions = set(range(rotation.start, rotation.start + rotation.width))
    projections = []
    for name, effect_by_layer in effects.items():
        changed_dimensions = _dimensions(effect_by_layer[layer], side)
        if changed_dimensions & rotating_dimensions:
            projections.append(name)
    if not projections:
        raise NotDerivable(f"nothing was found that makes its {side}")
    return max(projections, key=order.index)  # the last one that runs


def _find_norm_of_side(norm_effects: Effects, layer: str, side: Side, order: list[str]) -> str:
    """Return the name of the norm of queries or keys, such as "self_attn.q_norm"; empty for none.

    Args:
        norm_effects: By the name of a norm, then of a layer, the dimensions of queries and keys
            that change with the output of the norm. Only norms behind the projections change them:
            the model has no weights, so its projections give zeros, whatever their input is.
        layer: The name of the layer.
        side: "queries" or "keys".
        order: The modules of the layer in the order in which they run.
    """
    norms = []
    for name, effect_by_layer in norm_effects.items():
        changed_dimensions = _dimensions(effect_by_layer[layer], side)
        if changed_dimensions:
            norms.append(name)
    if not norms:
        return ""

    # StableLM: a norm for each head, self_attn.q_layernorm.norms.0 and so on; return the module
    # that has all of them, self_attn.q_layernorm
    for name in norms:
        _, _, last_part = name.rpartition(".")
        if last_part.isdigit():
            module_of_norms, _list_name, _number = name.rsplit(".", 2)
            return module_of_norms
    return max(norms, key=order.index)  # the last one that runs


def _find_input_norm(observer: AttentionObserver, seen: Seen, layer: str, projection: str) -> str:
    """Return the name of the norm of a layer's input, such as "input_layernorm"; empty for none.

    Args:
        observer: The model, which runs with outputs of its modules replaced, and notes queries and
            keys.
        seen: The attention of the layer in a run in which no output is replaced. `input_from` has
            the module whose output is the input of another module, such as {"self_attn.q_proj":
            "input_layernorm"}.
        layer: The name of the layer.
        projection: The name of the projection of queries.
    """
    # follow the input of the projection back, in DeepSeek V3: q_b_proj, q_a_layernorm, q_a_proj,
    # input_layernorm
    chain = [projection]
    while chain[-1] in seen.input_from and len(chain) < MOST_MODULES_IN_CHAIN:
        module_before = seen.input_from[chain[-1]]
        chain.append(module_before)

    # the first norm of the layer that is outside the attention: q_a_layernorm is inside
    attention_module, _, _ = projection.rpartition(".")  # such as self_attn
    first_module = chain[-1]
    for name in reversed(chain[1:]):
        if _is_norm_outside(observer, name, attention_module):
            return name

    # a computation without a module may come before the first module of the chain
    return _find_norm_before(observer, seen, layer, first_module, attention_module)


def _is_norm_outside(observer: AttentionObserver, name: str, attention_module: str) -> bool:
    """Whether a module is a norm outside the attention module (self_attn)."""
    is_inside = bool(attention_module) and name.startswith(f"{attention_module}.")
    return is_norm(observer.modules[name]) and not is_inside


def _find_norm_before(
    observer: AttentionObserver, seen: Seen, layer: str, target: str, attention_module: str
) -> str:
    """Return the norm from whose output the input of a module is computed; empty for none.

    To see whether the output of one module reaches another module, the output is replaced by NaN,
    which passes through every computation.

    Args:
        observer: The model, which runs with outputs of its modules replaced.
        seen: The attention of the layer, with the modules that ran before it, in their order.
        layer: The name of the layer.
        target: The name of the module, such as "self_attn.q_proj".
        attention_module: The name of the module that has the projections, such as "self_attn".
    """
    modules_in_order = seen.ran_before
    modules_before = modules_in_order[: modules_in_order.index(target)]
    reached = target
    for name in reversed(modules_before):  # from the target back to the input of the layer
        if not observer.reaches(layer, source=name, target=reached):
            continue
        if _is_norm_outside(observer, name, attention_module):
            return name
        # a module inside the attention: search on from its input
        reached = name
    return ""
