"""Position interpolation and the NTK family, which interpolates fast pairs less than slow ones."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..forms import Form, Interpolated, Plain, base_inv_freq
from ..laws import ntk_theta
from ..lazy import np
from ..schedule import Schedule
from ..spec import RopeSpec
from .method import Method, param, register, share
from .scaled import ScaledMethod


@register
@dataclass(frozen=True)
class Linear(ScaledMethod):
    """inv_freq_i = theta_i / s: positions are interpolated, by the same factor in every pair."""

    name = "linear"
    order = 40
    summary = "position interpolation"
    paper = "Chen et al. 2023, https://arxiv.org/abs/2306.15595"
    finetuning_note = "needs fine-tuning, about 1,000 steps (Chen et al. 2023)"

    def schedule(self, spec: RopeSpec) -> Schedule:
        factor = self.scale(spec)
        return self.extended(spec, Interpolated(spec.rope_theta, factor), factor)

    def widened(self, form: Form, factor: float) -> Method | None:
        """Position interpolation by the product of both factors. form, factor: as in `Method.widened`."""
        return self.with_factor(form.factor * factor) if isinstance(form, Interpolated) else None


@register
@dataclass(frozen=True)
class Ntk(ScaledMethod):
    """inv_freq_i = (theta s^(r/(r-2)))^(-2i/r): another base, with which the slowest pair is divided by exactly s."""

    name = "ntk"
    order = 50
    summary = "NTK-aware scaling, through the base"
    paper = "bloc97 2023, https://www.reddit.com/r/LocalLLaMA/comments/14lz7j5"
    max_untuned_factor = 4.0
    finetuning_note = "made for use without fine-tuning; perplexity rises before the factor is reached (bloc97 2023)"

    def schedule(self, spec: RopeSpec) -> Schedule:
        factor = self.scale(spec)
        return self.extended(spec, Plain(ntk_theta(spec.rope_theta, factor, spec.rotary_dim)), factor)


@register
@dataclass(frozen=True)
class NtkOld(ScaledMethod):
    """inv_freq_i = (theta s)^(-2i/r): the base times s, so that the slowest pair is divided by s^(1 - 2/r)."""

    name = "ntk-old"
    order = 60
    summary = "NTK-RoPE-old: the base times s"
    paper = "Su 2023, https://kexue.fm/archives/9675"
    max_untuned_factor = 4.0
    finetuning_note = "made for use without fine-tuning (Su 2023)"
    departures = (
        "A ratio s^(2/r) from pair to pair gives the base theta s, and not the NTK-aware base theta s^(r/(r-2)), "
        "which at r = 128 is 1.1 % larger for s = 2 and 5.7 % larger for s = 32.",
    )

    def schedule(self, spec: RopeSpec) -> Schedule:
        factor = self.scale(spec)
        return self.extended(spec, Plain(spec.rope_theta * factor), factor)


@register
@dataclass(frozen=True)
class NtkFixed(ScaledMethod):
    """inv_freq_i = (theta s)^(-2i/r) / s^(2/r): NTK-old with every frequency divided by s^(2/r), the fastest too."""

    name = "ntk-fixed"
    order = 70
    summary = "NTK-RoPE-fixed: base times s, positions divided by s^(2/r)"
    paper = "Su 2023, https://kexue.fm/archives/9706"
    max_untuned_factor = 8.0
    finetuning_note = "tried without fine-tuning at 8 times the trained length (Su 2023)"

    def schedule(self, spec: RopeSpec) -> Schedule:
        factor = self.scale(spec)
        form = Interpolated(spec.rope_theta * factor, factor ** (2 / spec.rotary_dim))
        return self.extended(spec, form, factor)


@register
@dataclass(frozen=True)
class NtkMixed(ScaledMethod):
    """inv_freq_i = theta_i / exp(a (i+1)^e) with a = ln s / (r/2)^e: a mixture of bases.

    e = 0 is position interpolation, e = 1 is NTK-fixed; the last pair is divided by exactly s.
    """

    name = "mixed"
    order = 80
    summary = "NTK-RoPE-mixed: a mixture of bases"
    paper = "Su 2023, https://kexue.fm/archives/9706"
    max_untuned_factor = 8.0
    finetuning_note = (
        "tried without fine-tuning at 8 times the trained length, above the other NTK forms there (Su 2023)"
    )
    departures = (
        "With exponent 0 the first ratio of neighbouring pairs is s and all others are 1, so that every pair is "
        "divided by s; the text says that all of them are 1.",
        "Exponents go from 0 to 1; below 0, which the text allows, the first pair is divided by more than s and "
        "slower ones by less than their neighbour.",
        "The default exponent is that of the text, 0.625; the code published with it has 0.75.",
    )
    mixed_exponent: float = param(share, "exponent e of the mixture, 0 (linear) to 1 (NTK-fixed)", 0.625)

    def schedule(self, spec: RopeSpec) -> Schedule:
        if self.mixed_exponent == 0:
            return Linear(self.factor).schedule(spec)
        if self.mixed_exponent == 1:
            return NtkFixed(self.factor).schedule(spec)
        pair = np.arange(1, spec.rotary_dim // 2 + 1, dtype=np.float64)
        factor = self.scale(spec)
        slope = math.log(factor) / (spec.rotary_dim / 2) ** self.mixed_exponent
        return Schedule(
            inv_freq=base_inv_freq(spec.rope_theta, spec.rotary_dim) / np.exp(slope * pair**self.mixed_exponent),
            attention_factor=1.0,
            context=round(spec.original_context * factor),
            original_context=spec.original_context,
        )
