"""Which tensors make queries and keys, and in which order their rows are: the table [weights].

The experiment (`ModelRuns.rows_of`) puts into each output of the projections the number of its row,
and looks where these numbers are when queries and keys are multiplied. With 4 heads of 16
dimensions, a plain projection gives head 1 the rows 16 to 31:

    rows_of("queries")[1] == [16, 17, 18, ..., 31]

A fused projection (`qkv_proj`) makes queries, keys and values, and its rows are in one of the
orders of `FusedOrder`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from .asked_model import Config, NotDerivable
from .model_runs import ModelRuns
from .norms import find_norm_kind
from .observing import randomize
from .rotation import Attention, Numbers, Pairing

FusedOrder = Literal["", "blocks", "gate-and-blocks", "per-head", "per-group"]
"""The order of the rows of a fused projection; empty for one that is not known.

blocks           all queries, all keys, all values
gate-and-blocks  the same, after a gate for each query (HRM)
per-head         query, key and value of the first head, then of the next one (GPT-NeoX)
per-group        the queries of a group, their key and value, then the next group (Falcon 40B)
"""


def find_layout(runs: ModelRuns, rotating: Attention) -> Pairing:
    """Return which rows of the projection of queries are a pair: "half" or "interleaved".

    A class may reorder the outputs of the projection before it rotates them. So the dimensions that
    rotate together are translated into rows of the weight.

    Args:
        runs: The model, which can be built from a changed config and run again.
        rotating: How the first layer that sees the whole context rotates queries and keys, as
            measured.

    Returns:
        "half" for rows (i, i + r/2) of the r rows that rotate, "interleaved" for rows (2i, 2i + 1).

    Raises:
        NotDerivable: The rows of a pair are neither.
    """
    rotation = rotating.queries
    assert rotation is not None

    # the two rows of each pair, in the first head
    rows_of_heads = runs.rows_of("queries")  # [heads, width]
    row_by_dimension = rows_of_heads[0]
    pair_count = len(rotation.inv_freq)
    row_pairs = []
    for pair in range(pair_count):
        first_dimension, second_dimension = rotation.pair(pair)
        first_row = int(row_by_dimension[first_dimension])
        second_row = int(row_by_dimension[second_dimension])
        row_pairs.append((first_row, second_row))

    distances = {second_row - first_row for first_row, second_row in row_pairs}
    if distances == {1} and pair_count > 1:
        return "interleaved"
    if distances == {pair_count}:
        return "half"
    first_row, second_row = row_pairs[0]
    first_row_of_last, second_row_of_last = row_pairs[-1]
    raise NotDerivable(
        f"its pairs are rows {first_row} and {second_row}, {first_row_of_last} and"
        f" {second_row_of_last} of a head, which is neither of the known layouts"
    )


def describe_weights(runs: ModelRuns, rotating: Attention, not_derived: list[str]) -> Config:
    """Return the names of the tensors that make queries and keys: the table [weights].

    For Llama: {"layer": ["model.layers.{layer}."], "q": "self_attn.q_proj",
    "k": "self_attn.k_proj", "input": "rms", "input_norm": ["input_layernorm"]}.

    Args:
        runs: The model, which can be built from a changed config and run again.
        rotating: How the first layer that sees the whole context rotates queries and keys, as
            measured.
        not_derived: A list to which a sentence is appended for each fact that is not known.

    Returns:
        The fields of `models.family.WeightNames`. Two of them are reasons, in words: "fixed", why
        ropeconv cannot multiply these tensors by an attention factor, and "unmeasured", why
        `ropeconv bound --weights` cannot compute the variances of queries and keys from them.
    """
    # the projections: names of modules inside a layer
    found = runs.projections
    facts: Config = {"layer": [_layer_prefix(runs)]}
    is_fused = found.q_proj == found.k_proj  # one projection makes queries and keys
    if is_fused:
        facts["fused"] = found.q_proj
    else:
        facts |= {"q": found.q_proj, "k": found.k_proj}

    # the norms of queries and keys; may add "fixed"
    if found.q_norm or found.k_norm:
        facts |= _describe_norms(runs, rotating, not_derived)

    # the order of the rows of the projections; may add "fixed"
    norm_has_weights = bool(facts.get("q_norm"))
    facts |= _describe_rows(runs, rotating, norm_has_weights, not_derived)
    projection = runs.observer.modules[found.q_proj]
    if getattr(projection, "bias", None) is not None:
        facts["bias"] = True

    # the norm of the input of the attention; may add "unmeasured"
    return facts | _describe_input_norm(runs, not_derived)


def _layer_prefix(runs: ModelRuns) -> str:
    """Return the beginning of the names of a layer's tensors: model.layers.{layer}."""
    first_layer = next(iter(runs.undisturbed))  # model.layers.0
    inside = f"{first_layer.rpartition('.')[0]}.{{layer}}."
    model = runs.observer.model
    base = getattr(model, "base_model_prefix", "")
    has_head = bool(base) and hasattr(model, base)
    if has_head or not base:
        return inside
    # the class without the head was run, LlamaModel, say; a checkpoint of LlamaForCausalLM has its
    # tensors under "model"
    return f"{base}.{inside}"


def _describe_norms(runs: ModelRuns, rotating: Attention, not_derived: list[str]) -> Config:
    """Return the norms of queries and keys, by their names and their kind.

    For Qwen 3: {"q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm", "norm": "rms"}.

    Args:
        runs: The model, which has a norm of queries or keys.
        rotating: How the first layer that sees the whole context rotates queries and keys, as
            measured.
        not_derived: A list to which a sentence is appended for a norm that no family describes.

    Returns:
        The names of both norms, and their kind. For a norm that no family describes, only
        {"fixed": reason}: why ropeconv cannot multiply an attention factor into the weights.
    """
    found = runs.projections
    has_both_norms = found.q_norm and found.k_norm
    if not has_both_norms:
        not_derived.append("a norm of only queries or only keys")
        return {"fixed": "it has a norm of only queries or only keys"}
    names = {"q_norm": found.q_norm, "k_norm": found.k_norm}

    # StableLM: a layer norm for each head, in a list of modules such as q_layernorm.norms.0
    modules = runs.observer.modules
    norms_of_heads = [name for name in modules if re.match(rf"{found.q_norm}\.\w+\.\d+$", name)]
    if norms_of_heads and find_norm_kind(modules[norms_of_heads[0]]) == "layer-norm":
        return names | {"norm": "layer-norm-list"}

    # Llama 4: a norm without weights, so there are no tensors with names
    norm = modules[found.q_norm]
    parameters = list(norm.parameters())
    if not parameters:
        is_after_rotation = _norm_is_after_rotation(runs)
        return {"norm": "l2-after-rope" if is_after_rotation else ""}

    # a kind that no family file can name
    kind = find_norm_kind(norm)
    if kind is None or kind == "layer-norm-plus-one":
        not_derived.append(f"the kind of the norm {found.q_norm}")
        return {"fixed": f"the kind of the norm {found.q_norm} is not known"}

    # OLMo 2: one root mean square of all heads together
    norm_width = parameters[0].shape[-1]
    if kind == "rms" and norm_width > rotating.width:
        return names | {"norm": "rms-all-heads"}

    # Hunyuan: the norm comes after the rotation
    if kind == "rms" and _norm_is_after_rotation(runs):
        return names | {"norm": "rms-after-rope"}

    # Qwen 3, and most other models with norms
    return names | {"norm": kind}


def _norm_is_after_rotation(runs: ModelRuns) -> bool:
    """Whether queries get their norm after the rotation.

    The output of the norm is replaced by random numbers, the same at every position. If the
    rotation comes before it, queries are then the same at every position too.
    """
    # the attention of a layer that rotates, since the first layer of a model may not
    seen = runs.observer.run(randomize([runs.projections.q_norm]))[runs.rotating_layer]
    largest_change = np.abs(seen.queries - seen.queries[:, :1]).max()
    return bool(largest_change < 1e-6)


def _describe_rows(
    runs: ModelRuns, rotating: Attention, norm_has_weights: bool, not_derived: list[str]
) -> Config:
    """Return the order of the rows of queries, such as {"rows": "last", "fused_order": "per-head"}.

    Args:
        runs: The model, which can be built from a changed config and run again.
        rotating: How the first layer that sees the whole context rotates queries and keys, as
            measured.
        norm_has_weights: Whether queries have a norm with weights. ropeconv then multiplies an
            attention factor into the norm, and need not know the order of the rows.
        not_derived: A list to which a sentence is appended for an order that no family describes.

    Returns:
        "rows" where the last rows of a head rotate; "fused_order" for a projection of queries and
        keys; and for an unknown order "fixed": why ropeconv cannot multiply a factor into the rows.
        {} for the usual order.
    """
    rotation = rotating.queries
    assert rotation is not None
    rows = runs.rows_of("queries")  # [heads, width], the row that makes each dimension
    _heads, width = rows.shape
    first_rows = _first_row_of_each_head(rows)
    facts: Config = {}

    # only a part of a head rotates, and it is the last one
    rotates_in_part = rotation.width < width
    rotating_rows = rows[0, rotation.start : rotation.start + rotation.width]
    if rotates_in_part and rotating_rows.min() > first_rows[0]:
        facts["rows"] = "last"

    # one projection makes queries, keys and values (fused)
    is_fused = runs.projections.q_proj == runs.projections.k_proj
    if is_fused:
        first_rows_of_keys = _first_row_of_each_head(runs.rows_of("keys"))
        facts["fused_order"] = _find_fused_order(first_rows, first_rows_of_keys, width)
        is_known = facts["fused_order"] != ""
        if not is_known and not norm_has_weights:
            facts["fixed"] = "the order of the rows of its projection is not known"
            not_derived.append("the order of the rows of the fused projection")
        return facts

    # a projection of queries only
    if not norm_has_weights:
        unknown_order = _find_unknown_order(runs, first_rows, width)
        if unknown_order is not None:
            facts["fixed"] = unknown_order.why_fixed
            not_derived.append(unknown_order.missing_fact)
    return facts


class UnknownOrder(NamedTuple):
    """An order of rows that no family describes."""

    why_fixed: str
    """Why ropeconv cannot multiply an attention factor into the rows."""

    missing_fact: str
    """The fact that is not known about the model."""


def _find_unknown_order(
    runs: ModelRuns, first_rows: Sequence[int], width: int
) -> UnknownOrder | None:
    """Return what is unusual in the order of the heads of queries; None for the usual order.

    In the usual order the rows of each head follow the rows of the head before.

    Args:
        runs: The model, which can be built from a changed config and run again.
        first_rows: The first row of each head: 0, 128, 256, ... in the usual order.
        width: The width of a head, such as 128.
    """
    distances = set(np.diff(first_rows).tolist())  # from head to head; empty for a single head
    if not distances or distances == {width}:
        return None

    # Qwen 3.5: behind the queries of each head, as many rows make a gate for its output
    rows_with_gates = 2 * len(first_rows) * width
    is_every_other_block = distances == {2 * width}
    if is_every_other_block and _count_rows(runs, runs.projections.q_proj) == rows_with_gates:
        return UnknownOrder(
            why_fixed="its projection of queries also makes a gate",
            missing_fact="a key for the output gate behind the queries of each head",
        )
    return UnknownOrder(
        why_fixed="the order of the rows of its queries is not known",
        missing_fact="the order of the rows of queries",
    )


def _first_row_of_each_head(rows: Numbers) -> list[int]:
    """Return the first row of each head, from rows of shape (heads, width), -1 for none."""
    return [int(head[head >= 0].min()) for head in rows]


def _count_rows(runs: ModelRuns, name: str) -> int:
    """Return the number of rows of a projection; 0 where it has no weight of that name."""
    weight = getattr(runs.observer.modules[name], "weight", None)
    return 0 if weight is None else int(weight.shape[0])


def _find_fused_order(
    query_starts: Sequence[int], key_starts: Sequence[int], width: int
) -> FusedOrder:
    """Return the order of the rows of a fused projection, which makes queries, keys and values.

    Queries that share a key and a value are a group. The projection has blocks of `width` rows:
    queries (q), keys (k), values (v) and gates (g).

        order            blocks of 4 heads
        blocks           q q q q k k v v            2 groups
        per-group        q q k v q q k v            2 groups
        per-head         q k v q k v q k v q k v    4 groups
        gate-and-blocks  g g g g q q q q ...

    Args:
        query_starts: The first row of each head of queries.
        key_starts: The first row of the keys of each head; heads of a group may have the same.
        width: The width of a head.

    Returns:
        The name of the order; "" for any other order.
    """
    starts = list(query_starts)
    different_key_starts = sorted(set(key_starts))
    heads = len(starts)
    groups = len(different_key_starts)
    queries_per_group = heads // groups

    # "blocks": the queries are the first blocks, and the keys follow
    first_blocks = [width * head for head in range(heads)]
    if starts == first_blocks:
        blocks_after_queries = [width * (heads + group) for group in range(groups)]
        return "blocks" if different_key_starts == blocks_after_queries else ""

    # "per-group", and "per-head" for groups with one head
    blocks_per_group = queries_per_group + 2  # with a key and a value
    blocks_in_groups = []
    for head in range(heads):
        group, place_in_group = divmod(head, queries_per_group)
        blocks_in_groups.append(width * (group * blocks_per_group + place_in_group))
    if starts == blocks_in_groups:
        return "per-head" if queries_per_group == 1 else "per-group"

    # "gate-and-blocks": a gate for each head comes before the queries
    blocks_after_gates = [width * (heads + head) for head in range(heads)]
    return "gate-and-blocks" if starts == blocks_after_gates else ""


def _describe_input_norm(runs: ModelRuns, not_derived: list[str]) -> Config:
    """Return the norm of the input of the attention, by its name and its kind.

    For Llama: {"input": "rms", "input_norm": ["input_layernorm"]}.

    Args:
        runs: The model, which can be built from a changed config and run again.
        not_derived: A list to which a sentence is appended for a kind that no family describes.
    """
    # OLMo 2: no norm comes before the attention
    name = runs.projections.input_norm
    if not name:
        return {"input": ""}

    # a known kind, such as "rms"
    kind = find_norm_kind(runs.observer.modules[name])
    if kind is not None:
        return {"input": kind, "input_norm": [name]}

    # an unknown kind: without it, `ropeconv bound --weights` cannot compute variances
    not_derived.append(f"the kind of the norm {name}")
    return {"unmeasured": f"the kind of the norm {name} is not known", "input_norm": [name]}
