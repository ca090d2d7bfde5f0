"""The pictures of a model and of schedules for it, each with a sentence on it."""

from __future__ import annotations

from functools import partial

from ..rope.forms import base_inv_freq
from ..rope.spec import RopeSpec
from .page import Picture
from .schedules import Curves, decay, preference, ramp, wavelengths

FARTHEST = 1 << 24
"""The largest distance in tokens that is drawn."""


def lengths_of(spec: RopeSpec, context: int) -> dict[str, int]:
    """The lengths that pictures mark, in tokens by name. spec: of the model. context: of its longest schedule."""
    return {"trained": spec.original_context} | ({"new": context} if context != spec.original_context else {})


def pictures_of(spec: RopeSpec, curves: Curves, context: int) -> list[Picture]:
    """Wavelengths, what frequencies are divided by, B(m), and the bound on scores.

    spec: the RoPE of the model, whose scaling is not looked at. curves: frequencies of schedules by name, radians per
    token, float64 [rotary_dim / 2]; without any, what is divided is left out. context: of the longest, in tokens.
    """
    before, lengths = base_inv_freq(spec.rope_theta, spec.rotary_dim), lengths_of(spec, context)
    reach = min(2 * context, FARTHEST)
    shown = [
        Picture(
            partial(wavelengths, before=before, curves=curves, lengths=lengths),
            "Tokens in which each pair of dimensions turns once.",
        )
    ]
    if curves:
        shown.append(
            Picture(
                partial(ramp, before=before, curves=curves),
                "1 where a frequency stays as it was; the factor where positions are interpolated.",
            )
        )
    return [
        *shown,
        Picture(
            partial(preference, before=before, curves=curves, unrotated=spec.unrotated, length=reach, lengths=lengths),
            "Over the distance in tokens. Where it is below 0, a token like the query counts for less than a random "
            "one (Men et al. 2024).",
        ),
        Picture(
            partial(decay, before=before, curves=curves, length=reach, lengths=lengths),
            "Over the distance in tokens: the most that a score can be (Su et al. 2021).",
        ),
    ]
