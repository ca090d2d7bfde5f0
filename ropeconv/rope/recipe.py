"""Recipe: a method with its parameters and modifiers, which can be saved and applied again.

Read `Recipe.schedule` first: it gives the frequencies of a recipe for one model.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from .bound.reach import first_violation
from .errors import RecipeError, RopeconvError, shown
from .forms import (
    DynamicNtk,
    InterpolatedForm,
    Llama3,
    LongRope,
    Vector,
    Yarn,
    base_inv_freq,
    count_zero,
    divisors,
    simplify_crossed,
    temperature_attention_factor,
)
from .lengths import format_factor, format_tokens, parse_tokens
from .methods.bases import ThetaBound
from .methods.method import (
    REGISTRY,
    Check,
    Method,
    Value,
    check_of,
    positive,
    schedule_of,
    switch,
    tokens,
)
from .methods.vectors import AsIs
from .schedule import LogN, Schedule
from .spec import RopeSpec

Scaled = InterpolatedForm | Llama3 | Yarn
"""Forms that a method can widen."""


def on_top(
    method: Method, spec: RopeSpec, context: int | None = None, explicit: Sequence[str] = ()
) -> Schedule:
    """The schedule of a method on top of the scaling of a model, which `--on-top` keeps.

    The model was trained over L0 tokens, and its scaling has extended it to L1. The method extends
    that, as if L1 were the trained length, to L1 s with s its factor. In symbols: theta is
    the base of the model and theta_i = theta^(-2i/r); f_i and A are its frequencies and attention
    factor with the scaling; m_i and A_m are those that the method gives for the unscaled model over
    L0. The new frequencies f_i' and attention factor A' are

    - for the method that the model is scaled by already (yarn, llama3, linear; by-parts with the
      same ramp): its formula over L0 with the product of both factors. With f the old factor and
      law the attention factor that the method gives for a factor, A' = A law(f s) / law(f);
    - for a method that is another base (theta, theta-for, theta-bound, ntk, ntk-old): the formula
      of the scaling with the new base, and A' = A;
    - for all others: f_i' = f_i m_i / theta_i, in both lists where there are two, and A' = A A_m.

    The softmax scale of latent attention (MLA) grows by its own law in the same way, and with
    (A' / A)^2 where the attention factor multiplies every logit.

    Args:
        method: The method with its parameters.
        spec: The RoPE of the scaled model.
        context: Tokens to declare, None for those of the method.
        explicit: Names of settings that the user gave, which are not taken from the scaling.

    Raises:
        RecipeError: For a model without scaling or with dynamic scaling, and for a length within
            L1.
    """
    declared = spec.context
    original = spec.original_context
    form = simplify_crossed(spec.form, spec.rotary_dim)
    spec = replace(spec, form=form)
    if not spec.scaled:
        raise RecipeError(
            "--on-top keeps the scaling of a model, and this one has none; leave it out"
        )
    if isinstance(form, DynamicNtk):
        raise RecipeError(
            "--on-top cannot keep dynamic scaling, which changes with the sequence; freeze it"
            f" first with --dynamic ntk:{form.factor:.12g} --at TOKENS --replace"
        )

    # The method is computed for the model before its scaling, over L0. Lengths shrink with it: 256k
    # over a declared 128k is 16k over a trained 8k.
    start_context = max(1, round((context or declared) * original / declared))
    unscaled = replace(spec.unscaled(), context=start_context)
    relative = method.relative(declared, original)
    factor = relative.factor_over(original)

    # the same method again, else a product of both
    schedule = _multiply_factors(relative, factor, unscaled, spec, explicit)
    if schedule is None:
        schedule = _multiply_frequencies(schedule_of(relative, unscaled), unscaled, spec)

    # back to the lengths of the scaled model
    if factor is not None:
        reached = round(declared * factor)
    else:
        reached = round(schedule.context * declared / original)
    schedule = replace(schedule, context=context or method.length or reached)

    # a base that keeps the bound in the unscaled model may not keep it with the scaling
    if isinstance(method, ThetaBound):
        first = first_violation(schedule.inv_freq, spec.unrotated, method.target)
        if first is not None:
            raise RecipeError(
                f"--theta-bound {format_tokens(method.target)}: with the scaling that --on-top"
                f" keeps, the sum is negative at distance {first:,}; pass --replace instead, or"
                " choose a base with --theta"
            )
    return schedule


def total_factor(method: Method, spec: RopeSpec) -> tuple[float, float] | None:
    """Return the factor of a model's scaling, and the factor of a method that extends it further.

    A model that YaRN has extended by 4, extended by YaRN with factor 2 (`--on-top`), gives (4, 2).
    The result is YaRN with the product, factor 8.

    Args:
        method: The method that extends the scaled model.
        spec: The RoPE of the scaled model.

    Returns:
        Both factors; None where the scaling is of another method, which has no product of factors.
    """
    # A method may have a length in place of a factor. `relative` gives it for the model before its
    # scaling: 256k for a scaled model of 128k is a factor of 2, so 16k for the unscaled 8k.
    relative_method = method.relative(spec.context, spec.original_context)
    factor = relative_method.factor_over(spec.original_context)
    scaling = simplify_crossed(spec.form, spec.rotary_dim)
    if factor is None or not isinstance(scaling, Scaled):
        return None

    # `widen` multiplies the factor of a scaling, and gives None for a scaling of another method
    is_same_method = relative_method.widen(scaling, factor) is not None
    if not is_same_method:
        return None
    return scaling.factor, factor


def _multiply_factors(
    method: Method,
    factor: float | None,
    unscaled: RopeSpec,
    spec: RopeSpec,
    explicit: Sequence[str],
) -> Schedule | None:
    """Return the schedule of a method on a model that the same method has scaled before.

    YaRN by 2 on a model that YaRN has scaled by 4 is YaRN by 8.

    Args:
        method: The method.
        factor: Its factor, 2 in the example; None for a method without one.
        unscaled: The RoPE of the model before its scaling.
        spec: The RoPE of the scaled model.
        explicit: Names of settings that the user gave. All others are taken from the scaling.

    Returns:
        The schedule; None where another method has scaled the model.
    """
    if factor is None:
        return None
    # `widen` gives the method with the factor of the scaling times a number, here 4 and 4 * 2, and
    # with the other settings of the scaling; None for a scaling by another method
    method_by_scaling_factor = method.widen(spec.form, factor=1.0, explicit=explicit)
    method_by_product = method.widen(spec.form, factor=factor, explicit=explicit)
    if method_by_scaling_factor is None or method_by_product is None:
        return None

    # The model may have another attention factor than the method gives for 4. So its attention
    # factor grows by the ratio of the method's attention factors for 8 and for 4. So does the
    # softmax scale.
    schedule_by_scaling_factor = schedule_of(method_by_scaling_factor, unscaled)
    schedule_by_product = schedule_of(method_by_product, unscaled)
    attention_growth = (
        schedule_by_product.attention_factor / schedule_by_scaling_factor.attention_factor
    )
    softmax_growth = schedule_by_product.softmax_scale / schedule_by_scaling_factor.softmax_scale
    # for MLA, llama.cpp multiplies whole logits by the square of the attention factor
    if spec.softmax_follows:
        softmax_growth *= attention_growth**2

    return replace(
        schedule_by_product,
        attention_factor=spec.attention_factor * attention_growth,
        softmax_scale=spec.softmax_scale * softmax_growth,
    )


def _multiply_frequencies(method: Schedule, unscaled: RopeSpec, spec: RopeSpec) -> Schedule:
    """Return the schedule of a method on a model that another method has scaled, as NTK on YaRN.

    Let theta_i be the frequency of pair i in the unscaled model, f_i its frequency with the
    scaling, and m_i its frequency with the method. The result is f_i m_i / theta_i: the method
    changes the frequencies of the scaled model in the same ratio as those of the unscaled model.

    Args:
        method: The schedule of the method for the unscaled model.
        unscaled: The RoPE of the model before its scaling.
        spec: The RoPE of the scaled model.

    Returns:
        The schedule. It has a formula (`form`) in three cases, and otherwise only frequencies.
    """
    scaling = spec.current()
    softmax_scale = scaling.softmax_scale * method.softmax_scale
    # for MLA, llama.cpp multiplies whole logits by the square of the attention factor
    if spec.softmax_follows:
        softmax_scale *= method.attention_factor**2

    base = unscaled.form.inv_freq(spec.rotary_dim)  # theta_i
    product = Schedule(
        inv_freq=scaling.inv_freq * _ratio(method.inv_freq, base),
        attention_factor=scaling.attention_factor * method.attention_factor,
        context=method.context,
        original_context=spec.original_context,
        softmax_scale=softmax_scale,
    )

    # 1. The scaling or the method is LongRoPE, with a list of frequencies for short prompts and one
    # for long prompts. The result has two lists too.
    scaling_has_two_lists = scaling.short_inv_freq is not None
    method_has_two_lists = method.short_inv_freq is not None
    if scaling_has_two_lists or method_has_two_lists:
        # the longest prompt with the short list: as in the scaling; or, if only the method has two
        # lists, the context of the scaled model
        longest_short_prompt = spec.original_context if scaling_has_two_lists else spec.context
        short = _short_or_only(scaling) * _ratio(_short_or_only(method), base)
        form = _factor_lists(spec, short, product.inv_freq, longest_short_prompt)
        return replace(
            product, form=form, short_inv_freq=short, original_context=longest_short_prompt
        )

    # 2. the scaling is only an attention factor: the result has the formula of the method
    scaling_keeps_frequencies = spec.form == unscaled.form
    if scaling_keeps_frequencies:
        return replace(product, form=method.form)

    # 3. the method is only another base (--theta 1e6): the formula of the scaling, with this base
    if method.form is not None and method.form == spec.base_form(method.form.theta):
        with_new_base = replace(spec.form, theta=method.form.theta)
        inv_freq = with_new_base.inv_freq(spec.rotary_dim)
        return replace(product, form=with_new_base, inv_freq=inv_freq)
    return product


def _factor_lists(spec: RopeSpec, short: Vector, long: Vector, original_context: int) -> LongRope:
    """Two vectors of frequencies as LongRoPE's two lists of divisors of the base."""
    base = base_inv_freq(spec.rope_theta, spec.rotary_dim)
    short_factor = tuple(divisors(base, short).tolist())
    long_factor = tuple(divisors(base, long).tolist())
    return LongRope(
        theta=spec.rope_theta,
        short_factor=short_factor,
        long_factor=long_factor,
        original_context=original_context,
    )


def _short_or_only(schedule: Schedule) -> Vector:
    """The frequencies up to the trained context, of LongRoPE's two lists the short one."""
    if schedule.short_inv_freq is None:
        return schedule.inv_freq
    return schedule.short_inv_freq


def _ratio(inv_freq: Vector, base: Vector) -> Vector:
    """inv_freq_i / base_i, and 0 for pairs that stand still in the unscaled model."""
    return np.divide(inv_freq, base, out=np.zeros(len(base)), where=base > 0)


SAME_FACTOR = 1e-9
"""By how much two factors may differ, relatively, and count as one."""


def keep_short(schedule: Schedule, source: RopeSpec) -> Schedule:
    """The schedule as LongRoPE's two factor lists, so that short prompts keep the source's RoPE.

    A runtime divides the frequencies of the base, theta_i = theta^(-2i/r), by the short list up to
    some length, and by the long list beyond. With f_i the frequencies of the source,

        short_factor_i = theta_i / f_i        (1 where the source is not scaled)
        long_factor_i = theta_i / inv_freq_i

    The lists change at the length up to which the source computes well: its declared context if it
    is scaled, else its trained context.

    Args:
        schedule: The frequencies of the method, inv_freq_i.
        source: The present RoPE of the checkpoint.

    Raises:
        RecipeError: Where the lists would need two attention factors or two softmax scales, where
            the source or the method has two lists already, and where the context of the method does
            not go beyond that length.
    """
    # the length in tokens beyond which the long list is used
    longest_short_prompt = source.context if source.scaled else schedule.original_context
    _refuse_to_keep_short(schedule, source, longest_short_prompt)
    short = source.current().inv_freq
    form = _factor_lists(source, short, schedule.inv_freq, longest_short_prompt)
    return replace(schedule, form=form, short_inv_freq=short, original_context=longest_short_prompt)


def _refuse_to_keep_short(schedule: Schedule, source: RopeSpec, switch: int) -> None:
    """Raise RecipeError where LongRoPE's two factor lists cannot hold a method and its source.

    The long list has the frequencies of the method, and the short list the present ones of the
    checkpoint. Everything else is shared: the attention factor, and the scale of logits.

    Args:
        schedule: The RoPE of the method, for the long list.
        source: The present RoPE of the checkpoint, for the short list.
        switch: The length in tokens beyond which the long list is used.
    """
    if schedule.short_inv_freq is not None:
        raise RecipeError(
            "--keep-short: there are two factor lists already, and no runtime takes a third; leave"
            " it out"
        )

    if schedule.context <= switch:
        raise RecipeError(
            f"--keep-short changes lists at {switch:,} tokens, and the context is"
            f" {schedule.context:,}; leave it out, or pass a longer --context"
        )

    # the source may have two lists only if they are equal, which is one RoPE for all prompts
    current = source.current()
    short = current.short_inv_freq
    has_two_different_lists = short is not None and not np.array_equal(short, current.inv_freq)
    if has_two_different_lists:
        raise RecipeError(
            "--keep-short: the source has two factor lists already, and no runtime takes a third"
        )

    _refuse_two_scales(schedule, current)

    # A frequency of 0 has no finite divisor. Only the pairs that never rotate in this architecture
    # (p-RoPE) may have it: their divisor is 1e30.
    never_rotating = source.rotary_dim // 2 - source.rotating_pairs
    zeros = max(count_zero(schedule.inv_freq), count_zero(current.inv_freq))
    if zeros > never_rotating:
        raise RecipeError(
            "--keep-short writes factor lists, which cannot hold frequencies that are 0; leave it"
            " out"
        )


def _refuse_two_scales(schedule: Schedule, current: Schedule) -> None:
    """Raise RecipeError where a method has another attention factor or softmax scale than now.

    LongRoPE has two lists of frequencies, but one of each of these scales for both.

    Args:
        schedule: The RoPE of the method.
        current: The present RoPE of the checkpoint.
    """
    attention_distance = abs(schedule.attention_factor - current.attention_factor)
    if attention_distance > SAME_FACTOR * current.attention_factor:
        raise RecipeError(
            "--keep-short: both lists share one attention factor; the source has"
            f" {current.attention_factor:.6g} and this method {schedule.attention_factor:.6g}; pass"
            f" --attention-factor {current.attention_factor:.12g}"
        )
    softmax_distance = abs(schedule.softmax_scale - current.softmax_scale)
    if softmax_distance > SAME_FACTOR * current.softmax_scale:
        raise RecipeError(
            "--keep-short: both lists share one softmax scale; the source has"
            f" {current.softmax_scale:.6g} and this method {schedule.softmax_scale:.6g}; leave it"
            " out"
        )


SWITCHES = ("on_top", "keep_short")
CHECKS: dict[str, Check] = {
    **dict.fromkeys(("context", "original_context", "log_n_length"), tokens),
    **dict.fromkeys(("attention_factor", "temperature_slope", "temperature_intercept"), positive),
    "log_n": check_of(lambda value: value in ("clamped", "full"), "must be clamped or full"),
    **dict.fromkeys(SWITCHES, switch),
}


@dataclass(frozen=True)
class Recipe:
    """A method and its modifiers. A modifier that is None leaves what the method or the model has.

    Raises:
        RecipeError: When a value cannot be taken or two of them contradict each other.
    """

    method: Method
    """With its parameters."""

    context: int | None = None
    """Tokens that the output declares."""

    original_context: int | None = None
    """Tokens that the model was trained for, where its config declares another number."""

    attention_factor: float | None = None
    """Factor on cos and sin."""

    temperature_slope: float | None = None
    """a of the attention factor a ln s + b; 0.1 where only b is given."""

    temperature_intercept: float | None = None
    """b of the attention factor a ln s + b; 1 where only a is given."""

    log_n: Literal["clamped", "full"] | None = None
    """Query scaling by position (Su 2021), "clamped" at 1 or "full"."""

    log_n_length: int | None = None
    """Length in tokens at which that factor is 1, by default the trained one."""

    on_top: bool = False
    """Multiply the scaling that the model has further, in place of starting from unscaled RoPE."""

    keep_short: bool = False
    """Two lists of frequencies, the source's own for the length that it is right for."""

    explicit: tuple[str, ...] = ()
    """Settings of the method that were given and are its defaults, by name.

    Settings at their defaults are otherwise those of the model's scaling, where it has one of the
    same kind: `--yarn 2 --on-top` keeps the betas of Kimi K2, and with `--beta-fast 32` it does
    not.
    """

    def __post_init__(self) -> None:
        self._check_values()
        self._check_together()

    def _check_values(self) -> None:
        """Raise RecipeError for a field with a value that it cannot have.

        A recipe may come from a file of anybody, so types are checked too.
        """
        if not isinstance(self.method, Method):
            raise RecipeError(
                'a Recipe needs a method, such as METHODS["yarn"](4.0), and got'
                f" {shown(self.method)}"
            )

        # a modifier that was not given is None, but a switch is True or False and never None
        for name, check in CHECKS.items():
            value = getattr(self, name)
            if value is None and name not in SWITCHES:
                continue
            problem = check(value)  # such as "must be a token count"; empty for a right value
            if problem:
                flag = name.replace("_", "-")
                raise RecipeError(f"--{flag} {problem}, and {shown(value)} is not")

        inherited = self.method.inherited
        if not isinstance(self.explicit, tuple) or not set(self.explicit) <= set(inherited):
            known = ", ".join(inherited) or "none"
            raise RecipeError(
                f"explicit names settings of {self.method.flag()} that it can inherit ({known}),"
                f" and {shown(self.explicit)} is something else"
            )

    def _check_together(self) -> None:
        """Raise RecipeError for fields that contradict each other."""
        temperature = self.temperature_slope or self.temperature_intercept
        if self.attention_factor is not None and temperature:
            raise RecipeError(
                "--attention-factor and --temperature-slope both set the attention factor; pass one"
                " of them"
            )
        if self.log_n_length is not None and self.log_n is None:
            raise RecipeError("--log-n-length needs --log-n clamped or --log-n full")
        if self.on_top and self.original_context is not None:
            raise RecipeError(
                "--on-top keeps the scaling with its trained length; leave --original-context out"
            )
        if self.keep_short and self.log_n is not None:
            raise RecipeError(
                "--log-n scales queries whichever list of frequencies is used, so --keep-short"
                " would not leave short prompts as they were; leave one of them out"
            )

        # as-is keeps everything but the length that the config declares
        changes = [name for name in self.modifiers() if name != "context"]
        if isinstance(self.method, AsIs) and changes:
            flag = changes[0].replace("_", "-")
            raise RecipeError(
                f"--as-is keeps the RoPE, so --{flag} has no place beside it; of the modifiers it"
                " takes --context"
            )

    def start(self, source: RopeSpec) -> RopeSpec:
        """The RoPE that the recipe starts from: unscaled, with as-is and `on_top` the present one.

        Args:
            source: The present RoPE of the checkpoint.
        """
        if isinstance(self.method, AsIs) or self.on_top or not source.scaled:
            return source
        return source.unscaled()

    def schedule(self, spec: RopeSpec, source: RopeSpec | None = None) -> Schedule:
        """Return the frequencies, the attention factor and the context of the extended model.

        For YaRN by 4 and a checkpoint of 32k tokens, these are YaRN's frequencies, 1.139 and 128k.

        Args:
            spec: The RoPE that the method is applied to: the RoPE of the unscaled model, or with
                `on_top` the RoPE of the scaled model.
            source: The RoPE of the checkpoint, which short prompts keep with `keep_short`; by
                default the same as `spec`.

        Raises:
            RecipeError: The method does not fit the model.
        """
        # 1. the method; the recipe may set other lengths than those of the checkpoint
        original = self.original_context or spec.original_context
        context = self.context or max(original, spec.context)
        spec_with_lengths = replace(spec, original_context=original, context=context)
        schedule = self._schedule_of_method(spec, spec_with_lengths)

        # 2. the modifiers of the recipe, which replace what the method gives; with log_n, queries
        # are multiplied by ln(position) / ln(length)
        attention_factor = self._attention_factor(schedule)
        log_n = None
        if self.log_n is not None:
            log_n = LogN(self.log_n, self.log_n_length or original)

        # For MLA, llama.cpp multiplies whole logits by the square of the attention factor
        # (`softmax_follows`). A modifier that changes the factor changes the softmax scale too.
        softmax_scale = schedule.softmax_scale
        if self.on_top and spec.softmax_follows:
            softmax_scale *= (attention_factor / schedule.attention_factor) ** 2

        modified = replace(
            schedule,
            context=self.context or schedule.context,
            attention_factor=attention_factor,
            softmax_scale=softmax_scale,
            log_n=log_n,
            query_scaling=spec.query_scaling,
        )

        # 3. short prompts may keep the RoPE of the checkpoint
        if not self.keep_short:
            return modified
        rope_for_short_prompts = spec if source is None else source
        return keep_short(modified, rope_for_short_prompts)

    def _schedule_of_method(self, spec: RopeSpec, spec_with_lengths: RopeSpec) -> Schedule:
        """Return the frequencies and factors of the method, before the modifiers of the recipe.

        Args:
            spec: The RoPE that the method is applied to: the RoPE of the unscaled model, or with
                `self.on_top` the RoPE of the scaled model.
            spec_with_lengths: The same, with the trained length and the context that the recipe
                sets.

        Raises:
            RecipeError: The numbers are out of range.
        """
        # warnings of numpy about inf and nan are off, since Schedule refuses such numbers
        try:
            with np.errstate(all="ignore"):
                if self.on_top:
                    # this needs the lengths of the scaling, and sets the context itself
                    schedule = on_top(self.method, spec, self.context, self.explicit)
                else:
                    schedule = schedule_of(self.method, spec_with_lengths)
        except RopeconvError:
            raise
        except (ArithmeticError, ValueError) as problem:
            raise RecipeError(
                f"{self.method.flag()} gives numbers that are out of range ({problem}); check its"
                " parameters"
            ) from None

        # A frequency of 0 means a pair that does not rotate. A list of frequencies that the user
        # gave may have zeros (`keeps_zeros`), and the scaling of a model too. A formula must not:
        # its zeros are frequencies too small for float64.
        may_have_zeros = self.method.keeps_zeros or self.on_top
        rotating = schedule.inv_freq[: spec_with_lengths.rotating_pairs]
        if not may_have_zeros and count_zero(rotating):
            raise RecipeError(
                f"{self.method.flag()} gives frequencies that are 0; check its parameters"
            )
        return schedule

    def _attention_factor(self, schedule: Schedule) -> float:
        """Return the attention factor that the user sets, or the attention factor of the method.

        The user sets it as a number, or as a and b of the formula a ln s + b, with s the factor of
        the context: a is `temperature_slope`, b is `temperature_intercept`.

        Args:
            schedule: The schedule of the method.
        """
        # a number, or nothing
        if self.attention_factor is not None:
            return self.attention_factor
        if self.temperature_slope is None and self.temperature_intercept is None:
            return schedule.attention_factor

        # s is the factor of the method, such as 4 for --yarn 4. Two cases take s from the contexts:
        # --on-top, where the model was extended before by another factor; and a method without a
        # factor, such as --theta.
        factor = None
        if not self.on_top:
            factor = self.method.factor_over(schedule.original_context)
        if factor is None:
            factor = schedule.context / schedule.original_context

        # the formula, which has defaults for a and b
        settings = {}
        if self.temperature_slope is not None:
            settings["slope"] = self.temperature_slope
        if self.temperature_intercept is not None:
            settings["intercept"] = self.temperature_intercept
        return temperature_attention_factor(factor, **settings)

    def modifiers(self) -> dict[str, Any]:
        """The modifiers that are set, by name."""
        values = {name: getattr(self, name) for name in MODIFIERS}
        return {name: value for name, value in values.items() if value not in (None, False)}

    def to_dict(self) -> dict[str, object]:
        """JSON-ready data: the method's name, its parameters, and the modifiers that are set."""
        parameters = dict[str, object]()
        for item in dataclasses.fields(self.method):
            value = getattr(self.method, item.name)
            if isinstance(value, tuple):
                value = list(value)
            if value is not None:
                parameters[item.name] = value
        data = {"method": self.method.name, "parameters": parameters, **self.modifiers()}
        if self.explicit:
            data["explicit"] = list(self.explicit)
        return data

    @classmethod
    def from_dict(cls, data: object) -> Recipe:
        """Return the recipe of a JSON object, as `to_dict` writes it.

        Such an object is {"method": "yarn", "parameters": {"factor": 16.0}, "context": 131072}. The
        key "explicit" may list parameters that the user gave although they are the defaults.

        Raises:
            RecipeError: For unknown names and wrong types.
        """
        if not isinstance(data, dict) or not isinstance(data.get("parameters", {}), dict):
            raise RecipeError(
                'a recipe is a JSON object like {"method": "yarn", "parameters": {"factor": 16.0}}'
            )
        name = data.get("method")
        if not isinstance(name, str) or name not in REGISTRY:
            raise RecipeError(
                f"the recipe names the method {shown(name)}; known: {', '.join(REGISTRY)}"
            )

        # an unknown key is refused: without it, the recipe would mean something else
        method_class = REGISTRY[name]
        parameters = data.get("parameters", {})
        known_parameters = {item.name for item in dataclasses.fields(method_class)}
        known_keys = {"method", "parameters", "explicit", *MODIFIERS}
        unknown = [key for key in data if key not in known_keys]
        unknown += [key for key in parameters if key not in known_parameters]
        if unknown:
            raise RecipeError(
                f"the recipe has the unknown key {shown(unknown[0])}; {method_class.name} takes"
                f" {', '.join(sorted(known_parameters))}"
            )

        # the method; JSON has no tuples, in which methods keep lists of numbers
        values = {}
        for key, value in parameters.items():
            values[key] = tuple(value) if isinstance(value, list) else value
        try:
            method = method_class(**values)
        except TypeError:  # a parameter without a default is missing
            raise RecipeError(
                f"the recipe for {method_class.name} needs {', '.join(sorted(known_parameters))}"
            ) from None

        # the modifiers, such as "context", and "explicit"; the constructor of Recipe raises
        # RecipeError for values of a wrong type
        modifiers = {key: data[key] for key in MODIFIERS if data.get(key) is not None}
        explicit = data.get("explicit", ())
        if isinstance(explicit, list) and all(isinstance(name, str) for name in explicit):
            explicit = tuple(explicit)
        return cls(method, explicit=explicit, **modifiers)


MODIFIERS = tuple(
    item.name for item in dataclasses.fields(Recipe) if item.name not in ("method", "explicit")
)


def explicit_defaults(method: Method, given: Collection[str]) -> tuple[str, ...]:
    """The settings that a method could inherit, of those that were given as its defaults."""
    defaults = {item.name: item.default for item in dataclasses.fields(method)}
    names = []
    for name in method.inherited:
        if name in given and getattr(method, name) == defaults[name]:
            names.append(name)
    return tuple(names)


def parse_recipe(text: str) -> Recipe:
    """Return the recipe of a text such as `yarn:4:beta_fast=16:context=128k`.

    The method comes first ("yarn"), then its value (4). Settings of the method (beta_fast) and
    modifiers of the recipe (context) follow.

    Raises:
        RecipeError: For unknown methods and settings, and for wrong values.
    """
    # the method; one whose value is a file cannot be written in this way
    name, *parts = text.split(":")
    method_class = REGISTRY.get(name)
    if method_class is None or method_class.value is Value.FILE:
        methods = [method for method in REGISTRY.values() if method.value is not Value.FILE]
        names = ", ".join(method.name for method in methods)
        raise RecipeError(
            f"{text!r} is not a method; choose base, recipe:FILE, {names} (with a value: yarn:4)"
        )

    # parts with "=" are settings, such as beta_fast=16; the part without is the value, such as 4
    settings = _settings([part for part in parts if "=" in part], text)
    value = _value(method_class, [part for part in parts if "=" not in part], text)

    # modifiers, such as context=64k, belong to the recipe, and all other settings to the method
    modifiers = {}
    for key in MODIFIERS:
        if key in settings:
            modifiers[key] = settings.pop(key)

    # the fields of the class: the value, such as "factor", is the first, and settings follow
    fields = [field.name for field in dataclasses.fields(method_class)]
    if value is not None and fields[0] in settings:
        raise RecipeError(f"{text!r} gives {fields[0]} twice; leave one of them out")
    unknown = settings.keys() - set(fields)
    if unknown:
        known = ", ".join((*fields[1:], *MODIFIERS))
        raise RecipeError(
            f"{text!r} has the setting {min(unknown)}, which {method_class.name} does not have; it"
            f" has {known}"
        )
    # a dynamic method changes with the length of the prompt, so the setting `at` must give a length
    is_dynamic = "at" in fields
    if is_dynamic and settings.get("at") is None:
        raise RecipeError(
            f"{text!r} changes with the sequence; freeze it at a length, as in {text}:at=32k"
        )

    if value is not None:
        settings[fields[0]] = method_class.parse(value)
    method = method_class(**settings)
    explicit = explicit_defaults(method, settings)  # settings given although they are the defaults
    return Recipe(method, explicit=explicit, **modifiers)


def _value(kind: type[Method], parts: list[str], text: str) -> str | None:
    """The value after the name of a method: "4" in "yarn:4", None for a method without a value.

    Args:
        kind: The class of the method.
        parts: The parts between colons in the recipe, without the name and settings.
        text: The whole recipe, for messages.
    """
    if kind.value is Value.SWITCH:
        if parts:
            raise RecipeError(
                f"{kind.name} has no value, so {text!r} is not a recipe; write {kind.name}"
            )
        return None

    # the value of a dynamic method has a colon in it: dynamic:yarn:4
    may_have_colons = kind.value is Value.TEXT
    if len(parts) == 1 or (may_have_colons and parts):
        return ":".join(parts)
    example = f"{kind.name}:4" if kind.value is Value.FACTOR else f"{kind.name}:VALUE"
    raise RecipeError(f"{text!r} needs one value after the method; write it like {example}")


def _settings(parts: list[str], text: str) -> dict[str, Any]:
    """Return settings by name: {"beta_fast": 16} for ["beta_fast=16"].

    Args:
        parts: The settings.
        text: The whole recipe, for messages.
    """
    pairs = [_setting(part, text) for part in parts]
    settings = dict(pairs)
    has_repeated_name = len(settings) < len(pairs)
    if has_repeated_name:
        raise RecipeError(f"{text!r} gives a setting twice; leave one of them out")
    return settings


def _setting(part: str, text: str) -> tuple[str, Any]:
    """The name and value of a setting: "beta_fast" and 16 for `beta_fast=16`.

    Args:
        part: The setting.
        text: The whole recipe, for messages.
    """
    # lengths may be written as 128k; the length of a dynamic method is called "at"
    key, _, value = part.partition("=")
    key = key.replace("-", "_")
    is_length = key == "at" or key.endswith(("context", "length"))
    if is_length:
        return key, parse_tokens(value)

    # everything else is as in JSON (0.1, true), or a word
    try:
        return key, json.loads(value)
    except ValueError:
        if value.isalpha():
            return key, value
        raise RecipeError(
            f"{text!r} sets {key} to {value!r}; write a number, true, false or a word"
        ) from None


def flags(recipe: Recipe) -> list[str] | None:
    """The words of a command line that give a recipe, as `["--yarn", "16"]`.

    None where it has lists of numbers, which only a file can hold.
    """
    method = recipe.method
    if any(isinstance(value, tuple) for value in vars(method).values()):
        return None

    # the flag of the method with its value, then settings and modifiers that are not the defaults
    method_value, options = _values(recipe)
    words = [method.flag(), *method_value]
    for name, value in options.items():
        spelled = name.replace("_", "-")
        if not isinstance(value, bool):
            words += [f"--{spelled}", _text(value)]
        elif value:
            words.append(f"--{spelled}")  # on_top is --on-top
        else:
            words.append(f"--no-{spelled}")  # truncate=False is --no-truncate
    return words


def resolved_factor(recipe: Recipe, trained: int, declared: int) -> float | None:
    """The scale factor of a recipe as a number, also where it is written as a length.

    For `--yarn 128k` and a model that was trained for 32,768 tokens it is 4.0. With --on-top, the
    length is divided by the declared context. None for a method without a factor.

    Args:
        recipe: The method with its modifiers.
        trained: Context of the model before its scaling, in tokens.
        declared: Context of the model with its scaling, in tokens.

    Raises:
        RecipeError: The factor is a length that is not above the context it is divided by.
    """
    if recipe.on_top:
        return recipe.method.factor_over(declared, kind="declared")
    return recipe.method.factor_over(recipe.original_context or trained, kind="trained")


def described_flags(recipe: Recipe, trained: int, declared: int) -> str:
    """The flags of a recipe for people, such as `--yarn 4` or `--yarn 128k (factor 4)`.

    Numbers have no needless digits; the exact text of a command is that of `flags`.

    Args:
        recipe: The method with its modifiers.
        trained: Context of the model before its scaling, in tokens.
        declared: Context of the model with its scaling, in tokens.
    """
    words = flags(recipe)
    if words is None:  # a method with lists of numbers, such as --longrope, has no short value
        words = [recipe.method.flag()]
    factor_of_flag = getattr(recipe.method, "factor", None)  # a float, a length ("128k"), or None
    if isinstance(factor_of_flag, float):
        # ["--yarn", "3.0517578125"] becomes ["--yarn", "3.052"]
        words[1] = format_factor(factor_of_flag)
    text = " ".join(words)

    # a method that names a length may have a factor, which follows from it
    if recipe.method.length is None:
        return text
    factor = resolved_factor(recipe, trained, declared)
    if factor is None:
        return text
    return f"{text} (factor {format_factor(factor)})"


def recipe_text(recipe: Recipe) -> str:
    """The text of a recipe without lists of numbers, which `parse_recipe` reads back.

    Example: `yarn:4:context=10000`.
    """
    values, options = _values(recipe)
    parts = [recipe.method.name, *values]
    for name, value in options.items():
        if isinstance(value, bool):
            parts.append(f"{name}={str(value).lower()}")
        else:
            parts.append(f"{name}={_text(value)}")
    return ":".join(parts)


def _values(recipe: Recipe) -> tuple[list[str], dict[str, Any]]:
    """The parts of a recipe as text and commands have them.

    For `--yarn 16 --beta-fast 16 --context 128k` it is (["16"], {"beta_fast": 16, "context":
    131072}).

    Returns:
        The value of the method's flag, in a list that is empty for a method without a value; and
        all settings and modifiers that are not the defaults, by name.
    """
    # the first field of a method is the value of its flag, as 16 in `--yarn 16`; a flag without a
    # value, such as --as-is, has a field that is always True
    method = recipe.method
    fields = dataclasses.fields(method)
    method_value = []
    is_switch = method.value is Value.SWITCH
    if fields and not is_switch:
        method_value.append(_text(getattr(method, fields[0].name)))

    # the other fields are options of their own, as `--beta-fast 32`
    options = {}
    for item in fields[1:]:
        value = getattr(method, item.name)
        is_given = value != item.default or item.name in recipe.explicit
        if is_given:
            options[item.name] = value
    return method_value, options | recipe.modifiers()


def _text(value: object) -> str:
    """A number without needless digits, which reads back as the same; other values unchanged."""
    if not isinstance(value, float):
        return str(value)
    short = format(value, ".12g")
    if float(short) == value:
        return short
    return repr(value)
