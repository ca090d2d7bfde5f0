"""Which keys of the config change the frequencies: the table [keys] of a family file.

The experiment changes one key, and nothing else, and runs the first layers again. A key is that of

the base              if layers then have the plain frequencies of `PROBE_BASE`
the share of a head   if the number of dimensions that rotate changes
the rotary dimension  if this number becomes the value
the width of heads    if heads become twice as wide

Candidates are the keys with a fitting name, and those about RoPE with a fitting number. The keys of
sizes (hidden size, layers, context) are found only by their names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ropeconv.models.schema import ROPE_KEY

from .asked_model import SIZE_KEYS, Config, NotDerivable
from .config_changes import (
    NAME_OF_BASE_KEY,
    PROBE_BASE,
    ROPE_DICTIONARY_KEYS,
    is_nested,
    set_key,
    set_only,
    set_rope_type,
)
from .frequency_numbers import first_width, layers_with_base
from .model_runs import ModelRuns
from .rotation import Attention, Rotation

if TYPE_CHECKING:
    from ropeconv.models.family import Kind

NAME_OF_SHARE_KEY = re.compile(r"partial|pct|percent|fraction", re.IGNORECASE)
"""Names of keys that may set the share of a head that rotates."""
NAME_OF_ROTARY_DIM_KEY = re.compile(r"rotary_dim|rotary_ndims|rope_head_dim")
"""Names of keys that may set how many dimensions of a head rotate."""
UNNAMED_BASE_KEYS = (
    "rope_local_base_freq",
    "local_rope_theta",
    "swa_rope_theta",
    "global_rope_theta",
)
"""Keys of bases that are tried although neither the class nor this config has such a name."""
HEAD_KEYS_WITHOUT_VALUE = ("global_head_dim",)
"""Keys of widths of heads, likewise: Gemma 4's class turns this one into layer_overrides."""


def describe_keys(runs: ModelRuns, rotating: Attention, rotations: dict[Kind, Rotation]) -> Config:
    """Return the config keys of the sizes and the RoPE of a model that do not have the usual names.

    They are the table [keys] of a family file. For GPT-NeoX: {"theta": ["rotary_emb_base"],
    "partial": ["rotary_pct"]}, the keys of the base, and of the share of a head that rotates.

    Args:
        runs: The model, which can be built from a changed config and run again.
        rotating: How the first layer that sees the whole context rotates queries and keys, as
            measured.
        rotations: The rotation of each kind of layers.

    Raises:
        NotDerivable: No key changes the base.
    """
    assert rotating.queries is not None
    facts: Config = {}

    # sizes
    for quantity in ("hidden", "heads", "kv_heads", "layers", "context"):
        names = runs.keys_of_size(quantity)
        usual_key = SIZE_KEYS[quantity][0]
        if names != [usual_key]:
            facts[quantity] = names
    facts |= _head_keys(runs, rotating)

    # bases
    theta, local_theta = _theta_keys(runs, has_local="local" in rotations)
    if not theta:
        raise NotDerivable(
            "no key of its config changes the base of its frequencies, so it is fixed in code"
        )
    if theta != ["rope_theta"]:
        facts["theta"] = theta
    if local_theta:
        facts["local_theta"] = local_theta

    # The share of a head that rotates. Gemma 4 (rope_type "proportional") has a key for the share
    # of pairs whose frequency is not 0. These pairs are not the first dimensions of a head, as
    # `partial` would say, so the key is left out.
    share_keys = _share_keys(runs, rotating)
    has_pairs_of_frequency_0 = 0.0 in rotating.queries.inv_freq
    if share_keys and not has_pairs_of_frequency_0:
        facts["partial"] = share_keys

    # the number of dimensions that rotate; with latent attention (MLA) it is the width of a head
    rotary_dim_keys = _rotary_dim_keys(runs, rotating)
    if rotary_dim_keys and not runs.is_latent:
        facts["rotary_dim"] = rotary_dim_keys
    return facts


def _head_keys(runs: ModelRuns, rotating: Attention) -> Config:
    """Return the config key that has the width of a head, such as {"head_dim": ["kv_channels"]}.

    {} where it is the usual key, head_dim.

    Args:
        runs: The model, which can be built from a changed config and run again.
        rotating: The attention of the first layer that sees the whole context, as measured.
    """
    part = runs.subject.text_part
    # latent attention (MLA): a family describes only the part of a head that rotates
    if runs.is_latent and hasattr(runs.text, "qk_rope_head_dim"):
        return {"head_dim": ["qk_rope_head_dim"]}

    # Gemma 4: layers with a sliding window have heads of another width
    if runs.has_two_widths:
        return _head_keys_of_kinds(runs)

    # most models
    if "head_dim" in part:
        return {}

    # ChatGLM: another known key, kv_channels, if its number is the width of the heads
    other_keys = [name for name in SIZE_KEYS["head_dim"] if part.get(name)]
    if other_keys and part[other_keys[0]] == rotating.width:
        return {"head_dim": [other_keys[0]]}
    return {}


def _head_keys_of_kinds(runs: ModelRuns) -> Config:
    """Return the config keys that have the widths of heads, for a model with heads of two widths.

    For Gemma 4: {"head_dim": ["global_head_dim"], "local_head_dim": ["head_dim"]}, the keys for
    layers that see the whole context, and for layers with a sliding window.

    Args:
        runs: The model, which can be built from a changed config and run again.
    """
    global_width = runs.widths["global"]
    local_width = runs.widths["local"]
    facts: Config = {}
    for name in dict.fromkeys((*runs.config_keys(), *HEAD_KEYS_WITHOUT_VALUE)):
        value = runs.subject.text_part.get(name, getattr(runs.text, name, None))
        # Gemma 4: the class reads global_head_dim, and does not keep its value
        if value is None and name in HEAD_KEYS_WITHOUT_VALUE:
            value = global_width
        if "head_dim" not in name or not isinstance(value, int):
            continue

        # double the number, run the model, and see the heads of which layers are twice as wide
        layers = runs.measure_changed(set_only(name, 2 * value))
        if _head_width(runs, layers, kind="global") == 2 * global_width:
            facts.setdefault("head_dim", []).append(name)
        if _head_width(runs, layers, kind="local") == 2 * local_width:
            facts.setdefault("local_head_dim", []).append(name)
    return facts


def _head_width(
    runs: ModelRuns, layers: Sequence[Attention | None] | None, kind: Kind
) -> int | None:
    """Return the width of a head in the first layer of a kind; None where no layer is of it.

    Args:
        runs: The model, with the kind of each of its first layers.
        layers: The attention of these layers, as measured; None where the class did not run.
        kind: The kind, such as "global".
    """
    if layers is None:
        return None
    for attention, kind_of_layer in zip(layers, runs.kinds_of_first_layers, strict=False):
        if attention is not None and kind_of_layer == kind:
            return attention.width
    return None


def _theta_keys(runs: ModelRuns, has_local: bool) -> tuple[list[str], list[str]]:
    """Return the config keys that have the base of the RoPE frequencies.

    Each key that may have a base is set to `PROBE_BASE`, which no model has, and the model runs. A
    layer that then rotates by this base reads the key.

    Args:
        runs: The model, which can be built from a changed config and run again.
        has_local: Whether the model has local layers: layers with a sliding window, and with
            frequencies of their own.

    Returns:
        The keys of the base of global layers or all layers, and the keys of the base of local
        layers only. For Gemma 3: (["rope_theta"], ["rope_local_base_freq"]).
    """
    part = runs.subject.text_part
    candidates = set(_keys_to_try(runs, NAME_OF_BASE_KEY, _may_be_base))
    if has_local:
        candidates |= set(UNNAMED_BASE_KEYS)
    # the usual key comes first, also in the family file
    candidates.discard("rope_theta")
    names = ["rope_theta", *sorted(candidates)]

    theta_keys = []
    local_theta_keys = []
    for name in names:
        # rope_scaling and rope_parameters hold a dictionary, and a few other keys a list or a flag
        has_no_number = isinstance(part.get(name), (dict, list, bool))
        if name in ROPE_DICTIONARY_KEYS or has_no_number:
            continue
        layers = runs.measure_changed(set_key(name, PROBE_BASE))
        if layers is None:  # the class does not accept this key
            continue

        # the kinds of the layers that now have the base
        has_base = layers_with_base(layers, PROBE_BASE)
        kinds_with_base = set()
        for layer_has_base, kind in zip(has_base, runs.kinds_of_first_layers, strict=False):
            if layer_has_base:
                kinds_with_base.add(kind)

        has_other_than_local = any(kind != "local" for kind in kinds_with_base)
        if has_other_than_local:
            theta_keys.append(name)
        elif any(has_base):
            local_theta_keys.append(name)

    # a class of transformers 5 may read rope_theta in the dictionary rope_parameters only
    if not theta_keys and _reads_base_in_settings(runs):
        theta_keys = ["rope_theta"]
    return theta_keys, local_theta_keys


def _keys_to_try(
    runs: ModelRuns, name_pattern: re.Pattern[str], may_be_quantity: Callable[[float], bool]
) -> list[str]:
    """Return the config keys that may have some quantity, such as the base.

    There are two reasons to try a key. Its name says so: rotary_emb_base. Or its name is about RoPE
    and its number fits: {"rope_b": 500000}, since a base is above 1.

    Args:
        runs: The model, which can be built from a changed config and run again.
        name_pattern: Matches the names that say so.
        may_be_quantity: Returns whether a number fits. It returns False for 0.
    """
    names = []
    for name in runs.config_keys():
        if name_pattern.search(name):
            names.append(name)
            continue
        value = runs.subject.text_part.get(name)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            continue
        is_about_rope = ROPE_KEY.search(name) is not None
        if is_about_rope and may_be_quantity(value):
            names.append(name)
    return names


def _may_be_base(number: float) -> bool:
    """Return whether a number may be the base of RoPE frequencies."""
    return number > 1


def _may_be_share(number: float) -> bool:
    """Return whether a number may be the share of a head that rotates."""
    return 0 < number <= 1


def _may_be_size(number: float) -> bool:
    """Return whether a number may be a number of dimensions."""
    return number > 1


def _reads_base_in_settings(runs: ModelRuns) -> bool:
    """Whether the class reads rope_theta in the RoPE dictionary."""
    # a class with a dictionary for each layer type is one of transformers 5, and has the base in it
    if is_nested(runs.text):
        return True
    layers = runs.measure_changed(set_rope_type(runs.text, "default", {}))
    return layers is not None and any(layers_with_base(layers, PROBE_BASE))


def _share_keys(runs: ModelRuns, rotating: Attention) -> list[str]:
    """Return the config keys of the share of a head that rotates, such as ["rotary_pct"].

    Each candidate is set to another share, and the model runs. If another number of dimensions
    rotates then, the key sets the share. Keys of this config come first in the result.

    Args:
        runs: The model, which can be built from a changed config and run again.
        rotating: The attention of the first layer that sees the whole context, as measured.
    """
    assert rotating.queries is not None
    part = runs.subject.text_part

    # a share that the model does not have already
    rotary_dim_before = rotating.queries.width
    rotates_half_of_head = rotary_dim_before == rotating.width // 2
    share = 0.25 if rotates_half_of_head else 0.5

    names = []
    candidates = _keys_to_try(runs, NAME_OF_SHARE_KEY, _may_be_share)
    for name in dict.fromkeys((*candidates, "partial_rotary_factor")):
        if isinstance(part.get(name), (dict, list)):
            continue
        layers = runs.measure_changed(set_key(name, share))
        rotary_dim = first_width(layers)
        if rotary_dim is not None and rotary_dim != rotary_dim_before:
            names.append(name)
    return sorted(names, key=lambda name: (name not in part, name))


def _rotary_dim_keys(runs: ModelRuns, rotating: Attention) -> list[str]:
    """Return the config keys of the number of dimensions that rotate, such as ["rotary_dim"].

    Each key that may have this number is set to half of it, and the model runs. If half of the
    dimensions rotate then, it is the key.

    Args:
        runs: The model, which can be built from a changed config and run again.
        rotating: How the first layer that sees the whole context rotates queries and keys, as
            measured.
    """
    assert rotating.queries is not None
    rotary_dim = rotating.queries.width
    half = rotary_dim // 4 * 2  # an even number, since dimensions rotate in pairs
    found = []
    for name in _keys_to_try(runs, NAME_OF_ROTARY_DIM_KEY, _may_be_size):
        layers = runs.measure_changed(set_key(name, half))
        rotary_dim_now = first_width(layers)
        if half and rotary_dim_now == half:
            found.append(name)
    return found


def find_effective_keys(runs: ModelRuns, attention: Sequence[Attention | None]) -> list[str]:
    """Return the config keys about RoPE whose numbers change how the first layers rotate.

    Each key is set to another number, and the model runs.

    Args:
        runs: The model, which can be built from a changed config and run again.
        attention: How each layer rotates with the numbers of this config.
    """
    found = []
    for name, value in runs.subject.text_part.items():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not ROPE_KEY.search(name):
            continue
        changed_layers = runs.measure_changed(set_only(name, _other_number(name, value)))

        # the class refuses the other number, so it reads the key
        if changed_layers is None:
            found.append(name)
            continue

        # the changed model has only the first layers, so the later ones are not compared
        for changed_layer, layer in zip(changed_layers, attention, strict=False):
            if not _is_alike(changed_layer, layer):
                found.append(name)
                break
    return found


def _other_number(name: str, value: Any) -> Any:
    """Return another number for a key: twice a base or a share, or half of a size, made even."""
    is_base = NAME_OF_BASE_KEY.search(name) is not None
    if is_base or value < 2:
        return value * 2
    return value // 4 * 2


def _is_alike(first: Attention | None, second: Attention | None) -> bool:
    """Whether the queries of two layers rotate alike, or do not depend on the position in both."""
    first_rotation = first.queries if first is not None else None
    second_rotation = second.queries if second is not None else None
    if first_rotation is None or second_rotation is None:
        return first_rotation is second_rotation
    return first_rotation.is_like(second_rotation)
