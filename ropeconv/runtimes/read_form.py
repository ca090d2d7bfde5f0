"""Reads the formula and the attention factor of a RoPE dictionary by the rules of a runtime."""

from __future__ import annotations

import math
from typing import Any

from ..errors import BadSource, shown
from ..families.config import Config, Geometry
from ..rope.forms import DynamicNtk, Form, Interpolated, Llama3, LongRope, Plain, Yarn
from ..rope.laws import longrope_attention_factor, mscale_ratio, ntk_theta, temperature_attention_factor
from ..rope.proportional import Proportional
from .rules import TypeRules


def number(found: dict[str, Any], key: str, default: float | None = None) -> float:
    """A number of a RoPE dictionary. Raises BadSource for another value, or an absent one without `default`."""
    value = found.get(key)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        hint = f"write the number {value} without quotes" if isinstance(value, str) else "write a number there"
        raise BadSource(f"config.json has {key} = {shown(value)} in its RoPE settings; {hint}")
    return float(value)


def _original(found: dict[str, Any], rules: TypeRules, part: Config, sizes: Geometry) -> int:
    if rules.original == "max":
        return sizes.context
    top = part.get("original_max_position_embeddings")
    value = top if top is not None else found.get("original_max_position_embeddings")
    return int(number({"original_max_position_embeddings": value}, "original_max_position_embeddings", sizes.context))


def _factor(found: dict[str, Any], rules: TypeRules, original: int, sizes: Geometry) -> float:
    if rules.factor == "max/original" or found.get("factor") is None:
        return sizes.context / original
    return number(found, "factor")


def read_form(kind: str, found: dict[str, Any], theta: float, rules: TypeRules, part: Config, sizes: Geometry) -> Form:
    """The form of a RoPE dictionary.

    kind: its rope type. found: the dictionary, which `check_config` has taken. theta: the base. rules: how that type is
    read. part: the text part of the config. sizes: of the model. Raises BadSource for values of the wrong kind.
    """
    original = _original(found, rules, part, sizes)
    if kind == "default":
        return Plain(theta)
    if kind == "longrope":
        short, long = _factors(found, "short_factor", sizes), _factors(found, "long_factor", sizes)
        lists = {"long": (long, long), "window": (long, long), "short": (short, short)}
        return LongRope(theta, *lists.get(rules.lists, (short, long)), original)
    if kind == "linear":
        number(found, "factor")
        return Interpolated(theta, _factor(found, rules, original, sizes))
    if kind == "dynamic" and rules.alpha and found.get("alpha"):
        return Plain(_alpha_base(theta, number(found, "alpha"), sizes.rotary_dim))
    if kind == "proportional":
        return Proportional(theta, number(found, "factor", 1.0), number(found, "partial_rotary_factor", 1.0))
    if kind == "dynamic":
        return DynamicNtk(theta, number(found, "factor"), sizes.context)
    factor = _factor(found, rules, original, sizes)
    if kind == "llama3":
        return Llama3(theta, factor, original, number(found, "low_freq_factor"), number(found, "high_freq_factor"))
    fast, slow = (32.0, 1.0) if not rules.betas else (number(found, "beta_fast", 32.0), number(found, "beta_slow", 1.0))
    truncate = found.get("truncate", True) is not False or rules.truncate == "ignored"
    return Yarn(theta, factor, original * rules.times_original, fast, slow, truncate)


def _factors(found: dict[str, Any], key: str, sizes: Geometry) -> tuple[float, ...]:
    values = found.get(key)
    if not isinstance(values, list) or len(values) != sizes.rotary_dim // 2:
        have = len(values) if isinstance(values, list) else 0
        raise BadSource(
            f"config.json has {have} numbers in {key}, and {sizes.rotary_dim // 2} pairs rotate; "
            f"write {sizes.rotary_dim // 2} numbers"
        )
    return tuple(number({key: value}, key) for value in values)


def read_attention_factor(
    kind: str, found: dict[str, Any], rules: TypeRules, form: Form, sizes: Geometry, part: Config
) -> float:
    """The factor on cos and sin of a RoPE dictionary. form: as `read_form` gives it; the others are as there."""
    if not isinstance(form, (Yarn, LongRope)):
        return 1.0
    if isinstance(form, Yarn):
        factor, formula = form.factor, temperature_attention_factor(form.factor)
    else:
        factor = _factor(found, rules, form.original_context, sizes)
        formula = longrope_attention_factor(factor, form.original_context) if form.original_context > 1 else math.inf
    attention_factor = 1.0
    for source in rules.attention_factor:
        if source == "formula":
            attention_factor = formula
        elif source == "mscale" and found.get("mscale") and found.get("mscale_all_dim"):
            attention_factor = mscale_ratio(factor, number(found, "mscale"), number(found, "mscale_all_dim"))
        elif source == "attention_factor" and found.get("attention_factor") is not None:
            attention_factor = number(found, "attention_factor")
        elif source == "short_mscale" and found.get("long_mscale") is not None:
            attention_factor = number(found, "long_mscale")
        else:
            continue
        break
    return attention_factor * (number(found, "attn_factor", 1.0) if rules.times_attn_factor else 1.0)


def _alpha_base(theta: float, alpha: float, rotary_dim: int) -> float:
    """Hunyuan's base theta alpha^(r/(r-2)). Raises BadSource where that is no base."""
    if rotary_dim > 2 and 1 <= alpha <= 1e9:
        return ntk_theta(theta, alpha, rotary_dim)
    raise BadSource(
        f"config.json has alpha = {alpha:g} in its RoPE settings; write a number of at least 1, such as 1000"
    )
