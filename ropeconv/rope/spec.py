"""RopeSpec: the rotary embedding of a checkpoint, as its config or header declares it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from .errors import ImpossibleSize
from .forms import Form, InterpolatedForm, LongRope, Plain, Vector, Yarn, base_inv_freq, count_zero
from .lengths import MOST_TOKENS
from .schedule import QueryScaling, Schedule

FLOAT32_ROUNDING = 1.2e-7  # relative; float32 rounds by half of that


@dataclass(frozen=True)
class Proportional(Form):
    """`theta^(-2i/r) / factor` for the first int(partial_rotary_factor * r / 2) pairs, else 0.

    The exponents are those of the whole head, unlike in models that rotate a part of it. Barbero et
    al. 2024, https://arxiv.org/abs/2410.06205 (p-RoPE); transformers
    `_compute_proportional_rope_parameters`.
    """

    kind: ClassVar[str] = "proportional"
    factor: float = 1.0
    """Divides every frequency."""

    partial_rotary_factor: float = 1.0
    """The share of pairs that rotate, from 0 to 1."""

    @property
    def scaled(self) -> bool:
        return self.factor != 1.0 or self.partial_rotary_factor < 1.0

    def inv_freq(self, rotary_dim: int) -> Vector:
        rotating = int(self.partial_rotary_factor * rotary_dim // 2)
        index = np.arange(rotary_dim // 2)
        return np.where(index < rotating, base_inv_freq(self.theta, rotary_dim) / self.factor, 0.0)


def recognise(inv_freq: Vector, theta: float) -> Proportional | None:
    """Return the formula of the frequencies of a head in which only the first n pairs rotate.

    The formula of such a p-RoPE is theta^(-2i/r) / factor for the pairs i < n, and 0 for the other
    pairs of the r/2.

    Args:
        inv_freq: Radians per token, float64 [r/2].
        theta: A base that is tried before the base that the frequencies give.

    Returns:
        The formula; None where no formula gives these frequencies to within 1.2e-7.
    """
    # n pairs that rotate, and then one or more zeros
    zeros = count_zero(inv_freq)
    if zeros == 0:
        return None
    rotary_dim = 2 * len(inv_freq)  # r
    rotating_pairs = len(inv_freq) - zeros  # n
    rotating_inv_freq = inv_freq[:rotating_pairs]
    zeros_are_last = (rotating_inv_freq > 0).all()
    if not zeros_are_last:
        return None

    # the factor: theta^0 is 1, so the first frequency is 1 / factor
    factor = 1.0
    if rotating_pairs and abs(rotating_inv_freq[0] - 1) > FLOAT32_ROUNDING:
        factor = float(1 / rotating_inv_freq[0])

    # The base: the first frequency over the last is theta^(2 (n - 1) / r). Bases are usually round
    # numbers, so the result is tried rounded, and then exactly.
    bases = [theta]
    if rotating_pairs > 1 and rotating_inv_freq[0] > rotating_inv_freq[-1]:
        with np.errstate(over="ignore"):  # an infinite base fits no frequencies
            ratio = rotating_inv_freq[0] / rotating_inv_freq[-1]
            base = float(ratio ** (rotary_dim / (2 * (rotating_pairs - 1))))
        bases += [round(base, 3), base]

    share = share_of_pairs(rotating_pairs, rotary_dim)
    for base in bases:
        form = Proportional(base, factor, partial_rotary_factor=share)
        if np.allclose(form.inv_freq(rotary_dim), inv_freq, rtol=FLOAT32_ROUNDING, atol=0.0):
            return form
    return None


def rotating_share(form: Form, rotary_dim: int) -> float:
    """The share of the pairs of a form that rotate; those with the frequency 0 do not (p-RoPE).

    Args:
        form: The formula with its numbers.
        rotary_dim: The dimensions of a head that the formula is for: two for each pair.
    """
    if isinstance(form, Proportional):
        return form.partial_rotary_factor
    inv_freq = form.inv_freq(rotary_dim)  # one for each pair
    zeros = count_zero(inv_freq)
    if not zeros:
        return 1.0
    return share_of_pairs(len(inv_freq) - zeros, rotary_dim)


def share_of_pairs(rotating_pairs: int, rotary_dim: int) -> float:
    """The share of the rotary_dim / 2 pairs of a head that `rotating_pairs` are, in float64.

    As partial_rotary_factor it gives this number of pairs: int(share * rotary_dim // 2).
    """
    share = 2 * rotating_pairs / rotary_dim
    if int(share * rotary_dim // 2) == rotating_pairs:
        return share
    return math.nextafter(share, 2.0)  # rounding had cost a pair


LayerKind = Literal["global", "local", "none"]
Layout = Literal["half", "interleaved"]
ContextSource = Literal["config", "header", "receipt", "family", "factor", "declared"]


class TrainedLength(NamedTuple):
    """The tokens that a model was trained for, without its scaling, and how that is known."""

    tokens: int

    source: ContextSource
    """As `RopeSpec.original_context_source`."""

    reference: str = ""
    """Where a fact about the family is said; empty where the length is known otherwise."""


WIDEST_HEAD = 2_048
"""The widest head in dimensions; published models have up to 576."""
MOST_LAYERS = 10_000
"""Published models have up to 128."""


@dataclass(frozen=True)
class RopeSpec:
    """The rotary embedding of a checkpoint.

    Raises:
        ImpossibleSize: For heads, layers and lengths beyond the bounds of this module: what is
            computed from a spec takes time and memory in proportion to them.
    """

    head_dim: int
    """Width of one attention head (of its rotated part, for MLA)."""

    rotary_dim: int
    """How many of those dimensions rotate; `inv_freq` has half as many entries."""

    form: Form
    """The formula in force on the layers that a context extension changes."""

    original_context: int
    """Tokens the unscaled embedding was trained for."""

    context: int
    """Tokens the config declares."""

    attention_factor: float = 1.0
    """Multiplies cos and sin."""

    softmax_scale: float = 1.0
    """Multiplies every logit (DeepSeek's mscale)."""

    softmax_follows: bool = False
    """Whether the attention factor multiplies every logit too, as in llama.cpp's graphs of MLA."""

    layers: tuple[LayerKind, ...] = ()
    """Per layer "global" (rotates with `form`), "local" (with `local_form`), or "none" (NoPE)."""

    windows: tuple[int | None, ...] = ()
    """Per layer the tokens that it sees, its sliding window or chunk; None for the whole context.
    Empty means that every layer sees the whole context.
    """

    chunked: bool = False
    """Whether the windows are chunks (Llama 4)."""

    original_context_source: ContextSource = "declared"
    """How `original_context` is known.

    Declared by the config, the GGUF header or ropeconv's receipt, a fact about the family, the
    declared context divided by the factor, or the declared one itself.
    """

    original_context_reference: str = ""
    """The source of a fact about the family; empty where the context is known otherwise."""

    local_form: Form | None = None
    """The formula of the local layers; None without such layers."""

    local_rotary_dim: int = 0
    """How many dimensions rotate in the local layers; 0 where as many as in the others."""

    rotating_share: float = 1.0
    """The share of the pairs that rotate in the unscaled model, from the fastest on (p-RoPE)."""

    layout: Layout = "half"
    """Pairs are (i, i + r/2) in "half", (2i, 2i + 1) in "interleaved"."""

    mla: bool = False
    """Whether the model has multi-head latent attention."""

    query_scaling: QueryScaling | None = None
    """How queries scale with the position, in architectures that do so (Ministral 3)."""

    nope_query_scaling: QueryScaling | None = None
    """Query scaling of the layers that do not rotate (Llama 4), counted from position + 1."""

    mrope_section: tuple[int, ...] = ()
    """Pairs that rotate by the time, height and width of a token (M-RoPE); empty without."""

    notes: tuple[str, ...] = field(default=(), compare=False)
    """Sentences about defaults that were used in reading it."""

    def __post_init__(self) -> None:
        widest = max(self.rotary_dim, self.local_rotary_dim)
        layers = max(len(self.layers), len(self.windows))
        _check_size("a head_dim of {:,}", self.head_dim, WIDEST_HEAD)
        _check_size("{:,} rotating dimensions in a head", widest, WIDEST_HEAD)
        _check_size("{:,} layers", layers, MOST_LAYERS)
        _check_size("a trained context of {:,} tokens", self.original_context, MOST_TOKENS)
        _check_size("a context of {:,} tokens", self.context, MOST_TOKENS)

    @property
    def rope_theta(self) -> float:
        """The base theta of the layers that a context extension changes."""
        return self.form.theta

    @property
    def query_length(self) -> int:
        """The length of the query scaling in tokens; the trained context without one."""
        return self.query_scaling.length if self.query_scaling else self.original_context

    @property
    def covered_context(self) -> int:
        """The tokens that the scaling covers by its factor; 0 where that is not its meaning.

        YaRN is computed over a length of its own, which may differ from the trained context.
        Linear scaling has none. Llama 3.2 has a factor of 32 over 8,192 tokens, and was trained
        with 131,072.
        """
        form = self.form
        if isinstance(form, Yarn):
            return round(form.factor * form.original_context)
        if isinstance(form, InterpolatedForm):
            return round(form.factor * self.original_context)
        return 0

    @property
    def local_inv_freq(self) -> Vector | None:
        """The frequencies of the local layers, radians per token; None without local layers."""
        form = self.local_form
        if form is None:
            return None
        return form.inv_freq(self.local_rotary_dim or self.rotary_dim)

    @property
    def unrotated(self) -> float:
        """(d - r)/2, which the dimensions that do not rotate add to sum_i cos(m theta_i).

        For MLA, whose `head_dim` is only the rotated part, the content part is counted with the
        same width, r/2.
        """
        if self.mla:
            return self.rotary_dim / 2
        return (self.head_dim - self.rotary_dim) / 2

    @property
    def scaled(self) -> bool:
        """Whether the checkpoint has a context extension already."""
        if self.attention_factor != 1.0:
            return True
        if self.form == self.base_form(self.form.theta):  # the pairs of p-RoPE that stand still
            return False
        return self.form.scaled

    @property
    def rotating_pairs(self) -> int:
        """Pairs that rotate in the unscaled model: fewer than rotary_dim / 2 with p-RoPE."""
        return round(self.rotary_dim * self.rotating_share) // 2

    def base_form(self, theta: float) -> Form:
        """The formula of the unscaled model with another base."""
        if self.rotating_share == 1:
            return Plain(theta)
        return Proportional(theta, 1.0, self.rotating_share)

    def unscaled(self) -> RopeSpec:
        """The embedding without scaling: only its base, over the trained context."""
        form = self.base_form(self.rope_theta)
        return replace(
            self, form=form, attention_factor=1.0, softmax_scale=1.0, context=self.original_context
        )

    @property
    def fewest_turns(self) -> float:
        """How often the slowest pair that rotates turns within the context.

        From 1 on, a longer context has no angle that is new to a pair. With a theta of a million
        and 262,144 tokens, it is 1,393 where only a quarter of the pairs rotates (Gemma 4), and
        0.04 where all do.
        """
        inv_freq = self.current().inv_freq
        slowest = float(inv_freq[inv_freq > 0].min(initial=np.inf))
        return slowest * self.context / (2 * np.pi)

    def current(self) -> Schedule:
        """The frequencies and factors that the checkpoint computes now, as a Schedule."""
        form = self.form
        short = None
        with np.errstate(all="ignore"):  # Schedule refuses what is not finite
            inv_freq = form.inv_freq(self.rotary_dim)
            if isinstance(form, LongRope) and form.short_factor != form.long_factor:
                short = form.short_inv_freq(self.rotary_dim)

        return Schedule(
            inv_freq=inv_freq,
            attention_factor=self.attention_factor,
            context=self.context,
            original_context=self.original_context,
            form=form,
            short_inv_freq=short,
            softmax_scale=self.softmax_scale,
            query_scaling=self.query_scaling,
        )

    def count(self, kind: LayerKind) -> int:
        """Number of layers of a kind."""
        return sum(layer == kind for layer in self.layers)

    @property
    def first_of_each_kind(self) -> tuple[int, ...]:
        """The number of the first layer of each kind: by its RoPE, and by the window it sees."""
        first: dict[tuple[LayerKind, int | None], int] = {}
        for number, kind in enumerate(self.layers):
            window = self.windows[number] if self.windows else None
            first.setdefault((kind, window), number)
        return tuple(first.values()) or (0,)

    @property
    def window_kind(self) -> str:
        """The name of the windows of its layers, for sentences."""
        return "chunks" if self.chunked else "sliding window"

    @property
    def sliding_window(self) -> int | None:
        """The largest window, in tokens, of a model that sees the whole context in few layers.

        Most layers of such a model have a window, and others do not, as in Gemma 3. None for any
        other model.
        """
        sizes = [size for size in self.windows if size is not None]
        layers_without_window = len(self.windows) - len(sizes)
        if not 0 < layers_without_window < len(sizes):
            return None
        return max(sizes)

    @property
    def rotating_window(self) -> int | None:
        """The widest window of the layers that an extension changes, in tokens.

        None where one of them sees the whole context.
        """
        if not self.windows:  # no layer has one
            return None
        sizes = []
        for size, kind in zip(self.windows, self.layers, strict=False):
            # an extension changes "global" layers; "local" ones keep their RoPE, "none" have none
            if kind != "global":
                continue
            if size is None:
                return None
            sizes.append(size)
        return max(sizes, default=None)

    def sees_only_windows(self, trained: int) -> bool:
        """Whether no layer that rotates sees beyond a window within the trained context.

        Such layers see no distance that is new to them at a longer context, so no method can gain
        anything in them.

        Args:
            trained: The trained context in tokens.
        """
        pairs = list(zip(self.layers, self.windows, strict=False))
        for kind, window in pairs:
            if kind != "none" and (window is None or window > trained):
                return False
        return bool(pairs)

    def visible(self, context: int) -> int:
        """The largest distance, in tokens, that the layers an extension changes can see."""
        return min(context, self.rotating_window or context)


def _check_size(phrase: str, size: int, most: int) -> None:
    """Raise ImpossibleSize for more than `most`; `phrase` is formatted with the size."""
    if size > most:
        raise ImpossibleSize(f"{phrase.format(size)}, and models have at most {most:,}")
