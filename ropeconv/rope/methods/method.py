"""Method, the base class of all methods, and REGISTRY, which has them by name.

A method is a frozen dataclass that turns a RopeSpec into a Schedule. The command line, recipe files
and tables read `REGISTRY`. The first field of the class is the value of its flag, and each other
field is an option (`beta_fast` is `--beta-fast`).

`schedule_of` serves models whose slowest pairs stand still by architecture (p-RoPE: Gemma 4,
LFM 3) too. With a share p of the r/2 pairs that rotate, theta^(-2i/r) for i < p r/2 is
(theta^p)^(-2i/(p r)): a rotary embedding of p r dimensions with the base theta^p. A method sees
that one, so that its statement on the slowest pair holds for the slowest that rotates; a method
that names a base names that of the whole head. The other pairs keep a frequency of 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, ClassVar, Self, TypeGuard, TypeVar

import numpy as np

from ..errors import RecipeError, shown
from ..forms import NO_ROTATION, Form, InterpolatedForm, LongRope, Plain, Vector
from ..lengths import (
    LARGEST_FACTOR,
    MOST_TOKENS,
    Factor,
    factor_over,
    factor_text,
    format_tokens,
    is_length,
    length_of,
    normal_factor,
    parse_factor,
    parse_tokens,
)
from ..registry import Registry
from ..schedule import Schedule
from ..spec import Proportional, RopeSpec, recognise

Check = Callable[[object], str | None]
LARGEST = 1e30
"""The largest number that methods take, so that what they compute stays within float64."""
LARGEST_SCALE = 1e6
"""The largest scale factor."""
M = TypeVar("M", bound="type[Method]")


class Value(Enum):
    """The kind of value that follows a method's flag on the command line."""

    NUMBER = "number"
    FACTOR = "factor"
    TOKENS = "tokens"
    TEXT = "text"
    FILE = "file"
    SWITCH = "switch"


def _finite(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LARGEST


def check_of(is_good: Callable[[Any], object], requirement: str) -> Check:
    """Return a check: it gives None for a good value, and the requirement for another one."""

    def check(value: object) -> str | None:
        return None if is_good(value) else requirement

    return check


number = check_of(_finite, "must be a finite number")
positive = check_of(
    lambda value: _finite(value) and value >= 1 / LARGEST, "must be a positive number, up to 1e30"
)
scale = check_of(
    lambda value: _finite(value) and 1 <= value <= LARGEST_SCALE,
    "must be a number of at least 1, up to 1e6",
)


def _is_factor(value: object) -> bool:
    """Whether a value is a scale factor: a length, or a number that cannot be mistaken for one."""
    if is_length(value):
        return True
    ambiguous = isinstance(value, int) and value > LARGEST_FACTOR
    return scale(value) is None and not ambiguous


def _is_token_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MOST_TOKENS


def _is_positive_list(value: object) -> bool:
    if not isinstance(value, tuple) or not value:
        return False
    return all(positive(entry) is None for entry in value)


def _is_not_negative_list(value: object) -> bool:
    if not isinstance(value, tuple) or not value:
        return False
    return all(entry == 0 or positive(entry) is None for entry in value)


factor_or_length = check_of(
    _is_factor, "must be a number of at least 1, up to 1,000, or a length such as 128k or 100000"
)
share = check_of(lambda value: _finite(value) and 0 <= value <= 1, "must be a number from 0 to 1")
switch = check_of(lambda value: isinstance(value, bool), "must be true or false")
tokens = check_of(_is_token_count, f"must be a token count, up to {MOST_TOKENS:,}")
positive_list = check_of(_is_positive_list, "must be a list of positive numbers")
not_negative_list = check_of(
    _is_not_negative_list,
    "must be a list of numbers that are finite and not negative",
)


def param(check: Check, help: str, default: object = dataclasses.MISSING) -> Any:
    """A field of a method, with its check and the sentence that `--help` shows."""
    return field(default=default, metadata={"check": check, "help": help})


@dataclass(frozen=True)
class Method:
    """A way to extend the context.

    Raises:
        RecipeError: When a parameter fails its check.
    """

    name: ClassVar[str]
    """The flag without its dashes."""

    order: ClassVar[int]
    """Place in lists, lowest first."""

    summary: ClassVar[str]
    """A phrase for lists and `--help`."""

    paper: ClassVar[str]
    """The source of the formula."""

    value: ClassVar[Value] = Value.NUMBER
    """The kind of value that follows the flag."""

    max_untuned_factor: ClassVar[float] = 1.0
    """The largest factor that is reported to work without fine-tuning; 1 if it needs training."""

    finetuning_note: ClassVar[str] = ""
    """That report, with its source."""

    keeps_zeros: ClassVar[bool] = False
    """Whether a frequency of 0 is meant, as in a given vector."""

    names_base: ClassVar[bool] = False
    """Whether the method is about the base as configs have it."""

    inherited: ClassVar[tuple[str, ...]] = ()
    """Settings that are those of the model's scaling, where it has one of the same kind and they
    are not given.
    """

    departures: ClassVar[tuple[str, ...]] = ()
    """Sentences on what is taken otherwise than the paper prints it, and why."""

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if value is None and item.default is None:  # a setting that was not given
                continue
            problem = item.metadata["check"](value)
            if problem:
                raise RecipeError(
                    f"{self.flag()}: {item.name} {problem}, and {shown(value)} is not"
                )

    @classmethod
    def flag(cls) -> str:
        """The command-line flag that chooses this method."""
        return f"--{cls.name}"

    @classmethod
    def parse(cls, text: str | float) -> Any:
        """Return the value of the flag, from its text; its type depends on the method.

        It is the int 131072 for `--theta-for 128k`, and the float 1000000.0 for `--theta 1e6`. For
        `--yarn 4` it is the float 4.0. For `--yarn 128k` it stays the text "128k", since the factor
        then depends on the trained context of the model.

        Raises:
            RecipeError: For a text that is not such a value.
        """
        if cls.value is Value.TOKENS:  # a length, as in --theta-for
            return parse_tokens(str(text))
        if cls.value is Value.FACTOR:  # a factor or a length, as in --yarn
            return parse_factor(str(text), cls.flag())
        if cls.value is Value.TEXT:  # the method parses it, as in --piecewise 8@44
            return text

        try:
            return float(text)
        except ValueError:
            raise RecipeError(
                f"{cls.flag()} needs a number, and {text!r} is not one; write it like"
                f" {cls.name}:1000000"
            ) from None

    @classmethod
    def for_context(cls, spec: RopeSpec, context: int) -> Method | None:
        """The method whose parameter reaches `context` tokens; None where no single number does."""
        name = dataclasses.fields(cls)[0].name
        if name == "factor":
            return cls(**{name: context / spec.original_context})
        if name == "target":
            return cls(**{name: context})
        return None

    def schedule(self, spec: RopeSpec) -> Schedule:
        """The schedule of this method for an unscaled checkpoint.

        Raises:
            RecipeError: Where it does not fit.
        """
        raise NotImplementedError

    @property
    def length(self) -> int | None:
        """The context in tokens that the parameters name.

        None where it follows from a factor or from the model.
        """
        return None

    def factor_over(self, context: int, kind: str = "trained") -> float | None:
        """The scale factor s of the method; None for methods without one.

        Args:
            context: In tokens, over which a factor written as a length is taken.
            kind: The name of that context, for messages.

        Raises:
            RecipeError: For a length within it.
        """
        return None

    def longer(self, context: int, original: int) -> str:
        """The flags with which this method reaches `context` tokens.

        Empty where the method takes them from `--context`.
        """
        if self.value is Value.FACTOR:
            return f"{self.flag()} {factor_text(context)}"
        if self.value is Value.TOKENS:
            return f"{self.flag()} {format_tokens(context)}"
        return ""

    def relative(self, declared: int, original: int) -> Method:
        """The method for `--on-top`, with its lengths as if the model were not scaled.

        With `--on-top`, the method extends the context that a scaled model declares. It is computed
        for the unscaled model, whose trained context is shorter, so a length of T tokens becomes
        `T original / declared`: 256k over a declared 128k is 16k over a trained 8k. This class has
        no lengths and returns the method unchanged; methods with lengths override it.

        Args:
            declared: Context of the present model, in tokens.
            original: Context of the model before its scaling, in tokens.

        Raises:
            RecipeError: For a length within the declared context.
        """
        return self

    def inherit(self, form: Form, explicit: Sequence[str] = ()) -> Self:
        """The method with the settings of a scaling of its own kind; itself for other scalings.

        Only settings in `inherited` that are at their defaults are taken from `form`.

        Args:
            form: The scaling of a model.
            explicit: Settings that the user gave, which count although they are the defaults.

        Raises:
            RecipeError: Where those of the form and those of the method contradict each other.
        """
        if form.kind != self.name:
            return self

        # a setting at its default may be one that the user did not think of
        defaults = {item.name: item.default for item in dataclasses.fields(self)}
        taken_over = {}
        for name in self.inherited:
            is_default = getattr(self, name) == defaults[name]
            if is_default and name not in explicit:
                taken_over[name] = getattr(form, name)
        try:
            return replace(self, **taken_over)
        except RecipeError as problem:
            own = " and ".join(f"{name} {value:g}" for name, value in taken_over.items())
            raise RecipeError(f"{problem}; the model's scaling has {own}") from None

    def widen(self, form: Form, factor: float, explicit: Sequence[str] = ()) -> Method | None:
        """The method that gives `form` with `factor` times its own factor.

        None where `form` is not of this method. Settings are as in `inherit`.
        """
        return None

    @property
    def command(self) -> str:
        """The flag with its value, as on a command line: `--yarn 16`."""
        return f"{self.flag()} {self._value_text()}"

    @property
    def label(self) -> str:
        """Short name for folders: `yarn16`, `theta1000000`."""
        if self.value in (Value.FILE, Value.SWITCH):
            return self.name
        return f"{self.name}{self._value_text()}"

    def _value_text(self) -> str:
        """The value of the flag, without needless digits."""
        value = getattr(self, dataclasses.fields(self)[0].name)
        if isinstance(value, str):
            return value
        return format(value, ".12g")

    @property
    def slow_note(self) -> str:
        """A sentence to print before a `schedule` that takes more than some seconds; else empty."""
        return ""


REGISTRY: Registry[type[Method]] = Registry("method", __package__ or "")


def register(cls: M) -> M:
    """Class decorator: adds a method to REGISTRY under its name, sorted by `order`.

    Raises:
        RecipeError: Where a method and a setting of a method would have the same option.
    """
    kinds: dict[str, type[Method]] = {**REGISTRY.declared, cls.name: cls}
    for kind in kinds.values():
        # the first field is the value of the flag, and the others are options: --beta-fast
        for item in dataclasses.fields(kind)[1:]:
            option = item.name.replace("_", "-")
            if option in kinds:
                raise RecipeError(
                    f"{item.name} is a method and a setting of {kind.flag()}; rename one"
                )
    REGISTRY.add(cls.name, cls, cls.__module__, cls.order)
    return cls


@dataclass(frozen=True)
class LengthMethod(Method):
    """A method that is given by the context to reach."""

    value = Value.TOKENS

    target: int = param(tokens, "the context to reach, in tokens")

    @property
    def length(self) -> int | None:
        """The target, in tokens."""
        return self.target


@dataclass(frozen=True)
class ScaledMethod(Method):
    """A method with a scale factor s: a number, or a length ("128k", 100000) over the trained one.

    A length stays a length in recipes, so that a recipe reaches it for a model of another trained
    length too.
    """

    value = Value.FACTOR
    ordered: ClassVar[tuple[str, str] | None] = None
    """Names of two settings of which the first must not be below the second.

    Kimi K2 publishes equal ones: every runtime computes a step then, in place of a ramp.
    """

    factor: Factor = param(
        factor_or_length, "scale factor s, or the length to reach, such as 128k or 100000"
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "factor", normal_factor(self.factor))
        super().__post_init__()
        if self.ordered is not None:
            first, second = self.ordered
            upper = getattr(self, first)
            lower = getattr(self, second)
            if upper < lower:
                names = " must be at least ".join(self.ordered)
                raise RecipeError(f"{self.flag()}: {names}, and {upper:g} is below {lower:g}")

    def form(self, spec: RopeSpec, factor: float) -> Form:
        """The formula of the frequencies, with s = `factor`."""
        raise NotImplementedError

    def schedule(self, spec: RopeSpec) -> Schedule:
        """The schedule of the formula: its context is s times the trained one, its factor 1."""
        factor = self.factor_over(spec.original_context)
        form = self.form(spec, factor)
        context = round(spec.original_context * factor)
        return Schedule(
            inv_freq=form.inv_freq(spec.rotary_dim),
            attention_factor=1.0,
            context=context,
            original_context=spec.original_context,
            form=form,
        )

    @property
    def length(self) -> int | None:
        """The context in tokens where the factor is written as one; else None."""
        return length_of(self.factor)

    def factor_over(self, context: int, kind: str = "trained") -> float:
        return factor_over(self.factor, context, self.flag(), kind)

    def relative(self, declared: int, original: int) -> Method:
        return replace(self, factor=self.factor_over(declared, "declared"))


ROUNDING = 1e-12  # relative: what a power and its inverse leave


def schedule_of(method: Method, spec: RopeSpec) -> Schedule:
    """Return the frequencies and factors that a method gives an unscaled checkpoint.

    In most models all r/2 pairs of a head rotate. In Gemma 4 (p-RoPE) only the first p r/2 pairs
    do, and the others have the frequency 0.

    Args:
        method: The method.
        spec: The RoPE of the checkpoint, with p as `rotating_share`.

    Raises:
        RecipeError: The method does not fit the checkpoint.
    """
    # all pairs rotate
    if spec.rotating_share == 1:
        return method.schedule(spec)

    # Gemma 4: the method is applied to a smaller head, which has only the pairs that rotate. It has
    # p r dimensions and the base theta^p, since theta^(-2i/r) = (theta^p)^(-2i/(p r)).
    share_of_head = spec.rotating_share
    if method.names_base:
        # but --theta 1e6 means the base of the whole head, so this method gets all pairs
        share_of_head = 1.0
    head_for_method = replace(
        spec,
        form=Plain(spec.rope_theta**share_of_head),
        rotary_dim=round(spec.rotary_dim * share_of_head),
        rotating_share=1.0,
    )
    schedule = method.schedule(head_for_method)

    # then the whole head, with frequencies of 0 for the pairs that do not rotate, and its formula
    inv_freq = _with_zeros_behind(schedule.inv_freq, spec)
    short = schedule.short_inv_freq
    if short is not None:
        short = _with_zeros_behind(short, spec)
    form = _form_of_whole_head(schedule.form, share_of_head, spec)
    if form is None:
        form = recognise(inv_freq, spec.rope_theta)
    return replace(schedule, inv_freq=inv_freq, short_inv_freq=short, form=form)


def _with_zeros_behind(inv_freq: Vector, spec: RopeSpec) -> Vector:
    """The frequencies of the whole head: zeros behind the pairs that rotate."""
    whole = np.zeros(spec.rotary_dim // 2)
    whole[: spec.rotating_pairs] = inv_freq[: spec.rotating_pairs]
    return whole


def _form_of_whole_head(form: Form | None, share_of_head: float, spec: RopeSpec) -> Form | None:
    """Return the formula of all pairs of a head in which only the first pairs rotate (p-RoPE).

    In Gemma 4 a share p of the pairs rotates, a quarter. A method was applied to these pairs as if
    they were a smaller head, whose base is theta^p for the base theta of the whole head. This
    function gives its formula the base theta and the pairs that do not rotate.

    Args:
        form: The formula of the smaller head; None for frequencies without a formula.
        share_of_head: The exponent p of its base; 1 if `form` has the base theta already.
        spec: The RoPE of the checkpoint, with p as `rotating_share`.

    Returns:
        The formula; None if there is none with pairs that do not rotate, as for YaRN.
    """
    if form is None:
        return None

    # (theta^p)^(1/p) is 999999.9999999994 for theta = 1000000, so a nearly round base is rounded
    theta = form.theta ** (1 / share_of_head)
    if abs(round(theta, 6) - theta) <= ROUNDING * theta:
        theta = round(theta, 6)

    # no scaling, and position interpolation: Proportional is the formula of p-RoPE
    share = spec.rotating_share
    if isinstance(form, Plain):
        return Proportional(theta, factor=1.0, partial_rotary_factor=share)
    if isinstance(form, InterpolatedForm):
        return Proportional(theta, form.factor, partial_rotary_factor=share)

    # only a share of the pairs of the smaller head rotates, so the shares are multiplied
    if isinstance(form, Proportional):
        share_of_whole_head = form.partial_rotary_factor * share
        return Proportional(theta, form.factor, partial_rotary_factor=share_of_whole_head)

    # lists of divisors: one of 1e30 makes the frequency of a pair nearly 0
    if isinstance(form, LongRope):
        divisors_behind = (NO_ROTATION,) * (spec.rotary_dim // 2 - spec.rotating_pairs)
        return replace(
            form,
            theta=theta,
            short_factor=(*form.short_factor, *divisors_behind),
            long_factor=(*form.long_factor, *divisors_behind),
        )
    return None
