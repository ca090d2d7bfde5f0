"""Position interpolation and the NTK family, which interpolates fast pairs less than slow ones."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..errors import RecipeError
from ..forms import (
    Form,
    InterpolatedForm,
    Llama3,
    Plain,
    Yarn,
    base_inv_freq,
    mscale_ratio,
    ntk_theta,
    temperature_attention_factor,
)
from ..schedule import Schedule
from ..spec import RopeSpec
from .method import Method, ScaledMethod, number, param, positive, register, share, switch


@register
@dataclass(frozen=True)
class Linear(ScaledMethod):
    """inv_freq_i = theta_i / s: positions are interpolated, by the same factor in every pair."""

    name = "linear"
    order = 40
    summary = "position interpolation"
    paper = "Chen et al. 2023, https://arxiv.org/abs/2306.15595"
    finetuning_note = "needs fine-tuning, about 1,000 steps (Chen et al. 2023)"

    def form(self, spec: RopeSpec, factor: float) -> Form:
        return InterpolatedForm(spec.rope_theta, factor)

    def widen(self, form: Form, factor: float, explicit: Sequence[str] = ()) -> Method | None:
        if not isinstance(form, InterpolatedForm):
            return None
        return replace(self, factor=form.factor * factor)


@register
@dataclass(frozen=True)
class Ntk(ScaledMethod):
    """inv_freq_i = (theta s^(r/(r-2)))^(-2i/r): another base, with which the slowest pair is
    divided by exactly s.
    """

    name = "ntk"
    order = 50
    summary = "NTK-aware scaling, through the base"
    paper = "bloc97 2023, https://www.reddit.com/r/LocalLLaMA/comments/14lz7j5"
    max_untuned_factor = 4.0
    finetuning_note = (
        "made for use without fine-tuning; perplexity rises before the factor is reached (bloc97"
        " 2023)"
    )

    def form(self, spec: RopeSpec, factor: float) -> Form:
        return Plain(ntk_theta(spec.rope_theta, factor, spec.rotary_dim))


@register
@dataclass(frozen=True)
class NtkOld(ScaledMethod):
    """inv_freq_i = (theta s)^(-2i/r): the base times s, so that the slowest pair is divided by s^(1
    - 2/r).
    """

    name = "ntk-old"
    order = 60
    summary = "NTK-RoPE-old: the base times s"
    paper = "Su 2023, https://kexue.fm/archives/9675"
    max_untuned_factor = 4.0
    finetuning_note = "made for use without fine-tuning (Su 2023)"
    departures = (
        (
            "A ratio s^(2/r) from pair to pair gives the base theta s, and not the NTK-aware base"
            " theta s^(r/(r-2)), which at r = 128 is 1.1 % larger for s = 2 and 5.7 % larger for s"
            " = 32."
        ),
    )

    def form(self, spec: RopeSpec, factor: float) -> Form:
        return Plain(spec.rope_theta * factor)


@register
@dataclass(frozen=True)
class NtkFixed(ScaledMethod):
    """inv_freq_i = (theta s)^(-2i/r) / s^(2/r): NTK-old with every frequency divided by s^(2/r),
    the fastest too.
    """

    name = "ntk-fixed"
    order = 70
    summary = "NTK-RoPE-fixed: base times s, positions divided by s^(2/r)"
    paper = "Su 2023, https://kexue.fm/archives/9706"
    max_untuned_factor = 4.0
    finetuning_note = "made for use without fine-tuning (Su 2023); above 4 times, YaRN loses less"

    def form(self, spec: RopeSpec, factor: float) -> Form:
        return InterpolatedForm(spec.rope_theta * factor, factor ** (2 / spec.rotary_dim))


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
    max_untuned_factor = 4.0
    finetuning_note = (
        "the best NTK form without fine-tuning (Su 2023); above 4 times, YaRN loses less"
    )
    departures = (
        (
            "With exponent 0 the first ratio of neighbouring pairs is s and all others are 1, so"
            " that every pair is divided by s; the text says that all of them are 1."
        ),
        (
            "Exponents go from 0 to 1; below 0, which the text allows, the first pair is divided by"
            " more than s and slower ones by less than their neighbour."
        ),
        "The default exponent is that of the text, 0.625; the code published with it has 0.75.",
    )
    mixed_exponent: float = param(
        share, "exponent e of the mixture, 0 (linear) to 1 (NTK-fixed)", 0.625
    )

    def schedule(self, spec: RopeSpec) -> Schedule:
        """Return the frequencies theta_i / exp(a (i + 1)^e), with a = ln s / (r/2)^e.

        i is the number of a pair, from 0; theta_i its frequency in the model; r the dimensions that
        rotate; s the factor; and e the exponent (`mixed_exponent`), from 0 to 1.
        """
        # Position interpolation (e = 0) and NTK with a fixed base (e = 1) are methods of their own.
        # Configs can name them, so their schedules are used.
        if self.mixed_exponent == 0:
            return Linear(self.factor).schedule(spec)
        if self.mixed_exponent == 1:
            return NtkFixed(self.factor).schedule(spec)

        exponent = self.mixed_exponent  # e
        factor = self.factor_over(spec.original_context)  # s
        slope = math.log(factor) / (spec.rotary_dim / 2) ** exponent  # a
        number = np.arange(1, spec.rotary_dim // 2 + 1, dtype=np.float64)  # i + 1
        model_inv_freq = base_inv_freq(spec.rope_theta, spec.rotary_dim)  # theta_i
        return Schedule(
            inv_freq=model_inv_freq / np.exp(slope * number**exponent),
            attention_factor=1.0,
            context=round(spec.original_context * factor),
            original_context=spec.original_context,
        )


@register
@dataclass(frozen=True)
class YarnMethod(ScaledMethod):
    """NTK-by-parts with a ramp over pair indices, and the attention factor sqrt(1/t) = 0.1 ln s +
    1.

    dim(beta) = r ln(L / (2 pi beta)) / (2 ln theta) is the pair that rotates beta times within the
    trained context L. Pairs below dim(beta_fast) keep their frequency, those above dim(beta_slow)
    are divided by s, with a linear ramp between: inv_freq_i = theta_i (1 - ramp_i) + theta_i / s *
    ramp_i.

    With `mscale` and `mscale_all_dim` (DeepSeek) the attention factor is
    (0.1 mscale ln s + 1) / (0.1 mscale_all_dim ln s + 1), and the softmax scale (0.1 mscale_all_dim
    ln s + 1)^2.
    """

    name = "yarn"
    order = 100
    summary = "YaRN as every runtime computes it (ramp over dimensions)"
    paper = "Peng et al. 2023, https://arxiv.org/abs/2309.00071"
    max_untuned_factor = 4.0
    finetuning_note = (
        "made for 400 steps of fine-tuning (Peng et al. 2023); Qwen 2.5 and 3 are run at 4 times"
        " without any"
    )
    departures = (
        (
            "The paper's ramp is linear in L / wavelength, the ramp of its code is linear in the"
            " pair index, and every runtime computes the code's. With theta 10000, L = 4096 and r ="
            " 128 the frequencies of the code are higher by up to 31 % at s = 2, 73 % at 4, 130 %"
            " at 8, 204 % at 16 and 296 % at 32, and at pair 21 lower by up to 3 %; `--by-parts` is"
            " the paper's."
        ),
        (
            "The code rounds the ends of the ramp outward, here from 20.94 and 45.03 to 20 and 46,"
            " which raises the frequency of pair 45 by 26 % at s = 8 and 112 % at s = 32;"
            " `--no-truncate` leaves them."
        ),
        "The code clamps the upper end at r - 1, though the last pair is r/2 - 1; so do runtimes.",
        (
            "Where every pair rotates more than beta_fast times, the ends cross in the code, which"
            " then divides every frequency by s; here none changes, as in the paper and in"
            " llama.cpp. Gemma 4 26B is such a model."
        ),
        (
            "sqrt(1/t) multiplies cos and sin, so that logits are multiplied by 1/t; for s <= 1 it"
            " is 1."
        ),
    )
    ordered = ("beta_fast", "beta_slow")
    inherited = ("beta_fast", "beta_slow", "truncate")

    beta_fast: float = param(
        positive, "rotations in the trained context above which a pair is unchanged", 32.0
    )
    beta_slow: float = param(positive, "rotations below which a pair is divided by s", 1.0)
    truncate: bool = param(switch, "round the ramp's ends to whole pairs", True)
    mscale: float | None = param(number, "DeepSeek's numerator of the attention factor", None)
    mscale_all_dim: float | None = param(
        number, "DeepSeek's denominator of the attention factor", None
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.mscale is None) != (self.mscale_all_dim is None):
            raise RecipeError("--yarn: mscale and mscale_all_dim go together; pass both or neither")

    def form(self, spec: RopeSpec, factor: float) -> Form:
        """The formula of the frequencies: YaRN's, or one without a ramp where its ends cross.

        In Gemma 4 26B each pair that rotates does so more than `beta_fast` times in the trained
        262,144 tokens, so that no frequency changes.
        """
        form = Yarn(
            theta=spec.rope_theta,
            factor=factor,
            original_context=spec.original_context,
            beta_fast=self.beta_fast,
            beta_slow=self.beta_slow,
            truncate=self.truncate,
        )
        return form.order_ends(spec.rotary_dim)

    def schedule(self, spec: RopeSpec) -> Schedule:
        """Return YaRN's frequencies, with the attention factor 0.1 ln s + 1 for the factor s.

        DeepSeek V2 and V3 have two more numbers, m (`mscale`) and m_all (`mscale_all_dim`). With
        them the attention factor is (0.1 m ln s + 1) / (0.1 m_all ln s + 1). Classes with latent
        attention (MLA) also multiply the softmax scale by (0.1 m_all ln s + 1)^2.
        """
        factor = self.factor_over(spec.original_context)  # s
        attention_factor = temperature_attention_factor(factor)  # 0.1 ln s + 1
        softmax_scale = 1.0

        # DeepSeek: m and m_all
        if self.mscale and self.mscale_all_dim:
            # (0.1 m ln s + 1) / (0.1 m_all ln s + 1)
            attention_factor = mscale_ratio(factor, self.mscale, self.mscale_all_dim)
            if spec.mla:
                slope = 0.1 * self.mscale_all_dim
                softmax_scale = temperature_attention_factor(factor, slope) ** 2

        # the frequencies are those of the parent class, NTK-by-parts
        by_parts = super().schedule(spec)
        return replace(by_parts, attention_factor=attention_factor, softmax_scale=softmax_scale)

    def widen(self, form: Form, factor: float, explicit: Sequence[str] = ()) -> Method | None:
        if not isinstance(form, Yarn):
            return None
        return replace(self.inherit(form, explicit), factor=form.factor * factor)


@register
@dataclass(frozen=True)
class ByParts(ScaledMethod):
    """NTK-by-parts as published: a ramp over L / wavelength, from `alpha` to `beta` rotations,
    attention factor 1.

    The same function as Llama 3's with other numbers (`forms.Llama3`), and a different one from
    `--yarn`'s: in the middle of the ramp the two differ by up to a factor of 4 at s = 32.
    """

    name = "by-parts"
    order = 90
    summary = "NTK-by-parts as published (ramp over wavelengths)"
    paper = "Peng et al. 2023, section 3.2, https://arxiv.org/abs/2309.00071"
    max_untuned_factor = 4.0
    finetuning_note = "better than NTK-aware with and without fine-tuning (Peng et al. 2023)"
    departures = (
        (
            "As published this is the function that Llama 3.1 has, with low_freq_factor = alpha and"
            " high_freq_factor = beta, and not the one of YaRN's code."
        ),
        (
            "The paper's r is L / wavelength, with the wavelengths 2 pi / theta_i of the unscaled"
            " base."
        ),
    )
    ordered = ("beta", "alpha")

    alpha: float = param(
        positive, "rotations in the trained context below which a pair is divided by s", 1.0
    )
    beta: float = param(positive, "rotations above which a pair is unchanged", 32.0)

    def form(self, spec: RopeSpec, factor: float) -> Form:
        return Llama3(
            theta=spec.rope_theta,
            factor=factor,
            original_context=spec.original_context,
            low_freq_factor=self.alpha,
            high_freq_factor=self.beta,
        )

    def widen(self, form: Form, factor: float, explicit: Sequence[str] = ()) -> Method | None:
        if not isinstance(form, Llama3):
            return None
        if (form.low_freq_factor, form.high_freq_factor) != (self.alpha, self.beta):
            return None
        return replace(self, factor=form.factor * factor)


@register
@dataclass(frozen=True)
class Llama3Method(ScaledMethod):
    """Llama 3.1's scaling (`forms.Llama3`): low_freq_factor 1 and high_freq_factor 4 unless
    given.
    """

    name = "llama3"
    order = 110
    summary = "Llama 3.1 scaling"
    paper = "Meta 2024, https://github.com/meta-llama/llama-models/blob/main/models/llama3/model.py"
    finetuning_note = "part of Llama 3.1's training at the new length (Meta 2024)"
    ordered = ("high_freq_factor", "low_freq_factor")
    inherited = ("low_freq_factor", "high_freq_factor")

    low_freq_factor: float = param(
        positive, "rotations in the trained context below which a pair is divided by s", 1.0
    )
    high_freq_factor: float = param(positive, "rotations above which a pair is unchanged", 4.0)

    def form(self, spec: RopeSpec, factor: float) -> Form:
        return Llama3(
            theta=spec.rope_theta,
            factor=factor,
            original_context=spec.original_context,
            low_freq_factor=self.low_freq_factor,
            high_freq_factor=self.high_freq_factor,
        )

    def widen(self, form: Form, factor: float, explicit: Sequence[str] = ()) -> Method | None:
        if not isinstance(form, Llama3):
            return None
        return replace(self.inherit(form, explicit), factor=form.factor * factor)
