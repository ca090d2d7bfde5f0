"""keep_short: a second list of frequencies, the source's own, for prompts of the length that it was right for."""

from __future__ import annotations

from dataclasses import replace

from .errors import RecipeError
from .forms import LongRope, base_inv_freq
from .schedule import Schedule
from .spec import RopeSpec
from .still_pairs import rotating
from .zero_frequencies import count_zero, divisors


def keep_short(made: Schedule, source: RopeSpec) -> Schedule:
    """A schedule as LongRoPE's pair of lists: the source's own frequencies up to a length, its own beyond.

    With theta_i of the source's base, short_factor_i = theta_i / f_i of the source (1 where it is not scaled) and
    long_factor_i = theta_i / inv_freq_i. The lists change at the context of a scaled source, and at the trained context
    of another: inside it the source is right as it is.

    made: the schedule of the method. source: the RoPE of the checkpoint as it is. Raises RecipeError where the lists
    would need two attention factors or two softmax scales, where one of them is a pair already, and where the context
    does not go beyond that length.
    """
    if made.short_inv_freq is not None:
        raise RecipeError(
            "--keep-short: there are two factor lists already, and no runtime takes a third; leave it out"
        )
    switch = source.context if source.scaled else made.original_context
    if made.context <= switch:
        raise RecipeError(
            f"--keep-short changes lists at {switch:,} tokens, and the context is {made.context:,}; leave it out, or "
            "pass a longer --context"
        )
    own = source.current()
    if own.short_inv_freq is not None and own.short_inv_freq.tolist() != own.inv_freq.tolist():
        raise RecipeError("--keep-short: the source has two factor lists already, and no runtime takes a third")
    if abs(made.attention_factor - own.attention_factor) > 1e-9 * own.attention_factor:
        raise RecipeError(
            f"--keep-short: both lists share one attention factor; the source has {own.attention_factor:.6g} and this "
            f"method {made.attention_factor:.6g}; pass --attention-factor {own.attention_factor:.12g}"
        )
    if abs(made.softmax_scale - own.softmax_scale) > 1e-9 * own.softmax_scale:
        raise RecipeError(
            f"--keep-short: both lists share one softmax scale; the source has {own.softmax_scale:.6g} and this method "
            f"{made.softmax_scale:.6g}; leave it out"
        )
    still = source.rotary_dim // 2 - rotating(source)
    if count_zero(made.inv_freq) > still or count_zero(own.inv_freq) > still:
        raise RecipeError("--keep-short writes factor lists, which cannot hold frequencies that are 0; leave it out")
    base = base_inv_freq(source.rope_theta, source.rotary_dim)
    short, long = (tuple(divisors(base, vector).tolist()) for vector in (own.inv_freq, made.inv_freq))
    form = LongRope(source.rope_theta, short, long, switch)
    return replace(made, form=form, short_inv_freq=own.inv_freq, original_context=switch)
