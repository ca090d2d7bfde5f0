"""on_top: a method on top of the scaling that a model has, which `--on-top` keeps and multiplies further.

With theta the base of the model, theta_i = theta^(-2i/r), f_i and A its frequencies and attention factor, L0 its
context before the scaling, L1 the one it declares, s the factor of the method (or length / L1), and m_i, A_m what the
method gives for the unscaled model over L0:

- the same method again (yarn, llama3, linear; by-parts with the same ramp): its formula over L0 with the product of
  both factors, f the old one, and A' = A law(f s) / law(f), law being its attention factor;
- a method that is another base (theta, theta-for, theta-bound, ntk, ntk-old): the formula of the scaling with the new
  base, A' = A;
- every other pair: f_i' = f_i m_i / theta_i, of two factor lists both, and A' = A A_m.

The context becomes L1 s. A method therefore sees L1 as the trained context, at the frequencies that the scaling has
divided: the pair that rotates once in L0 unscaled rotates once in L1 under linear scaling by L1 / L0.
"""

from __future__ import annotations

from dataclasses import replace

from .bound.reach import first_violation
from .errors import RecipeError
from .forms import DynamicNtk, Form, InterpolatedForm, Llama3, LongRope, Yarn, base_inv_freq, divisors
from .lazy import Vector, np
from .lengths import format_tokens
from .methods.bases import ThetaBound
from .methods.method import Method, schedule_of
from .schedule import Schedule
from .spec import RopeSpec

Scaled = InterpolatedForm | Llama3 | Yarn
"""Forms that a method can widen."""


def on_top(method: Method, spec: RopeSpec, context: int | None = None) -> Schedule:
    """The schedule of a method on top of the scaling of a model, as the head of this file defines it.

    method: with its parameters. spec: the RoPE of the present model. context: tokens to declare, None for those of the
    method. Raises RecipeError for a model without scaling or with dynamic scaling, and for a length within L1.
    """
    declared, original, form = spec.context, spec.original_context, spec.form
    if not spec.scaled:
        raise RecipeError("--on-top keeps the scaling of a model, and this one has none; leave it out")
    if isinstance(form, DynamicNtk):
        raise RecipeError(
            "--on-top cannot keep dynamic scaling, which changes with the sequence; freeze it first with "
            f"--dynamic ntk:{form.factor:g} --at TOKENS --replace"
        )
    start = replace(spec.unscaled(), context=max(1, round((context or declared) * original / declared)))
    relative = method.relative(declared, original)
    factor = relative.factor_over(original)
    schedule = _widened(relative, factor, start, spec) or _composed(schedule_of(relative, start), start, spec)
    reached = round(declared * factor) if factor is not None else round(schedule.context * declared / original)
    schedule = replace(schedule, context=context or method.length or reached)
    if isinstance(method, ThetaBound):
        first = first_violation(schedule.inv_freq, spec.unrotated, method.target)
        if first is not None:
            raise RecipeError(
                f"--theta-bound {format_tokens(method.target)}: with the scaling that --on-top keeps, the sum is "
                f"negative at distance {first:,}; pass --replace instead, or choose a base with --theta"
            )
    return schedule


def total_factor(method: Method, spec: RopeSpec) -> tuple[float, float] | None:
    """The factor of a scaling and the one that multiplies it, where `on_top` widens it; else None.

    method, spec: as in `on_top`.
    """
    relative = method.relative(spec.context, spec.original_context)
    factor, form = relative.factor_over(spec.original_context), spec.form
    if factor is None or not isinstance(form, Scaled) or relative.widened(form, factor) is None:
        return None
    return form.factor, factor


def _widened(method: Method, factor: float | None, start: RopeSpec, spec: RopeSpec) -> Schedule | None:
    """The schedule with the product of both factors; None where the scaling is of another method."""
    if factor is None:
        return None
    total, old = method.widened(spec.form, factor), method.widened(spec.form, 1.0)
    if total is None or old is None:
        return None
    schedule = schedule_of(total, start)
    law = schedule.attention_factor / schedule_of(old, start).attention_factor
    return replace(schedule, attention_factor=spec.attention_factor * law)


def _composed(schedule: Schedule, start: RopeSpec, spec: RopeSpec) -> Schedule:
    """The schedule with another base, or with the product of the divisors. schedule: of the method."""
    current, base = spec.current(), start.form.inv_freq(spec.rotary_dim)
    attention_factor, softmax_scale = (
        current.attention_factor * schedule.attention_factor,
        current.softmax_scale * schedule.softmax_scale,
    )
    inv_freq, short, original = current.inv_freq * _ratio(schedule.inv_freq, base), None, spec.original_context
    form: Form | None = None
    if current.short_inv_freq is not None or schedule.short_inv_freq is not None:
        present, divided = (
            one.inv_freq if one.short_inv_freq is None else one.short_inv_freq for one in (current, schedule)
        )
        short = present * _ratio(divided, base)
        original = original if current.short_inv_freq is not None else spec.context
        plain = base_inv_freq(spec.rope_theta, spec.rotary_dim)
        lists = [tuple(divisors(plain, vector).tolist()) for vector in (short, inv_freq)]
        form = LongRope(spec.rope_theta, lists[0], lists[1], original)
    elif spec.form == start.form:
        form = schedule.form
    elif schedule.form is not None and schedule.form == spec.base_form(schedule.form.theta):
        form = replace(spec.form, theta=schedule.form.theta)
        inv_freq = form.inv_freq(spec.rotary_dim)
    return Schedule(inv_freq, attention_factor, schedule.context, original, form, short, softmax_scale)


def _ratio(inv_freq: Vector, base: Vector) -> Vector:
    """inv_freq_i / base_i, and 0 for pairs that stand still in the unscaled model."""
    return np.divide(inv_freq, base, out=np.zeros(len(base)), where=base > 0)
