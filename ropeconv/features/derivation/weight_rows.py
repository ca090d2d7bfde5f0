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
from typing import Literal

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
    """Return which rows of a head in the projection of queries are a pair.

    A class may put pairs into another order before it rotates them, so the dimensions of a pair
    (`Rotation.pair`) are not its rows.

    Args:
        runs: The model, which can be built from a changed config and run again.
        rotating: How the first layer that sees the whole context rotates queries and keys, as
            measured.

    Returns:
        "half" for rows (i, i + r/2), "interleaved" for rows (2i, 2i + 1).
    """
    rotation = rotating.queries
    assert rotation is not None

    # the two rows of each pair, in the first head
    rows_of_heads = runs.rows_of("queries")  # [heads, width]
    row_of_dimension = rows_of_heads[0]
    count = len(rotation.inv_freq)
    row_pairs = []
    for index in range(count):
        first, second = rotation.pair(index)
        row_pairs.append((int(row_of_dimension[first]), int(row_of_dimension[second])))

    distances = {second_row - first_row for first_row, second_row in row_pairs}
    if distances == {1} and count > 1:
        return "interleaved"
    if distances == {count}:
        return "half"
    first_row, second_row = row_pairs[0]
    first_row_of_last, second_row_of_last = row_pairs[-1]
    raise NotDerivable(
        f"its pairs are rows {first_row} and {second_row}, {first_row_of_last} and"
        f" {second_row_of_last} of a head, which is neither of the known layouts"
    )


def describe_weights(runs: ModelRuns, rotating: Attention, not_derived: list[str]) -> Config:
    """Return the table [weights] of a family file: the tensors that make queries and keys.

    For Llama: {"layer": ["model.layers.{layer}."], "q": "self_attn.q_proj",
    "k": "self_attn.k_proj", "input": "rms", "input_norm": ["input_layernorm"]}.

    Two fields are reasons, in words. "fixed" says why ropeconv cannot multiply these tensors by an
    attention factor. "unmeasured" says why `ropeconv bound --weights` cannot compute the variances
    of queries and keys from them.

    Args:
        runs: The model, which can be built from a changed config and run again.
        rotating: How the first layer that sees the whole context rotates queries and keys, as
            measured.
        not_derived: A list to which a sentence is appended for each fact that is not known.
    """
    # the names of modules inside a layer, such as self_attn.q_proj and self_attn.q_norm
    found = runs.projections
    facts: Config = {"layer": [_layer_prefix(runs)]}
    is_fused = found.q_proj == found.k_proj
    if is_fused:
        facts["fused"] = found.q_proj
    else:
        facts |= {"q": found.q_proj, "k": found.k_proj}

    # each of these functions may add "fixed" or "unmeasured"
    if found.q_norm or found.k_norm:
        facts |= _describe_norms(runs, rotating, not_derived)
    has_norms = bool(facts.get("q_norm"))
    facts |= _describe_rows(runs, rotating, has_norms, not_derived)
    projection = runs.observer.modules[found.q_proj]
    if getattr(projection, "bias", None) is not None:
        facts["bias"] = True
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
    """Return the norms of queries and keys, such as {"q_norm": ..., "k_norm": ..., "norm": "rms"}.

    Args:
        runs: The model, which has a norm of queries or keys.
        rotating: How the first layer that sees the whole context rotates queries and keys, as
            measured.
        not_derived: A list to which a sentence is appended for a norm that no family describes.

    Returns:
        Fields of `models.family.WeightNames`. `norm` is a `NormKind`, or one of

            rms-all-heads    the root mean square is that of all heads together (OLMo 2)
            rms-after-rope   rms, after the rotation (Hunyuan)
            l2-after-rope    rms without weights, after the rotation (Llama 4)
            layer-norm-list  a layer norm for each head, in a list of modules (StableLM)

        or empty for a norm without weights before the rotation. For a norm that no family
        describes, there is only "fixed": why ropeconv cannot fold a factor into the weights.
    """
    found = runs.projections
    has_both_norms = found.q_norm and found.k_norm
    if not has_both_norms:
        not_derived.append("a norm of only queries or only keys")
        return {"fixed": "it has a norm of only queries or only keys"}
    names = {"q_norm": found.q_norm, "k_norm": found.k_norm}

    # StableLM: a module that has a norm for each head, such as q_layernorm.norms.0
    modules = runs.observer.modules
    norms_of_heads = [name for name in modules if re.match(rf"{found.q_norm}\.\w+\.\d+$", name)]
    if norms_of_heads and find_norm_kind(modules[norms_of_heads[0]]) == "layer-norm":
        return names | {"norm": "layer-norm-list"}

    # a norm without weights, such as that of Llama 4, has no tensor that the family could name
    norm = modules[found.q_norm]
    parameters = list(norm.parameters())
    if not parameters:
        return {"norm": "l2-after-rope" if _norm_is_after_rotation(runs) else ""}

    # "layer-norm-plus-one" is a kind that no family file can name
    kind = find_norm_kind(norm)
    if kind is None or kind == "layer-norm-plus-one":
        not_derived.append(f"the kind of the norm {found.q_norm}")
        return {"fixed": f"the kind of the norm {found.q_norm} is not known"}
    norm_width = parameters[0].shape[-1]
    if kind == "rms" and norm_width > rotating.width:
        return names | {"norm": "rms-all-heads"}
    if kind == "rms" and _norm_is_after_rotation(runs):
        return names | {"norm": "rms-after-rope"}
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
    runs: ModelRuns, rotating: Attention, has_norms: bool, not_derived: list[str]
) -> Config:
    """Return the order of the rows of queries, such as {"rows": "last", "fused_order": "per-head"}.

    Args:
        runs: The model, which can be built from a changed config and run again.
        rotating: How the first layer that sees the whole context rotates queries and keys, as
            measured.
        has_norms: Whether queries have a norm with weights. ropeconv then folds an attention factor
            into the norm, and need not know the order of the rows.
        not_derived: A list to which a sentence is appended for an order that no family describes.

    Returns:
        Fields of `models.family.WeightNames`. "fixed" is among them where the order is not known:
        why ropeconv cannot fold a factor into the rows.
    """
    rotation = rotating.queries
    assert rotation is not None
    rows = runs.rows_of("queries")
    _, width = rows.shape
    starts = _first_rows(rows)

    # where only a part of a head rotates, this part may be its last rows
    facts: Config = {}
    rotates_in_part = rotation.width < width
    rotating_rows = rows[0, rotation.start : rotation.start + rotation.width]
    if rotates_in_part and rotating_rows.min() > starts[0]:
        facts["rows"] = "last"

    # one projection may make queries, keys and values
    is_fused = runs.projections.q_proj == runs.projections.k_proj
    if is_fused:
        key_starts = _first_rows(runs.rows_of("keys"))
        facts["fused_order"] = _find_fused_order(starts, key_starts, width)
        if not facts["fused_order"] and not has_norms:
            facts["fixed"] = "the order of the rows of its projection is not known"
            not_derived.append("the order of the rows of the fused projection")
        return facts

    # a projection of queries only: its heads should follow each other
    if not has_norms:
        facts |= _describe_distances_of_heads(runs, starts, width, not_derived)
    return facts


def _describe_distances_of_heads(
    runs: ModelRuns, starts: Sequence[int], width: int, not_derived: list[str]
) -> Config:
    """Return {} where the rows of a head follow those of the one before, as in most models.

    Otherwise return {"fixed": reason}, the reason why ropeconv cannot fold an attention factor into
    the rows, and append a sentence to `not_derived`.

    Args:
        runs: The model, which can be built from a changed config and run again.
        starts: The first row of each head: 0, 128, 256, ... for heads that follow each other.
        width: The width of a head, such as 128.
        not_derived: The sentences about facts that were not found.
    """
    distances = set(np.diff(starts).tolist())  # from head to head; empty for a single head
    if not distances or distances == {width}:
        return {}

    # Qwen 3.5: behind the queries of each head, as many rows make a gate for its output
    rows_with_gates = 2 * len(starts) * width
    is_every_other_block = distances == {2 * width}
    if is_every_other_block and _count_rows(runs, runs.projections.q_proj) == rows_with_gates:
        not_derived.append("a key for the output gate behind the queries of each head")
        return {"fixed": "its projection of queries also makes a gate"}
    not_derived.append("the order of the rows of queries")
    return {"fixed": "the order of the rows of its queries is not known"}


def _first_rows(rows: Numbers) -> list[int]:
    """Return the first row of each head, from rows of shape (heads, width), -1 for none."""
    return [int(head[head >= 0].min()) for head in rows]


def _count_rows(runs: ModelRuns, name: str) -> int:
    """Return the number of rows of a projection; 0 where it has no weight of that name."""
    weight = getattr(runs.observer.modules[name], "weight", None)
    return 0 if weight is None else int(weight.shape[0])


def _find_fused_order(
    query_starts: Sequence[int], key_starts: Sequence[int], width: int
) -> FusedOrder:
    """Return the order of the rows of a fused projection.

    A group is a key and a value with the queries that share them. With 4 heads in 2 groups, the
    projection has blocks of `width` rows: queries (q), keys (k), values (v) and gates (g). The
    numbers of the blocks of queries, from 0, show the order:

        order            blocks             queries are blocks
        blocks           q q q q k k v v    0, 1, 2, 3
        gate-and-blocks  g g g g q q q q    4, 5, 6, 7
        per-group        q q k v q q k v    0, 1, 4, 5

    Args:
        query_starts: The first row of each head of queries.
        key_starts: The first row of the keys of each head; heads of a group may have the same.
        width: The width of a head.
    """
    starts = list(query_starts)
    different_key_starts = sorted(set(key_starts))
    heads = len(starts)
    groups = len(different_key_starts)
    queries_per_group = heads // groups

    # the first rows that the queries would have in each order
    first_blocks = [width * head for head in range(heads)]
    if starts == first_blocks:
        blocks_after_queries = [width * (heads + group) for group in range(groups)]
        return "blocks" if different_key_starts == blocks_after_queries else ""

    blocks_per_group = queries_per_group + 2  # with a key and a value
    blocks_in_groups = []
    for head in range(heads):
        group, place_in_group = divmod(head, queries_per_group)
        blocks_in_groups.append(width * (group * blocks_per_group + place_in_group))
    if starts == blocks_in_groups:
        return "per-head" if queries_per_group == 1 else "per-group"

    blocks_after_gates = [width * (heads + head) for head in range(heads)]
    return "gate-and-blocks" if starts == blocks_after_gates else ""


def _describe_input_norm(runs: ModelRuns, not_derived: list[str]) -> Config:
    """Return the norm before the projections: {"input": "rms", "input_norm": ["input_layernorm"]}.

    For a kind of norm that no family describes, "input" is missing. In its place "unmeasured" says
    why the variances of queries and keys cannot be computed from the weights.

    Args:
        runs: The model, which can be built from a changed config and run again.
        not_derived: A list to which a sentence is appended for such a kind.
    """
    name = runs.projections.input_norm
    if not name:  # a model without a norm before its attention
        return {"input": ""}
    kind = find_norm_kind(runs.observer.modules[name])
    if kind is not None:
        return {"input": kind, "input_norm": [name]}
    not_derived.append(f"the kind of the norm {name}")
    return {"unmeasured": f"the kind of the norm {name} is not known", "input_norm": [name]}
