"""Methods that change the base: to a given theta, or to one that follows from a length."""

import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from ..bound.answer import is_quick, wide_base
from ..bound.reach import FARTHEST, first_violation
from ..errors import RecipeError, shown
from ..forms import Plain, base_inv_freq, theta_for_length
from ..schedule import Schedule
from ..spec import RopeSpec
from .method import LengthMethod, Method, param, positive, register

MOST_QUICK_COSINES = 1 << 28
"""Distances times dimensions up to which a base is checked by default: a second or two."""


def plain_schedule(spec: RopeSpec, theta: float, context: int) -> Schedule:
    """The schedule of a plain base: theta^(-2i/r), attention factor 1.

    Args:
        spec: The model.
        theta: The base.
        context: Tokens to declare.
    """
    form = Plain(theta)
    return Schedule(
        inv_freq=form.inv_freq(spec.rotary_dim),
        attention_factor=1.0,
        context=context,
        original_context=spec.original_context,
        form=form,
    )


@register
@dataclass(frozen=True)
class Theta(Method):
    """inv_freq_i = B^(-2i/r). The declared context does not change, unless `--context` gives
    another.
    """

    name = "theta"
    order = 10
    summary = "a new base"
    paper = "Su et al. 2021, https://arxiv.org/abs/2104.09864"
    finetuning_note = "needs training at the new length"
    names_base = True

    base: float = param(positive, "the new rope_theta")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.base <= 1:
            raise RecipeError(f"--theta: base must be above 1, and {shown(self.base)} is not")

    def schedule(self, spec: RopeSpec) -> Schedule:
        return plain_schedule(spec, self.base, spec.context)


@register
@dataclass(frozen=True)
class ThetaFor(LengthMethod):
    """theta' = floor(theta^(ln(L'/2pi) / ln(L/2pi))) for a target length L', as in published
    Gradient checkpoints.
    """

    name = "theta-for"
    order = 20
    summary = "a base for a length, by the scaling law"
    paper = "Liu et al. 2024, https://arxiv.org/abs/2310.05209; Gradient 2024"
    finetuning_note = "needs training at the new length (Liu et al. 2024; Gradient 2024)"
    names_base = True
    departures = (
        (
            "The critical dimension of Llama 3 is printed as 72; it is 70 = 2 ceil(34.98): pair 34"
            " has a period of 6,695 tokens, pair 35 one of 8,219, which is above 8,192."
        ),
        (
            "Every base follows from the first model in one step and is rounded down, as the"
            " published checkpoints have it (283,461,213 for 256k tokens, 3,580,165,449 for 1M);"
            " from the base of the 256k model it would be 3,580,165,442 for 1M."
        ),
        (
            "The bases 15.3M and 207.1M that Gradient's model card gives for 64k and 256k tokens"
            " are those of dynamic NTK with factor 4, from stage to stage, and not of this law."
        ),
    )

    def relative(self, declared: int, original: int) -> Method:
        return replace(self, target=max(1, round(self.target * original / declared)))

    def schedule(self, spec: RopeSpec) -> Schedule:
        if spec.original_context <= 2 * math.pi:
            raise RecipeError(
                "--theta-for needs a trained context above 6 tokens; pass --original-context"
            )
        theta = math.floor(theta_for_length(spec.rope_theta, spec.original_context, self.target))
        return plain_schedule(spec, float(theta), self.target)


@register
@dataclass(frozen=True)
class ThetaBound(LengthMethod):
    """A base with sum_i cos(m theta_i) >= 0 for every distance m below the target length.

    The smallest such base opens an interval that may be a millionth wide, which float32 does not
    survive; this is the geometric middle of the first 1 % of the first interval at least that wide,
    checked on the float32 frequencies.
    """

    name = "theta-bound"
    order = 30
    summary = "a base above the bound that keeps near tokens preferred"
    paper = (
        "Men et al. 2024, https://arxiv.org/abs/2405.14591; Su 2024,"
        " https://kexue.fm/archives/10122"
    )
    finetuning_note = "says which base training at the new length needs (Men et al. 2024)"
    departures = (
        (
            "The smallest base is taken over bases above 1; among all positive ones there is none,"
            " since ever smaller ones below 1, with frequencies above 1, keep every sum positive"
            " too."
        ),
        (
            "Men et al. print bases for 2k, 16k, 128k, 256k, 512k and 1M tokens that are 9 % to 680"
            " % above the smallest: 1.6e4 for 2k, where 11,587 will do, and 5.1e8 for 1M, where"
            " 65,374,956 will do. The row of Su 2024 is the smallest base, rounded to two digits,"
            " which may be below it."
        ),
        (
            "1k is 1,024 tokens, as in both published rows: the smallest base for 1,024 tokens is"
            " 4,293.4, for 1,000 it is 4,206.0."
        ),
        (
            "For ever wider heads the smallest base tends to L / x0 = 1.62 L with Ci(x0) = 0, x0 ="
            " 0.6165; it is printed as 2 L."
        ),
    )

    @classmethod
    def for_context(cls, spec: RopeSpec, context: int) -> Method | None:
        """Return this method for a context, if the model needs another base that is found quickly.

        A base b keeps the bound where (d - r)/2 + sum_i cos(m b^(-2i/r)) is not negative at any
        distance m below the context, in a head of d dimensions of which r rotate.

        Args:
            spec: The RoPE of the model, with d (head_dim) and r (rotary_dim).
            context: In tokens.

        Raises:
            RecipeError: The model's own base keeps the bound already, or the search for another
                base takes minutes.
        """
        message_on_minutes = (
            f"finding a base takes minutes at {context} tokens; run it with --theta-bound {context}"
        )

        # 1. The model's own base may keep the bound. The sums at all distances are computed, which
        # takes long for a long context.
        cosines = context * spec.rotary_dim
        if cosines > MOST_QUICK_COSINES:
            raise RecipeError(message_on_minutes)
        inv_freq = base_inv_freq(spec.rope_theta, spec.rotary_dim)
        if first_violation(inv_freq, spec.unrotated, context) is None:
            raise RecipeError(
                f"--theta-bound: theta {spec.rope_theta:.12g} keeps the bound up to {context}"
                " tokens already"
            )

        # 2. another base is needed, and the search for it may take long too
        if not is_quick(context, spec.rotary_dim, spec.head_dim):
            raise RecipeError(message_on_minutes)
        return cls(context)

    @property
    def slow_note(self) -> str:
        if 1 << 20 < self.target <= FARTHEST:
            return "Searching for a base: a minute at 4M tokens, several beyond."
        return ""

    def schedule(self, spec: RopeSpec) -> Schedule:
        """Return the schedule with a base that keeps the bound of Men et al. (2024).

        A head has d dimensions, of which r rotate: r/2 pairs, and pair i turns by the angle
        theta_i = base^(-2i/r) per token. At a distance of m tokens, attention prefers a key that is
        similar to the query over a random one only where

            (d - r)/2 + sum_i cos(m theta_i) >= 0

        The base must keep that for every m below the target length
        (https://arxiv.org/abs/2405.14591).

        Raises:
            RecipeError: Where every base keeps it, and where none was found.
        """
        # The sum of r/2 cosines is at least -r/2. So where `unrotated`, (d - r)/2, is r/2 or more,
        # the bound holds for every base.
        smallest_sum = -spec.rotary_dim / 2
        if spec.unrotated + smallest_sum >= 0:
            width = spec.rotary_dim + 2 * spec.unrotated  # d; for MLA with the content part
            raise RecipeError(
                f"--theta-bound: of {width:g} dimensions {spec.rotary_dim} rotate, so every base"
                " will do; choose one with --theta"
            )

        # the frequencies are computed in float32, whose rounding can break the bound
        theta = _surviving_base(self.target, spec.rotary_dim, spec.head_dim, spec.unrotated)
        if theta is None:
            raise RecipeError(
                f"no base keeps the bound for {self.target} tokens in float32; choose one with"
                " --theta"
            )
        return plain_schedule(spec, theta, self.target)


@cache
def _surviving_base(target: int, rotary_dim: int, head_dim: int, unrotated: float) -> float | None:
    """Return a base that keeps the bound of Men et al. (2024) up to a length, also in float32.

    The bound is (d - r)/2 + sum_i cos(m theta_i) >= 0 at every distance m below the length, for
    heads of d dimensions, of which r rotate, and theta_i = base^(-2i/r). The bases that keep it
    form intervals. One base of each interval is tried, if the interval is at least 1 % wide.

    Args:
        target: The length in tokens.
        rotary_dim: Dimensions of a head that rotate, r.
        head_dim: Dimensions of the head, d.
        unrotated: The constant (d - r)/2 of the sums. Latent attention (MLA) has another constant.

    Returns:
        The base, a whole number; None where none of the first hundred intervals has one.
    """
    for intervals_before in range(100):
        # `wide_base` gives the first 1 % of an interval, from the base `low` to the base `high`
        low, high = wide_base(target, rotary_dim, head_dim, skip=intervals_before)
        if math.isinf(low):  # there is no further interval
            return None
        middle = float(math.floor(math.sqrt(low * high)))  # the middle of ln low and ln high

        # runtimes round the frequencies to float32, and a sum may be negative after that
        in_float32 = base_inv_freq(middle, rotary_dim).astype(np.float32).astype(np.float64)
        if first_violation(in_float32, unrotated, target) is None:
            return middle
    return None
