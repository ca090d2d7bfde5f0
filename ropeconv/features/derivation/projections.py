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

    Such as self_attn.q_proj and self_attn.k_proj of model.layers.0. They are found by runs in which
    the output of a module is random: the queries that change are made from that output.

    Args:
        observer: The model, which runs with outputs of its modules replaced, and notes queries and
            keys.
        undisturbed: The queries and keys of each layer, by its name, in a run in which no output is
            replaced.

    Raises:
        NotDerivable: No layer rotates, or nothing was found that makes its queries or keys.
    """
    # for each projection before the attention, the dimensions of queries and keys that it changes
    effects = find_effects(observer, undisturbed, is_projection)
    all_projections = tuple(effects)

    # a run with random outputs of all of them shows which layers rotate
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

    # Several projections in a row may change the dimensions that rotate, such as q_a_proj and
    # q_b_proj. The last of them makes these dimensions.
    order = undisturbed[layer].ran_before  # the modules of the layer, in the order of their calls
    q_proj = _find_last_projection(effects, layer, "queries", queries, order)
    k_proj = _find_last_projection(effects, layer, "keys", keys, order)

    # the norms before and after them
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

    The text is empty where no reason is found. There are two: a convolution over tokens, and
    experts that make queries or keys.

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

    # In JetMoE, experts make queries. An expert gets only the tokens that chose it, so its output
    # has another number of rows than the run has tokens.
    shapes: dict[str, tuple[int, ...]] = {}

    def note_shape(name: str, output: torch.Tensor) -> None:
        """An override that replaces nothing, and notes the shape of each output."""
        shapes[name] = tuple(output.shape)

    observer.run(note_shape)
    for name in seen.ran_before:
        if name not in shapes or not is_projection(observer.modules[name]):
            continue
        *sizes_before_width, _width = shapes[name]
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
        observer: The model, which runs with outputs of its modules replaced.
        attention: How the queries and keys of each layer depend on the position, as measured.
    """
    # RoFormer reads its cosines and sines from a table: RoFormerSinusoidalPositionalEmbedding, a
    # subclass of torch's Embedding. Its numbers are weights, which a run here does not have, and
    # are not computed from a base in the config.
    for module in observer.model.modules():
        module_class = type(module)
        is_embedding = isinstance(module, torch.nn.Embedding)
        is_subclass = is_embedding and module_class is not torch.nn.Embedding
        if is_subclass and "Position" in module_class.__name__:
            return (
                f"its positions come from a table ({module_class.__name__}) whose numbers no key of"
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


def _find_last_projection(
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
    rotating_dimensions = set(range(rotation.start, rotation.start + rotation.width))
    names = []
    for name, effect_by_layer in effects.items():
        changed_dimensions = _dimensions(effect_by_layer[layer], side)
        if changed_dimensions & rotating_dimensions:
            names.append(name)
    if not names:
        raise NotDerivable(f"nothing was found that makes its {side}")
    return max(names, key=order.index)  # the last one that runs


def _find_norm_of_side(norm_effects: Effects, layer: str, side: Side, order: list[str]) -> str:
    """Return the name of the norm of queries or keys, such as "self_attn.q_norm"; empty for none.

    Args:
        norm_effects: By the name of a norm, then of a layer, the dimensions of queries and keys
            that change with the output of the norm. A norm before the projections changes none,
            since projections give zeros in these runs.
        layer: The name of the layer.
        side: Queries or keys.
        order: The modules of the layer in the order in which they run.
    """
    names = []
    for name, effect_by_layer in norm_effects.items():
        if _dimensions(effect_by_layer[layer], side):
            names.append(name)
    if not names:
        return ""

    # StableLM has a module with a norm for each head, self_attn.q_layernorm.norms.0 and so on; the
    # name is that of the module, self_attn.q_layernorm
    for name in names:
        _, _, last_part = name.rpartition(".")
        if last_part.isdigit():
            return name.rsplit(".", 2)[0]
    return max(names, key=order.index)  # the last one that runs


def _find_input_norm(observer: AttentionObserver, seen: Seen, layer: str, projection: str) -> str:
    """Return the name of the norm of the layer's input, such as "input_layernorm"; else empty.

    From the projection of queries, its input is followed back: the input of self_attn.q_b_proj is
    the output of self_attn.q_a_layernorm, whose input is the output of self_attn.q_a_proj, and so
    on to input_layernorm. Where another computation is between two modules, runs with NaN show
    which module comes before it (`_find_norm_before`).

    Args:
        observer: The model, which runs with outputs of its modules replaced, and notes queries and
            keys.
        seen: The attention of the layer in a run in which no output is replaced, with the order of
            its modules, and in `input_from` the module whose output each of them gets.
        layer: The name of the layer.
        projection: The name of the projection of queries.
    """
    # the projection, and the modules before it, each of which makes the input of the last
    backwards = [projection]
    while backwards[-1] in seen.input_from and len(backwards) < MOST_MODULES_IN_CHAIN:
        maker_of_input = seen.input_from[backwards[-1]]
        backwards.append(maker_of_input)

    # norms of the attention itself, such as q_a_layernorm, are not those of the layer's input
    attention_module = projection.rpartition(".")[0]
    earliest_first = reversed(backwards[1:])
    for name in earliest_first:
        if _is_outer_norm(observer, name, attention_module):
            return name
    return _find_norm_before(observer, seen, layer, backwards[-1], attention_module)


def _is_outer_norm(observer: AttentionObserver, name: str, attention_module: str) -> bool:
    """Whether a module is a norm outside the attention module (self_attn)."""
    is_inside = bool(attention_module) and name.startswith(f"{attention_module}.")
    return is_norm(observer.modules[name]) and not is_inside


def _find_norm_before(
    observer: AttentionObserver, seen: Seen, layer: str, target: str, attention_module: str
) -> str:
    """Return the norm whose output reaches a module through other computations; empty without one.

    The modules before the target are tried, the last one first. The output of each is replaced by
    NaN, which passes through any computation. If NaN arrives at the input of the target, the target
    is computed from the output of that module. If the module is a norm outside the attention, it is
    the result. Else it becomes the target, and the modules before it are tried.

    Args:
        observer: The model, which runs with outputs of its modules replaced, and notes queries and
            keys.
        seen: Its queries and keys, and the order of its modules, in a run in which no output is
            replaced.
        layer: The name of the layer.
        target: The name of the module, such as "self_attn.q_proj".
        attention_module: The name of the module that has the projections.
    """
    order = seen.ran_before
    ran_before_target = order[: order.index(target)]
    for candidate in reversed(ran_before_target):
        if not observer.reaches(layer, candidate, target):
            continue
        if _is_outer_norm(observer, candidate, attention_module):
            return candidate
        target = candidate
    return ""
