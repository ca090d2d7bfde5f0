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
    PROBE_BASE,
    SETTINGS_KEYS,
    THETA_NAME,
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

SHARE_NAME = re.compile(r"partial|pct|percent|fraction", re.IGNORECASE)
"""Names of keys that may set the share of a head that rotates."""
ROTARY_DIM_NAME = re.compile(r"rotary_dim|rotary_ndims|rope_head_dim")
"""Names of keys that may set how many dimensions of a head rotate."""
HIDDEN_THETA_KEYS = (
    "rope_local_base_freq",
    "local_rope_theta",
    "swa_rope_theta",
    "global_rope_theta",
)
"""Keys of bases that a class may read though neither it nor this config names them."""
HIDDEN_HEAD_KEYS = ("global_head_dim",)
"""Likewise of widths of heads: Gemma 4's class turns it into layer_overrides."""


def describe_keys(runs: ModelRuns, rotating: Attention, rotations: dict[Kind, Rotation]) -> Config:
    """Return the table [keys] of a family file: the config keys that are not the usual ones.

    For GPT-NeoX: {"theta": ["rotary_emb_base"], "partial": ["rotary_pct"]}.

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
    for quantity in ("hidden", "heads", "kv_heads", "layers", "context"):
        names = runs.keys_of_size(quantity)
        if names != [SIZE_KEYS[quantity][0]]:
            facts[quantity] = names
    facts |= _head_keys(runs, rotating)

    theta, local_theta = _theta_keys(runs, has_local="local" in rotations)
    if not theta:
        raise NotDerivable(
            "no key of its config changes the base of its frequencies, so it is fixed in code"
        )
    if theta != ["rope_theta"]:
        facts["theta"] = theta
    if local_theta:
        facts["local_theta"] = local_theta

    shares = _share_keys(runs, rotating)
    # the type proportional (Gemma 4) counts all pairs, and its share says how many stand still
    has_still_pairs = 0.0 in rotating.queries.inv_freq
    if shares and not has_still_pairs:
        facts["partial"] = shares
    rotary_dims = _rotary_dim_keys(runs, rotating)
    if rotary_dims and not runs.is_latent:
        facts["rotary_dim"] = rotary_dims
    return facts


def _head_keys(runs: ModelRuns, rotating: Attention) -> Config:
    """Return the config keys of the width of a head; {} where it is the usual one, head_dim.

    Such as {"head_dim": ["kv_channels"]}.
    """
    part = runs.subject.part
    # only these dimensions of a head rotate in latent attention, and they count as its width
    if runs.is_latent and hasattr(runs.text, "qk_rope_head_dim"):
        return {"head_dim": ["qk_rope_head_dim"]}
    if runs.has_two_widths:
        return _head_keys_of_kinds(runs)
    if "head_dim" in part:  # the usual key
        return {}

    # another key of this config, such as kv_channels, if it has the width that was measured
    names = [name for name in SIZE_KEYS["head_dim"] if part.get(name)]
    if not names:
        return {}
    name = names[0]
    if part[name] != rotating.width:
        return {}
    return {"head_dim": [name]}


def _head_keys_of_kinds(runs: ModelRuns) -> Config:
    """Return the config keys of the width of a head, where layers of two kinds have two widths.

    For Gemma 4: {"head_dim": ["global_head_dim"], "local_head_dim": ["head_dim"]}. A key is found
    by doubling its number: the heads of one kind of layers are then twice as wide.
    """
    facts: Config = {}
    part = runs.subject.part
    for name in dict.fromkeys((*runs.config_keys(), *HIDDEN_HEAD_KEYS)):
        value = part.get(name, getattr(runs.text, name, None))
        if value is None and name in HIDDEN_HEAD_KEYS:
            value = runs.widths["global"]
        if "head_dim" not in name or not isinstance(value, int):
            continue
        # nothing in a RoPE dictionary overrides a width
        layers = runs.measure_changed(set_only(name, 2 * value))
        if _width_in(runs, layers, "global") == 2 * runs.widths["global"]:
            facts.setdefault("head_dim", []).append(name)
        if _width_in(runs, layers, "local") == 2 * runs.widths["local"]:
            facts.setdefault("local_head_dim", []).append(name)
    return facts


def _width_in(runs: ModelRuns, layers: Sequence[Attention | None] | None, kind: Kind) -> int | None:
    """Return the width of a head in the first layer of a kind; None without one."""
    for item, kind_of_layer in zip(layers or (), runs.few_kinds, strict=False):
        if item is not None and kind_of_layer == kind:
            return item.width
    return None


def _theta_keys(runs: ModelRuns, has_local: bool) -> tuple[list[str], list[str]]:
    """Return the keys of the base of global layers, and those of the base of local layers only.

    For Gemma 3: (["rope_theta"], ["rope_local_base_freq"]). Each key that may be one is set to a
    base that no model has, and the layers that then rotate by this base show what it is.

    Args:
        runs: The model, which can be built from a changed config and run again.
        has_local: Whether some layers are local.
    """
    part = runs.subject.part
    candidates = set(_candidates(runs, THETA_NAME, lambda number: number > 1))
    if has_local:
        candidates |= set(HIDDEN_THETA_KEYS)
    # the usual key comes first, also in the family file
    candidates.discard("rope_theta")
    names = ["rope_theta", *sorted(candidates)]

    theta = []
    local_theta = []
    for name in names:
        holds_no_number = isinstance(part.get(name), (dict, list, bool))
        if name in SETTINGS_KEYS or holds_no_number:
            continue
        layers = runs.measure_changed(set_key(name, PROBE_BASE))
        if layers is None:  # the class does not accept this key
            continue

        # whether each layer now has the base, and the kinds of those that do
        has_base = layers_with_base(layers, PROBE_BASE)
        kinds_with_base = set()
        for layer_has_base, kind in zip(has_base, runs.few_kinds, strict=False):
            if layer_has_base:
                kinds_with_base.add(kind)
        sets_other_than_local = bool(kinds_with_base - {"local"})
        if sets_other_than_local:
            theta.append(name)
        elif any(has_base):
            local_theta.append(name)

    # a class of transformers 5 may read the base only in its dictionary, rope_parameters
    if not theta and _reads_base_in_settings(runs):
        theta = ["rope_theta"]
    return theta, local_theta


def _candidates(
    runs: ModelRuns, name_pattern: re.Pattern[str], is_fitting: Callable[[float], bool]
) -> list[str]:
    """Return the config keys that may set some quantity, such as the base; the caller tries each.

    A key may by its name. One that is about RoPE in general may by its number too: a base is above
    1, and a share of the head is at most 1.

    Args:
        runs: The model, which can be built from a changed config and run again.
        name_pattern: Fits names, whatever their values are.
        is_fitting: Whether a number of this config may be what is looked for.
    """
    names = []
    for name in runs.config_keys():
        value = runs.subject.part.get(name)
        number = 0.0
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            number = value
        is_rope_number = ROPE_KEY.search(name) is not None and is_fitting(number)
        if name_pattern.search(name) or is_rope_number:
            names.append(name)
    return names


def _reads_base_in_settings(runs: ModelRuns) -> bool:
    """Whether the class reads rope_theta in the RoPE dictionary."""
    if is_nested(runs.text):  # transformers 5 has such dictionaries with their bases only
        return True
    layers = runs.measure_changed(set_rope_type(runs.text, "default", {}))
    return layers is not None and any(layers_with_base(layers, PROBE_BASE))


def _share_keys(runs: ModelRuns, rotating: Attention) -> list[str]:
    """Return the config keys of the share of a head that rotates, such as ["rotary_pct"].

    Each candidate is set to another share, and counts where other dimensions rotate then. Keys of
    this config come before those that only its class has.
    """
    assert rotating.queries is not None
    part = runs.subject.part
    before = rotating.queries.width
    # each key is set to a share that the model does not have already
    has_half = before == rotating.width // 2
    share = 0.25 if has_half else 0.5
    names = []
    candidates = _candidates(runs, SHARE_NAME, lambda number: 0 < number <= 1)
    for name in dict.fromkeys((*candidates, "partial_rotary_factor")):
        if isinstance(part.get(name), (dict, list)):
            continue
        width = first_width(runs.measure_changed(set_key(name, share)))
        if width is not None and width != before:
            names.append(name)
    return sorted(names, key=lambda name: (name not in part, name))


def _rotary_dim_keys(runs: ModelRuns, rotating: Attention) -> list[str]:
    """Return the keys of the number of dimensions that rotate: half of it is tried."""
    assert rotating.queries is not None
    half = rotating.queries.width // 2
    even_half = half // 2 * 2  # dimensions rotate in pairs
    found = []
    for name in _candidates(runs, ROTARY_DIM_NAME, lambda number: number > 1):
        width = first_width(runs.measure_changed(set_key(name, even_half)))
        if even_half and width == even_half:
            found.append(name)
    return found


def find_effective_keys(runs: ModelRuns, attention: Sequence[Attention | None]) -> list[str]:
    """Return the number keys about RoPE of this config that change how the first layers rotate.

    A class that does not accept another number reads the key too.

    Args:
        runs: The model, which can be built from a changed config and run again.
        attention: The attention of each layer with the numbers of this config.
    """
    found = []
    for name, value in runs.subject.part.items():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not ROPE_KEY.search(name):
            continue
        layers = runs.measure_changed(set_only(name, _other_number(name, value)))
        is_same = layers is not None and all(map(_is_alike, layers, attention))
        if not is_same:
            found.append(name)
    return found


def _other_number(name: str, value: Any) -> Any:
    """Another number that a key may have: twice a base or a share, half a size (made even)."""
    is_base = THETA_NAME.search(name) is not None
    if is_base or value < 2:
        return value * 2
    return value // 4 * 2


def _is_alike(first: Attention | None, second: Attention | None) -> bool:
    """Whether queries of two layers rotate alike, or both do not depend on the position."""
    of_first = first.queries if first is not None else None
    of_second = second.queries if second is not None else None
    if of_first is None or of_second is None:
        return of_first is of_second
    return of_first.is_like(of_second)
