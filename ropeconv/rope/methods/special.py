"""Methods without a formula of their own: a dynamic method frozen at a length, and the RoPE as it is."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from ..errors import RecipeError, shown
from ..forms import DynamicNtk, Plain
from ..lengths import format_tokens
from ..schedule import Schedule
from ..spec import RopeSpec
from .method import Method, Value, param, register, switch, tokens
from .ntk import Linear
from .parts import ByParts, YarnMethod


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
        "Peng et al. put s = n / L into the formula of a method; transformers' dynamic NTK puts S n / L - (S - 1) "
        "into that of NTK, which is 3 and not 2 at n = 2 L with S = 2. `ntk` here is that of transformers.",
    )
    value = Value.TEXT

    kind: str = param(lambda v: None if isinstance(v, str) else "must be written METHOD:S", "METHOD:S, as in ntk:2")
    at: int | None = param(tokens, "the length at which a dynamic method is frozen, in tokens", None)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.parts()

    def parts(self) -> tuple[str, float]:
        """The name of the inner method and its factor S. Raises RecipeError for another spelling than METHOD:S."""
        match = re.fullmatch(r"(linear|ntk|by-parts|yarn):(\d{1,6}(?:\.\d{1,20})?)", self.kind)
        if not match or float(match[2]) < 1:
            raise RecipeError(
                "--dynamic takes METHOD:S with METHOD one of linear, ntk, by-parts, yarn and S >= 1, not "
                f"{shown(self.kind)}"
            )
        return match[1], float(match[2])

    @property
    def label(self) -> str:
        return f"{self.name}-{self.kind.replace(':', '')}"

    @property
    def length(self) -> int | None:
        """The length at which the method is frozen, in tokens."""
        return self.at

    def longer(self, context: int, original: int) -> str:
        """The flags with which this method reaches a context: `--dynamic yarn:8 --at 512k`.

        context, original: as in `Method.longer`.
        """
        name, factor = self.parts()
        factor = factor if name == "ntk" else max(factor, math.ceil(context / original))
        return f"{self.flag()} {name}:{factor:g} --at {format_tokens(context)}"

    def relative(self, declared: int, original: int) -> Method:
        """The method with its length as it sees it. declared, original: as in `Method.relative`."""
        return self if self.at is None else replace(self, at=max(1, round(self.at * original / declared)))

    def schedule(self, spec: RopeSpec) -> Schedule:
        name, factor = self.parts()
        if self.at is None:
            raise RecipeError("--dynamic changes with the sequence; say with --at TOKENS at which length to freeze it")
        ratio = max(1.0, self.at / spec.original_context)
        if name == "ntk":
            growth = max(1.0, factor * ratio - (factor - 1))
            form = Plain(spec.rope_theta * growth ** (spec.rotary_dim / (spec.rotary_dim - 2)))
            return Schedule(form.inv_freq(spec.rotary_dim), 1.0, self.at, spec.original_context, form)
        if ratio > factor:
            reach = round(factor * spec.original_context)
            raise RecipeError(f"--at {self.at} is beyond {factor:g} x {spec.original_context}; choose up to {reach}")
        inner = {"linear": Linear, "by-parts": ByParts, "yarn": YarnMethod}[name](ratio)
        frozen = inner.schedule(spec)
        return Schedule(frozen.inv_freq, frozen.attention_factor, self.at, spec.original_context, frozen.form)


@register
@dataclass(frozen=True)
class AsIs(Method):
    """The schedule that the checkpoint has already, written so that the old and the new schema of configs agree."""

    name = "as-is"
    order = 160
    summary = "keep the RoPE, rewrite the config consistently"
    paper = "-"
    value = Value.SWITCH
    keeps_zeros = True

    on: bool = param(switch, "keep the embedding as it is", True)

    @property
    def label(self) -> str:
        return self.name

    def schedule(self, spec: RopeSpec) -> Schedule:
        if isinstance(spec.form, DynamicNtk):
            raise RecipeError(
                "--as-is cannot keep dynamic scaling, which changes with the sequence; freeze it with "
                f"--dynamic ntk:{spec.form.factor:g} --at TOKENS --replace"
            )
        return spec.current()
