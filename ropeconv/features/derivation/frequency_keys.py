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
UNNAMED_HEAD_KEYS = ("global_head_dim",)
"""Keys of widths of heads, likewise: Gemma 4's class turns this one into layer_overrides."""


def describe_keys(runs: ModelRuns, rotating: Attention, rotations: dict[Kind, Rotation]) -> Config:
    """Return the table [keys] of a family file: the config keys that are not the usual ones.

    For GPT-NeoX, whose base (theta) is rotary_emb_base, and whose rotating share of a head
    (partial) is rotary_pct: {"theta": ["rotary_emb_base"], "partial": ["rotary_pct"]}.

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

    # how much of a head rotates. In Gemma 4 all pairs of a head are rotated, some of them by the
    # frequency 0 (rope_type "proportional"). Its share says how many, and not where rotation ends.
    share_keys = _share_keys(runs, rotating)
    has_pairs_of_frequency_0 = 0.0 in rotating.queries.inv_freq
    if share_keys and not has_pairs_of_frequency_0:
        facts["partial"] = share_keys
    rotary_dim_keys = _rotary_dim_keys(runs, rotating)
    if rotary_dim_keys and not runs.is_latent:
        facts["rotary_dim"] = rotary_dim_keys
    return facts


def _head_keys(runs: ModelRuns, rotating: Attention) -> Config:
    """Return the config key of the width of a head; {} where it is the usual one, head_dim.

    {"head_dim": ["kv_channels"]}, say: the field head_dim of a family file, with the keys of a
    config that have this size.

    Args:
        runs: The model.
        rotating: The attention of the first layer that sees the whole context, as measured.
    """
    part = runs.subject.text_part
    # with MLA only these dimensions of a head rotate, and families count them as its width
    if runs.is_latent and hasattr(runs.text, "qk_rope_head_dim"):
        return {"head_dim": ["qk_rope_head_dim"]}
    # layers with a sliding window have heads of another width, as in Gemma 4
    if runs.has_two_widths:
        return _head_keys_of_kinds(runs)
    if "head_dim" in part:
        return {}

    # the first other key of this config, such as kv_channels, if it has the width of the heads
    other_keys = [name for name in SIZE_KEYS["head_dim"] if part.get(name)]
    if other_keys and part[other_keys[0]] == rotating.width:
        return {"head_dim": [other_keys[0]]}
    return {}


def _head_keys_of_kinds(runs: ModelRuns) -> Config:
    """Return the config keys of the width of a head, where layers of two kinds have two widths.

    For Gemma 4: {"head_dim": ["global_head_dim"], "local_head_dim": ["head_dim"]}: the keys for
    layers that see the whole context, and those for layers with a sliding window. A key is found by
    doubling its number: the heads of one kind of layers are then twice as wide.
    """
    facts: Config = {}
    part = runs.subject.text_part
    for name in dict.fromkeys((*runs.config_keys(), *UNNAMED_HEAD_KEYS)):
        value = part.get(name, getattr(runs.text, name, None))
        # a key that the class turns into other settings has no number after that
        if value is None and name in UNNAMED_HEAD_KEYS:
            value = runs.widths["global"]
        if "head_dim" not in name or not isinstance(value, int):
            continue
        layers = runs.measure_changed(set_only(name, 2 * value))
        if _width_in(runs, layers, "global") == 2 * runs.widths["global"]:
            facts.setdefault("head_dim", []).append(name)
        if _width_in(runs, layers, "local") == 2 * runs.widths["local"]:
            facts.setdefault("local_head_dim", []).append(name)
    return facts


def _width_in(runs: ModelRuns, layers: Sequence[Attention | None] | None, kind: Kind) -> int | None:
    """Return the width of a head in the first layer of a kind; None without one."""
    for item, kind_of_layer in zip(layers or (), runs.kinds_of_first_layers, strict=False):
        if item is not None and kind_of_layer == kind:
            return item.width
    return None


def _theta_keys(runs: ModelRuns, has_local: bool) -> tuple[list[str], list[str]]:
    """Return the keys of the base of global layers, and those of the base of local layers only.

    For Gemma 3: (["rope_theta"], ["rope_local_base_freq"]). Each key that may set a base is set to
    a base that no model has, and the model runs. The layers that then rotate by this base are those
    whose base the key sets.

    Args:
        runs: The model, which can be built from a changed config and run again.
        has_local: Whether some layers are local: they have a sliding window, and frequencies of
            their own.
    """
    part = runs.subject.text_part
    candidates = set(_candidates(runs, NAME_OF_BASE_KEY, lambda number: number > 1))
    if has_local:
        candidates |= set(UNNAMED_BASE_KEYS)
    # the usual key comes first, also in the family file
    candidates.discard("rope_theta")
    names = ["rope_theta", *sorted(candidates)]

    theta = []
    local_theta = []
    for name in names:
        # rope_scaling and rope_parameters hold a dictionary, and a few other keys a list or a flag
        is_no_number = isinstance(part.get(name), (dict, list, bool))
        if name in ROPE_DICTIONARY_KEYS or is_no_number:
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

        # a key that sets the base of global layers, or of all
        if kinds_with_base - {"local"}:
            theta.append(name)
        # a key that sets the base of local layers only
        elif any(has_base):
            local_theta.append(name)

    # a class of transformers 5 may read rope_theta in the dictionary rope_parameters only
    if not theta and _reads_base_in_settings(runs):
        theta = ["rope_theta"]
    return theta, local_theta


def _candidates(
    runs: ModelRuns, name_pattern: re.Pattern[str], is_fitting: Callable[[float], bool]
) -> list[str]:
    """Return the config keys that may set some quantity, such as the base; the caller tries each.

    A key is a candidate by its name, or by its number if its name is about RoPE. For the base, for
    example, rotary_emb_base is one by its name. A key rope_b with the number 500000 is one by its
    number, since a base is above 1.

    Args:
        runs: The model, which can be built from a changed config and run again.
        name_pattern: Matches the names of candidates, whatever their values are.
        is_fitting: Returns whether a number may be the quantity.
    """
    names = []
    for name in runs.config_keys():
        value = runs.subject.text_part.get(name)
        number = 0.0
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            number = value
        is_rope_number = ROPE_KEY.search(name) is not None and is_fitting(number)
        if name_pattern.search(name) or is_rope_number:
            names.append(name)
    return names


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
    candidates = _candidates(runs, NAME_OF_SHARE_KEY, lambda number: 0 < number <= 1)
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

    Each candidate is set to half of the present number, and the model runs.
    """
    assert rotating.queries is not None
    half = rotating.queries.width // 2
    even_half = half // 2 * 2  # dimensions rotate in pairs
    found = []
    for name in _candidates(runs, NAME_OF_ROTARY_DIM_KEY, lambda number: number > 1):
        layers = runs.measure_changed(set_key(name, even_half))
        rotary_dim = first_width(layers)
        if even_half and rotary_dim == even_half:
            found.append(name)
    return found


def find_effective_keys(runs: ModelRuns, attention: Sequence[Attention | None]) -> list[str]:
    """Return the keys about RoPE of this config whose numbers change how the first layers rotate.

    Each key is set to another number, and the model runs. A class that refuses the other number
    reads the key, so that key is in the result too.

    Args:
        runs: The model, which can be built from a changed config and run again.
        attention: The attention of each layer with the numbers of this config.
    """
    found = []
    for name, value in runs.subject.text_part.items():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not ROPE_KEY.search(name):
            continue
        set_to_other_number = set_only(name, _other_number(name, value))
        layers = runs.measure_changed(set_to_other_number)
        is_refused = layers is None
        if is_refused or not all(map(_is_alike, layers or (), attention)):
            found.append(name)
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
