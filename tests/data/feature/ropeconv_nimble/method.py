"""Frequencies halfway to those of position interpolation."""

from dataclasses import dataclass

from ropeconv.rope.forms import Form, InterpolatedForm
from ropeconv.rope.methods.method import ScaledMethod, register
from ropeconv.rope.spec import RopeSpec


@register
@dataclass(frozen=True)
class Halfway(ScaledMethod):
    """inv_freq_i = theta_i / sqrt(s). Positions are interpolated by the root of the factor."""

    name = "halfway"
    order = 45
    summary = "position interpolation by the root of the factor"
    paper = "an example, 2026"
    finetuning_note = "not tried"

    def form(self, spec: RopeSpec, factor: float) -> Form:
        """Return the form with the root of the factor."""
        return InterpolatedForm(spec.rope_theta, factor**0.5)
