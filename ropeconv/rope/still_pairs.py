"""Methods for models whose slowest pairs stand still by architecture (p-RoPE: Gemma 4, LFM 3).

With a share p of the r/2 pairs that rotate, theta^(-2i/r) for i < p r/2 is (theta^p)^(-2i/(p r)): a rotary embedding of
p r dimensions with the base theta^p. A method sees that one, so that what it says of the slowest pair holds for the
slowest that rotates; a method that names a base names that of the whole head. The other pairs keep a frequency of 0.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .forms import Form, Interpolated, LongRope, Plain, Vector
from .lazy import np
from .proportional import Proportional, recognise
from .schedule import Schedule
from .spec import RopeSpec
from .zero_frequencies import NO_ROTATION

if TYPE_CHECKING:
    from .methods.method import Method

ROUND = 1e-12  # relative: what a power and its inverse leave


def schedule_of(method: Method, spec: RopeSpec) -> Schedule:
    """The schedule of a method for an unscaled checkpoint, whichever of its pairs rotate.

    Raises RecipeError where the method does not fit it.
    """
    if spec.rotating_share == 1:
        return method.schedule(spec)
    power = 1.0 if method.names_base else spec.rotating_share
    form = Plain(spec.rope_theta**power)
    made = method.schedule(replace(spec, form=form, rotary_dim=round(spec.rotary_dim * power), rotating_share=1.0))
    inv_freq = _whole(made.inv_freq, spec)
    return replace(
        made,
        inv_freq=inv_freq,
        short_inv_freq=None if made.short_inv_freq is None else _whole(made.short_inv_freq, spec),
        form=_whole_form(made.form, power, spec) or recognise(inv_freq, spec.rope_theta),
    )


def rotating(spec: RopeSpec) -> int:
    """How many pairs of a model rotate."""
    return round(spec.rotary_dim * spec.rotating_share) // 2


def _whole(inv_freq: Vector, spec: RopeSpec) -> Vector:
    found = np.zeros(spec.rotary_dim // 2)
    found[: rotating(spec)] = inv_freq[: rotating(spec)]
    return found


def _whole_form(form: Form | None, power: float, spec: RopeSpec) -> Form | None:
    """The form over the whole head; None where no form has still pairs beside its formula."""
    if form is None:
        return None
    theta = form.theta ** (1 / power)
    theta = round(theta, 6) if abs(round(theta, 6) - theta) <= ROUND * theta else theta
    if isinstance(form, Plain):
        return Proportional(theta, 1.0, spec.rotating_share)
    if isinstance(form, Interpolated):
        return Proportional(theta, form.factor, spec.rotating_share)
    if isinstance(form, Proportional):
        return Proportional(theta, form.factor, form.partial_rotary_factor * spec.rotating_share)
    if isinstance(form, LongRope):
        still = (NO_ROTATION,) * (spec.rotary_dim // 2 - rotating(spec))
        return replace(
            form, theta=theta, short_factor=(*form.short_factor, *still), long_factor=(*form.long_factor, *still)
        )
    return None
