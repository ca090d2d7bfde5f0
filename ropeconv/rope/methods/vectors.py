"""Methods given by lists of numbers or by two bases: LongRoPE, piecewise, any frequency vector."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ..errors import RecipeError, counted, shown
from ..forms import (
    DynamicNtk,
    LongRope,
    Plain,
    base_inv_freq,
    critical_dimension,
    longrope_attention_factor,
)
from ..lengths import (
    LARGEST_FACTOR,
    RULE_OF_FACTORS_AND_LENGTHS,
    Factor,
    factor_over,
    factor_text,
    format_tokens,
    length_of,
    parse_factor,
)
from ..schedule import Schedule
from ..spec import RopeSpec, recognise
from .interpolation import ByParts, Linear, YarnMethod
from .method import (
    Method,
    Value,
    check_of,
    not_negative_list,
    param,
    positive_list,
    register,
    switch,
    tokens,
)


def need_length(flag: str, subject: str, values: tuple[float, ...], spec: RopeSpec) -> None:
    """Raise RecipeError unless a list, which `subject` names, has one value per rotated pair."""
    pairs = spec.rotary_dim // 2
    if len(values) != pairs:
        raise RecipeError(
            f"{flag}: {subject} has {counted(len(values), 'number')} and this model rotates"
            f" {counted(pairs, 'pair')}; give {pairs}"
        )


@register
@dataclass(frozen=True)
class LongRopeMethod(Method):
    """inv_freq_i = theta_i / long_factor_i; theta_i / short_factor_i within the trained context.

    Attention factor sqrt(1 + ln s / ln L) with s = context / L. The file is JSON with
    `short_factor` and `long_factor` (a single list serves as both); the context is given with
    `--context`.
    """

    name = "longrope"
    order = 120
    summary = "short and long factor lists"
    paper = "Ding et al. 2024, https://arxiv.org/abs/2402.13753"
    max_untuned_factor = 8.0
    finetuning_note = "searched lists reach 8 times without fine-tuning (Ding et al. 2024)"
    value = Value.FILE

    long_factor: tuple[float, ...] = param(
        positive_list, "divisor per pair beyond the trained context"
    )
    short_factor: tuple[float, ...] | None = param(
        positive_list, "divisor per pair inside it", None
    )

    def schedule(self, spec: RopeSpec) -> Schedule:
        """Frequencies theta_i / long_factor_i, and theta_i / short_factor_i for short prompts."""
        short = self.short_factor
        if short is None:
            short = self.long_factor
        need_length("--longrope", "long_factor", self.long_factor, spec)
        need_length("--longrope", "short_factor", short, spec)

        form = LongRope(
            theta=spec.rope_theta,
            short_factor=short,
            long_factor=self.long_factor,
            original_context=spec.original_context,
        )
        # LongRoPE's attention factor is sqrt(1 + ln s / ln L) for the trained length L and the
        # factor s. The lists have no factor, so s is the declared context over L.
        factor = spec.context / spec.original_context
        attention_factor = longrope_attention_factor(factor, spec.original_context)
        short_inv_freq = None
        if short != self.long_factor:
            short_inv_freq = form.short_inv_freq(spec.rotary_dim)
        return Schedule(
            inv_freq=form.inv_freq(spec.rotary_dim),
            attention_factor=attention_factor,
            context=spec.context,
            original_context=spec.original_context,
            form=form,
            short_inv_freq=short_inv_freq,
        )


@register
@dataclass(frozen=True)
class Piecewise(Method):
    """S@I: pairs from I on are divided by s, those before I take the base theta s^(r/(2I)), so the
    two meet at I.

    S is a factor, or the length to reach: 8@44, 128k@44.

    "Method 2" of the paper is 8@44 on Llama 2: it keeps every angle inside the trained range.
    """

    name = "piecewise"
    order = 130
    summary = "two bases that meet at a pair"
    paper = "Men et al. 2024, table 4, https://arxiv.org/abs/2405.14591"
    finetuning_note = (
        "a counter-example: every angle is a trained one, and retrieval is lost (Men et al. 2024)"
    )
    departures = (
        (
            "The header of table 4 says that distances with B(m) >= 0 are counted; 97 and 2,554 are"
            " the numbers of distances below 15k and 30k tokens with B(m) < 0 (k = 1,024)."
        ),
    )
    value = Value.TEXT

    spec: str = param(
        check_of(lambda value: isinstance(value, str), "must be written S@I"),
        "factor (or length) and pair, as in 8@44",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.parts()

    @classmethod
    def for_context(cls, spec: RopeSpec, context: int) -> Method | None:
        """The method split at the first pair that completes no period in the trained context."""
        # pairs before it have seen every angle in training, and those behind it have not
        split = critical_dimension(spec.rope_theta, spec.original_context, spec.rotary_dim) // 2
        if not 0 < split < spec.rotating_pairs:
            return None
        factor = context / spec.original_context
        if factor > LARGEST_FACTOR:
            return cls(f"{format_tokens(context)}@{split}")
        return cls(f"{factor:.12g}@{split}")

    def parts(self) -> tuple[Factor, int]:
        """Return the factor, or the length, and the pair at which the two bases meet.

        "8@44" gives (8.0, 44), and "128k@44" gives ("128k", 44).

        Raises:
            RecipeError: For another spelling.
        """
        usage = (
            "--piecewise takes FACTOR@PAIR as in 8@44 (factor at least 1, or a length as in"
            f" 128k@44), and {shown(self.spec)} is not"
        )
        match = re.fullmatch(r"(\d{1,10}(?:\.\d{1,20})?|\d{1,10}[kKmM])@(\d{1,6})", self.spec)
        if match is None:
            raise RecipeError(usage)

        factor_text, pair_text = match.groups()
        factor = parse_factor(factor_text, self.flag())  # a float, or a length such as "128k"
        pair = int(pair_text)
        is_small_factor = isinstance(factor, float) and factor < 1
        if pair < 1 or is_small_factor:
            raise RecipeError(usage)
        return factor, pair

    @property
    def length(self) -> int | None:
        """The context in tokens where S is written as one; else None."""
        return length_of(self.parts()[0])

    def factor_over(self, context: int, kind: str = "trained") -> float | None:
        return factor_over(self.parts()[0], context, self.flag(), kind)

    def longer(self, context: int, original: int) -> str:
        return f"{self.flag()} {factor_text(context)}@{self.parts()[1]}"

    def relative(self, declared: int, original: int) -> Method:
        factor, split = self.parts()
        over_declared = factor_over(factor, declared, self.flag(), "declared")
        if over_declared > LARGEST_FACTOR:
            raise RecipeError(
                f"{self.flag()}: a factor is at most {LARGEST_FACTOR:,}; give a shorter length"
            )
        return Piecewise(f"{over_declared:.12g}@{split}")

    @property
    def label(self) -> str:
        return f"{self.name}{self.spec.replace('@', '-')}"

    def schedule(self, spec: RopeSpec) -> Schedule:
        """The frequencies of a larger base before pair I, and theta_i / s from there on."""
        factor_or_length, split = self.parts()
        factor = factor_over(factor_or_length, spec.original_context, self.flag())
        pairs = spec.rotary_dim // 2
        if split >= pairs:
            raise RecipeError(
                f"--piecewise: pair {split} is outside the {pairs} rotated pairs; choose 1 to"
                f" {pairs - 1}"
            )

        # at pair I, fast_base^(-2I/r) = theta^(-2I/r) / s: the two curves meet
        fast_base = spec.rope_theta * factor ** (spec.rotary_dim / (2 * split))
        fast = base_inv_freq(fast_base, spec.rotary_dim)
        slow = base_inv_freq(spec.rope_theta, spec.rotary_dim) / factor
        inv_freq = np.where(np.arange(pairs) < split, fast, slow)
        return Schedule(
            inv_freq=inv_freq,
            attention_factor=1.0,
            context=round(spec.original_context * factor),
            original_context=spec.original_context,
        )


@register
@dataclass(frozen=True)
class InvFreq(Method):
    """Any frequency vector: one frequency per rotated pair, in radians per token, 0 for pairs that
    do not rotate.

    Zeros behind theta^(-2i/r) are p-RoPE, only zeros are DroPE; `Proportional` has the papers.
    """

    name = "inv-freq"
    order = 140
    summary = "any vector: JSON, text, .npy, .safetensors or .pt"
    paper = "-"
    value = Value.FILE
    keeps_zeros = True

    inv_freq: tuple[float, ...] = param(
        not_negative_list,
        "one frequency per pair, in radians per token, 0 for pairs that do not rotate",
    )

    def schedule(self, spec: RopeSpec) -> Schedule:
        need_length("--inv-freq", "inv_freq", self.inv_freq, spec)
        inv_freq = np.asarray(self.inv_freq, dtype=np.float64) + 0.0  # -0.0 becomes 0.0
        form = recognise(inv_freq, spec.rope_theta)
        return Schedule(
            inv_freq=inv_freq,
            attention_factor=1.0,
            context=spec.context,
            original_context=spec.original_context,
            form=form,
        )


def method_from_lists(method: type[Method], data: Mapping[str, Iterable[float]]) -> Method:
    """A method from lists of numbers by their names, as a file has them.

    Args:
        method: The class of the method, which takes `inv_freq`, or LongRoPE's two lists.
        data: The lists by name; others are ignored.

    Raises:
        RecipeError: Where the list that it needs is not there.
    """
    is_longrope = method.name == "longrope"
    needed = "long_factor" if is_longrope else "inv_freq"
    names = ["long_factor", "short_factor"] if is_longrope else ["inv_freq"]

    lists = {}
    for name in names:
        if name in data:
            lists[name] = tuple(data[name])

    # a single list of LongRoPE serves inside and outside of the trained context
    if is_longrope and "long_factor" not in lists and "short_factor" in lists:
        lists["long_factor"] = lists["short_factor"]
    if needed not in lists:
        raise RecipeError(
            f"{method.flag()}: the input has no {shown(needed)} list; it has"
            f" {', '.join(data) or 'nothing'}"
        )
    return method(**lists)


@register
@dataclass(frozen=True)
class Dynamic(Method):
    """A dynamic method frozen at a length n, since files can only hold fixed frequencies.

    linear, by-parts and yarn take s = n / L, up to S (Peng et al.); ntk takes transformers' base
    theta ((S n / L) - (S - 1))^(r/(r-2)). Shorter prompts see the frequencies of length n too.
    """

    name = "dynamic"
    order = 150
    summary = "a dynamic method, materialised at the length --at"
    paper = "emozilla 2023; Peng et al. 2023, https://arxiv.org/abs/2309.00071"
    departures = (
        (
            "Peng et al. put s = n / L into the formula of a method; transformers' dynamic NTK puts"
            " S n / L - (S - 1) into that of NTK, which is 3 and not 2 at n = 2 L with S = 2. `ntk`"
            " here is that of transformers."
        ),
    )
    value = Value.TEXT

    kind: str = param(
        check_of(lambda value: isinstance(value, str), "must be written METHOD:S"),
        "METHOD:S, as in ntk:2",
    )
    at: int | None = param(
        tokens, "the length at which a dynamic method is frozen, in tokens", None
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.parts()

    def parts(self) -> tuple[str, float]:
        """Return the name of the method that is made dynamic, and its factor: ("yarn", 4.0).

        Raises:
            RecipeError: For another spelling than METHOD:S.
        """
        usage = (
            "--dynamic takes METHOD:S with METHOD one of linear, ntk, by-parts, yarn and S >="
            f" 1, not {shown(self.kind)}"
        )
        match = re.fullmatch(r"(linear|ntk|by-parts|yarn):(\d{1,6}(?:\.\d{1,20})?)", self.kind)
        if match is None:
            raise RecipeError(usage)

        name = match[1]
        factor = float(match[2])
        if factor < 1:
            raise RecipeError(usage)
        # a number above 1,000 was probably meant as a length, as in yarn:131072
        if factor > LARGEST_FACTOR:
            raise RecipeError(
                f"--dynamic {self.kind}: {RULE_OF_FACTORS_AND_LENGTHS}; S is a factor, and the"
                " length goes into --at"
            )
        return name, factor

    @property
    def label(self) -> str:
        return f"{self.name}-{self.kind.replace(':', '')}"

    @property
    def length(self) -> int | None:
        """The length at which the method is frozen, in tokens."""
        return self.at

    def longer(self, context: int, original: int) -> str:
        name, factor = self.parts()
        if name != "ntk":
            factor = max(factor, math.ceil(context / original))
        return f"{self.flag()} {name}:{factor:.12g} --at {format_tokens(context)}"

    def relative(self, declared: int, original: int) -> Method:
        if self.at is None:
            return self
        return replace(self, at=max(1, round(self.at * original / declared)))

    def schedule(self, spec: RopeSpec) -> Schedule:
        """The frequencies that a dynamic method has for a sequence of n tokens (`at`).

        A dynamic method is another method whose factor grows with the sequence. For a trained
        length L and "yarn:4", the result is YaRN's for the factor n / L, which is at most 4.

        Raises:
            RecipeError: Without n, and for n above 4 L in this example.
        """
        name, factor = self.parts()  # "yarn" and 4.0
        if self.at is None:
            raise RecipeError(
                "--dynamic changes with the sequence; say with --at TOKENS at which length to"
                " freeze it"
            )

        # n / L; for shorter sequences dynamic methods change nothing, as for the ratio 1
        ratio = max(1.0, self.at / spec.original_context)
        if name == "ntk":
            # transformers, for the factor S: theta (S n / L - (S - 1))^(r/(r-2))
            growth = max(1.0, factor * ratio - (factor - 1))
            theta = spec.rope_theta * growth ** (spec.rotary_dim / (spec.rotary_dim - 2))
            form = Plain(theta)
            return Schedule(
                inv_freq=form.inv_freq(spec.rotary_dim),
                attention_factor=1.0,
                context=self.at,
                original_context=spec.original_context,
                form=form,
            )

        # all others are the method itself with the factor n / L
        if ratio > factor:
            reach = round(factor * spec.original_context)
            raise RecipeError(
                f"--at {self.at} is beyond {factor:g} x {spec.original_context}; choose up to"
                f" {reach}"
            )

        inner: Method
        if name == "linear":
            inner = Linear(ratio)
        elif name == "by-parts":
            inner = ByParts(ratio)
        else:
            inner = YarnMethod(ratio)
        return replace(inner.schedule(spec), context=self.at)


@register
@dataclass(frozen=True)
class AsIs(Method):
    """The schedule that the checkpoint has already, written so that the old and the new schema of
    configs agree.
    """

    name = "as-is"
    order = 160
    summary = "keep the RoPE, rewrite the config consistently"
    paper = "-"
    value = Value.SWITCH
    keeps_zeros = True

    on: bool = param(switch, "keep the embedding unchanged", True)

    def schedule(self, spec: RopeSpec) -> Schedule:
        if isinstance(spec.form, DynamicNtk):
            raise RecipeError(
                "--as-is cannot keep dynamic scaling, which changes with the sequence; freeze it"
                f" with --dynamic ntk:{spec.form.factor:.12g} --at TOKENS --replace"
            )
        return spec.current()
