"""Known mistakes of runtimes with a context extension, each as the schedule that it computes.

To add one, write a function with the decorator `mistake`: it returns what a runtime with that
mistake computes for an Extension, or None where it does not apply. `candidates` gathers them,
with the right schedule first. Mistakes that no schedule expresses are in structure.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ropeconv.models.family import WeightNames
from ropeconv.rope.errors import RopeconvError
from ropeconv.rope.methods.method import REGISTRY, Method
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.schedule import Schedule
from ropeconv.rope.spec import RopeSpec

from .structure import (
    Change,
    exchange_latent_pairs,
    exchange_pairs,
    rotate_whole_heads,
    scale_local_layers,
)

RIGHT = "right"
"""The name of the right schedule among the candidates."""
FULL_ROTATION = "full-rotation"
"""The name of the mistake to rotate all dimensions of a head, where only a part rotates."""
DEFAULT_BASE = 10000.0
"""The rope_theta of a runtime that does not find one: RoFormer's, the default of most classes."""


@dataclass(frozen=True)
class Extension:
    """A recipe for a model, which a runtime should compute."""

    recipe: Recipe

    source: RopeSpec
    """The RoPE that the source has now."""

    start: RopeSpec
    """The RoPE that the recipe changes."""

    schedule: Schedule
    """The right one."""

    weights: WeightNames = WeightNames()
    """The names of the projections of the family."""

    @property
    def factor(self) -> float:
        """The factor of the method; for one without it, that of the context."""
        method = self.recipe.method
        factor = None
        if not self.recipe.on_top:
            factor = method.factor_over(self.schedule.original_context)
        return factor or self.schedule.context / self.schedule.original_context

    def by_method(self, method: Method) -> Schedule:
        """Return the schedule of another method, with the other settings of the recipe."""
        return replace(self.recipe, method=method).schedule(self.start, self.source)

    def over(self, start: RopeSpec) -> Schedule:
        """Return the schedule of the recipe over another RoPE."""
        return self.recipe.schedule(start, self.source)


@dataclass(frozen=True)
class CandidateSchedule:
    """A schedule that a runtime may compute, with its name."""

    name: str

    words: str
    """The same for people: "it computes ..."."""

    schedule: Schedule

    change: Change | None = None
    """Changes the model for the rest of the mistake, which no schedule expresses."""


Mistake = Callable[[Extension], Schedule | None]
MISTAKES: dict[str, tuple[str, Mistake]] = {}
"""By name: the words for people, and the function."""


def mistake(name: str, words: str) -> Callable[[Mistake], Mistake]:
    """Decorator: the function is a known mistake. words: as in CandidateSchedule."""

    def register(function: Mistake) -> Mistake:
        MISTAKES[name] = words, function
        return function

    return register


def candidates(case: Extension) -> list[CandidateSchedule]:
    """Return what a runtime may compute for a case: the right schedule, then the mistakes.

    A mistake that computes the same as an earlier candidate is left out.
    """
    right = CandidateSchedule(RIGHT, "the method", case.schedule)
    return [right, *_wrong_numbers(case), *_wrong_places(case)]


def _wrong_numbers(case: Extension) -> list[CandidateSchedule]:
    """Return the known mistakes of runtimes in the numbers of a RoPE.

    Such a mistake gives other frequencies or another attention factor. It is left out if it makes
    no difference for this model, or the same difference as another mistake.

    Args:
        case: The RoPE of the source, and the right frequencies and factors (`schedule`).
    """
    found = []
    known = {case.schedule.digest}
    for name, (words, function) in MISTAKES.items():
        try:
            with np.errstate(all="ignore"):
                schedule = function(case)
        except (RopeconvError, ArithmeticError, ValueError):
            continue  # the mistake has no meaning for this model or these numbers
        if schedule is None or schedule.digest in known:
            continue
        known.add(schedule.digest)

        # To rotate whole heads, more frequencies are not enough: some classes of transformers have
        # the number of rotated dimensions as an attribute, so the model is changed too.
        change = None
        if name == FULL_ROTATION:
            change = rotate_whole_heads(case.start.head_dim)
        found.append(CandidateSchedule(name, words, schedule, change))
    return found


def _wrong_places(case: Extension) -> list[CandidateSchedule]:
    """Return the known mistakes of runtimes that have the right numbers, and use them wrongly.

    They rotate other pairs of dimensions, or extend layers that keep their own RoPE.

    Args:
        case: The RoPE of the source, and the right schedule.
    """
    found = []

    # the pairs of dimensions of the other layout
    spec = case.start
    exchange: Change | None = None
    if spec.mla:
        exchange = exchange_latent_pairs
    elif case.weights.q and case.weights.k:
        exchange = exchange_pairs(case.weights, spec.layout, spec.head_dim, spec.rotary_dim)
    if exchange is not None:
        layout = CandidateSchedule(
            name="layout",
            words="the method, with pairs rotated in the other layout",
            schedule=case.schedule,
            change=exchange,
        )
        found.append(layout)

    # layers with a sliding window, which keep their own RoPE in Gemma 3
    if case.source.local_form is not None:
        local_layers = CandidateSchedule(
            name="local-layers",
            words="the method, in the layers with a sliding window too",
            schedule=case.schedule,
            change=scale_local_layers(case.schedule),
        )
        found.append(local_layers)
    return found


@mistake("unscaled", "the source, without the extension")
def _unscaled(case: Extension) -> Schedule:
    return case.source.current()


@mistake("no-scaling", "unscaled RoPE, without the scaling of the source too")
def _no_scaling(case: Extension) -> Schedule:
    return case.source.unscaled().current()


@mistake("default-base", "the method over the default base of 10,000")
def _default_base(case: Extension) -> Schedule:
    return case.over(replace(case.start, form=case.start.base_form(DEFAULT_BASE)))


@mistake("default-base-unscaled", "the default base of 10,000, without the extension")
def _default_base_unscaled(case: Extension) -> Schedule:
    spec = case.source.unscaled()
    return replace(spec, form=spec.base_form(DEFAULT_BASE)).current()


@mistake("no-attention-factor", "the method without its attention factor")
def _no_attention_factor(case: Extension) -> Schedule:
    return replace(case.schedule, attention_factor=1.0)


@mistake("attention-factor-twice", "the method with its attention factor applied twice")
def _attention_factor_twice(case: Extension) -> Schedule:
    return replace(case.schedule, attention_factor=case.schedule.attention_factor**2)


@mistake("attention-factor-of-formula", "the attention factor of the formula, not the one given")
def _attention_factor_of_formula(case: Extension) -> Schedule:
    recipe = replace(
        case.recipe, attention_factor=None, temperature_slope=None, temperature_intercept=None
    )
    return recipe.schedule(case.start, case.source)


@mistake("softmax-scale-missing", "the method without its softmax scale (mscale_all_dim)")
def _no_softmax_scale(case: Extension) -> Schedule:
    return replace(case.schedule, softmax_scale=1.0)


@mistake("softmax-scale-twice", "the method with its softmax scale (mscale_all_dim) applied twice")
def _softmax_scale_twice(case: Extension) -> Schedule:
    return replace(case.schedule, softmax_scale=case.schedule.softmax_scale**2)


@mistake("original-context", "the method over the new context in place of the trained one")
def _original_context(case: Extension) -> Schedule:
    # a config without original_max_position_embeddings: max_position_embeddings is taken
    method = _with_factor(case.recipe.method, case.factor)
    recipe = replace(case.recipe, method=method, original_context=case.schedule.context)
    return recipe.schedule(case.start, case.source)


@mistake("default-betas", "the method with the default betas")
def _default_betas(case: Extension) -> Schedule | None:
    # beta_fast and beta_slow of YaRN, low_freq_factor and high_freq_factor of Llama 3
    method = case.recipe.method
    defaults = {}
    for item in dataclasses.fields(method):
        is_beta = item.name.startswith("beta") or item.name.endswith("freq_factor")
        if is_beta and item.default is not dataclasses.MISSING:
            defaults[item.name] = item.default
    if not defaults:
        return None
    return case.by_method(replace(method, **defaults))


@mistake("truncation", "the method with the other rounding of its ramp (truncate)")
def _truncation(case: Extension) -> Schedule | None:
    method = case.recipe.method
    if not hasattr(method, "truncate"):
        return None
    return case.by_method(replace(method, truncate=not method.truncate))  # type: ignore[call-arg]


@mistake("linear", "position interpolation (linear), without an attention factor")
def _linear(case: Extension) -> Schedule:
    return replace(case.by_method(_method("linear", case)), attention_factor=1.0)


@mistake(
    "linear-with-attention-factor", "position interpolation (linear), with the attention factor"
)
def _linear_with_attention_factor(case: Extension) -> Schedule:
    interpolated = case.by_method(_method("linear", case))
    return replace(interpolated, attention_factor=case.schedule.attention_factor)


@mistake("ntk", "NTK-aware scaling of the base")
def _ntk(case: Extension) -> Schedule:
    return case.by_method(_method("ntk", case))


@mistake("yarn", "YaRN")
def _yarn(case: Extension) -> Schedule:
    return case.by_method(_method("yarn", case))


@mistake("by-parts", "NTK-by-parts with the paper's ramp, with the attention factor")
def _by_parts(case: Extension) -> Schedule:
    ramp = case.by_method(_method("by-parts", case))
    return replace(ramp, attention_factor=case.schedule.attention_factor)


@mistake("short-list", "the short list of factors, at every length")
def _short_list(case: Extension) -> Schedule | None:
    short = case.schedule.short_inv_freq
    if short is None:
        return None
    return replace(case.schedule, inv_freq=short, short_inv_freq=None)


@mistake("long-list", "the long list of factors, at every length")
def _long_list(case: Extension) -> Schedule:
    return replace(case.schedule, short_inv_freq=None)


@mistake(FULL_ROTATION, "the method over all dimensions of a head, where a part rotates")
def _full_rotation(case: Extension) -> Schedule:
    return case.over(replace(case.start, rotary_dim=case.start.head_dim))


@mistake("no-log-n", "the method without log-n")
def _no_log_n(case: Extension) -> Schedule:
    return replace(case.schedule, log_n=None)


def _method(name: str, case: Extension) -> Method:
    """Return a method with the factor of a case."""
    return REGISTRY[name](case.factor)  # type: ignore[call-arg]


def _with_factor(method: Method, factor: float) -> Method:
    """Return a method with its factor as a number, where it was given as a length."""
    if hasattr(method, "factor"):
        return replace(method, factor=factor)  # type: ignore[call-arg]
    return method
