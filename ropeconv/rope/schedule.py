"""Schedule: the frequencies, attention factor and lengths that a runtime must compute."""

import hashlib
import math
import struct
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from .errors import RecipeError, counted
from .forms import Form, Vector, simplify_crossed
from .lengths import MOST_TOKENS
from .summary import SummaryTable, TableSummary

LOSSLESS = 13
"""Exponent of the gain in the log-n approximation.

Weights times 2^-13 keep their bits, and both they and beta ln p fit into float16 at run time.
"""
IN_FLOAT32 = 1e-6
"""How far frequencies may differ, relatively, that are equal in float32."""
EXACT = 1e-3  # a deviation below this is less than bfloat16's own rounding of the scale


@dataclass(frozen=True)
class LogN:
    """Log-n: the query at position p times `ln(p + 1) / ln(length)`.

    Kind "clamped" takes 1 where that is below 1 (Su 2023, https://kexue.fm/archives/9948), "full"
    takes it everywhere (Su 2021, https://kexue.fm/archives/8823).

    Raises:
        RecipeError: For a length below 2, where it has no meaning.
    """

    kind: Literal["clamped", "full"]
    length: int
    """In tokens, at which the factor is 1."""

    def __post_init__(self) -> None:
        if self.length < 2:
            raise RecipeError(
                f"log-n over {self.length} token has no scale; pass a longer --log-n-length"
            )

    def scale(self, positions: Vector) -> Vector:
        """The factor of each query, float64, in the shape of `positions`."""
        ratio = np.log(np.asarray(positions, dtype=np.float64) + 1) / math.log(self.length)
        if self.kind == "clamped":
            return np.maximum(ratio, 1.0)
        return ratio


@dataclass(frozen=True)
class QueryScaling:
    """`gain (1 + beta ln(1 + floor(p / length)))`, the factor of the query at position p.

    Ministral 3 scales its queries so, and llama.cpp's mistral3.
    """

    beta: float
    length: int
    """In tokens."""

    gain: float = 1.0
    """1 in those classes; another one must be folded into the weights that make queries."""

    def scale(self, positions: Vector) -> Vector:
        """The factor of each query, float64, in the shape of `positions`."""
        steps = np.floor(np.asarray(positions, dtype=np.float64) / self.length)
        return np.asarray(self.gain * (1 + self.beta * np.log1p(steps)))


def approximate_log_n(log_n: LogN, exponent: int = LOSSLESS) -> QueryScaling:
    """The QueryScaling that comes nearest to log-n, for runtimes that compute only a QueryScaling.

    Both multiply the query at position p by a factor that grows with p:

        log-n "full"      ln(p + 1) / ln L
        log-n "clamped"   the same, but at least 1
        QueryScaling      gain (1 + beta ln(1 + floor(p / length)))

    For "clamped", length = L, beta = 1 / ln L and gain = 1 give a staircase: 1 for the first L
    positions, and `ln(kL) / ln L` for the k-th L positions, which is log-n at the last of them.

    For "full", length is 1, and beta = 2^exponent / ln L is so large that the 1 in front is
    negligible. The gain 2^-exponent takes the power of two back, and loses no bit of a weight.

    Args:
        log_n: The kind, and L in tokens.
        exponent: For "full", how large beta is, as a power of two.
    """
    log_length = math.log(log_n.length)
    if log_n.kind == "clamped":
        return QueryScaling(beta=1 / log_length, length=log_n.length)
    return QueryScaling(beta=2.0**exponent / log_length, length=1, gain=2.0**-exponent)


def effective_scaling(
    log_n: LogN | None, written: QueryScaling | None, deviation: float
) -> LogN | QueryScaling | None:
    """The scaling of queries that an output has: log-n, or what comes nearest to it.

    Args:
        log_n: The log-n of the schedule, None without one.
        written: The approximation in the output, from `approximate_log_n`; None without one.
        deviation: The relative deviation of `written` from `log_n`. Up to 1e-3, which is
            bfloat16's own rounding, they count as the same.
    """
    is_noticeable = deviation > EXACT
    if written is not None and is_noticeable:
        return written
    return log_n


def deviation(log_n: LogN, steps: QueryScaling, context: int) -> float:
    """The largest difference of a log-n approximation over a context, relative above 1."""
    # the approximation is constant within a step and log-n rises, so the ends of steps are enough
    starts = np.arange(0, context, steps.length, dtype=np.float64)
    ends = np.minimum(starts + steps.length, context) - 1
    positions = np.concatenate([starts, ends])
    exact = log_n.scale(positions)
    difference = np.abs(steps.scale(positions) - exact)
    return float(np.max(difference / np.maximum(exact, 1.0)))


@dataclass(frozen=True, eq=False)
class Schedule(TableSummary):
    """Frequencies, attention factor and length of one rotary embedding.

    Raises:
        RecipeError: When a number is not finite, a frequency is negative, or the attention factor
            is not positive.
    """

    inv_freq: Vector
    """float64, shape [rotary_dim / 2], radians per token; 0 for pairs that do not rotate."""

    attention_factor: float
    """Multiplies cos and sin, so logits of rotated dimensions scale by its square."""

    context: int
    """Tokens the result is meant for."""

    original_context: int
    """Tokens the unscaled model was trained for."""

    form: Form | None = None
    """A closed form that gives exactly `inv_freq`, where there is one."""

    short_inv_freq: Vector | None = None
    """LongRoPE's other list, in force while the sequence is within `original_context`."""

    softmax_scale: float = 1.0
    """Multiplies all logits (DeepSeek's mscale_all_dim, squared)."""

    log_n: LogN | None = None
    """Query scaling that the recipe adds."""

    query_scaling: QueryScaling | None = None
    """Query scaling that the architecture has (Ministral 3)."""

    record_keys: ClassVar[tuple[str, ...]] = (
        "pair",
        "inv_freq",
        "wavelength",
        "short_inv_freq",
    )

    def __post_init__(self) -> None:
        """Refuse numbers that no model can be run with.

        Raises:
            RecipeError: A number is not finite, not positive, or too large.
        """
        # methods compute with numpy, which gives nan or inf in place of an error
        for vector in (self.inv_freq, self.short_inv_freq):
            if vector is None:
                continue
            if not np.isfinite(vector).all() or (vector < 0).any():
                raise RecipeError(
                    "the method gives frequencies that are negative or not finite; check its"
                    " parameters"
                )

        if not (math.isfinite(self.attention_factor) and self.attention_factor > 0):
            raise RecipeError(
                f"attention_factor is {self.attention_factor}; pass a positive number with"
                " --attention-factor"
            )

        if self.context > MOST_TOKENS:
            raise RecipeError(
                f"the context would be {self.context:,} tokens, and runtimes count up to"
                f" {MOST_TOKENS:,}"
            )
        if self.context < 1:
            raise RecipeError(f"the context is {self.context} tokens; pass a positive --context")

    @property
    def sentence(self) -> str:
        """The number of pairs and the lengths in words."""
        pairs = counted(len(self.inv_freq), "pair")
        return f"{pairs} for {self.context:,} tokens, trained on {self.original_context:,}."

    def summary(self) -> dict[str, str]:
        """The values that are shown, by name."""
        values = {
            "sentence": self.sentence,
            "context": f"{self.context:,} tokens",
            "original_context": f"{self.original_context:,} tokens",
            "attention_factor": f"{self.attention_factor:.6g}",
            "softmax_scale": "",
            "log_n": "",
            "query_scaling": "",
            "digest": self.digest,
        }
        if self.softmax_scale != 1:
            values["softmax_scale"] = f"{self.softmax_scale:.6g}"
        if self.log_n is not None:
            values["log_n"] = f"{self.log_n.kind}, over {self.log_n.length:,} tokens"
        if self.query_scaling is not None:
            scaling = self.query_scaling
            values["query_scaling"] = f"beta {scaling.beta:.6g} over {scaling.length:,}"
        return values

    def shown_tables(self) -> list[SummaryTable]:
        """A table with a row for each pair, with wavelengths in tokens."""
        rows = []
        for row in self.records():
            cells = [f"{row['pair']}", f"{row['inv_freq']:.6g}", f"{row['wavelength']:,.6g}"]
            if self.short_inv_freq is not None:
                cells.append(f"{row['short_inv_freq']:.6g}")
            rows.append(cells)
        columns: tuple[str, ...] = ("pair", "inv_freq", "wavelength")
        if self.short_inv_freq is not None:
            columns += ("short_inv_freq",)
        return [SummaryTable("inv_freq", columns, rows)]

    def records(self) -> list[dict[str, Any]]:
        """A row for each pair: its number, frequency, wavelength in tokens, and short frequency.

        A pair that does not rotate has an infinite wavelength.
        """
        rows = []
        for pair, frequency in enumerate(self.inv_freq.tolist()):
            row = {
                "pair": pair,
                "inv_freq": frequency,
                "wavelength": math.tau / frequency if frequency else math.inf,
                "short_inv_freq": None,
            }
            if self.short_inv_freq is not None:
                row["short_inv_freq"] = float(self.short_inv_freq[pair])
            rows.append(row)
        return rows

    def computes_same(self, other: "Schedule", tolerance: float = 0.0) -> bool:
        """Whether another schedule has the same frequencies and the same two factors on logits.

        Args:
            other: The other schedule.
            tolerance: How far frequencies may differ, relative to those of the other.
        """
        if self.inv_freq.shape != other.inv_freq.shape:
            return False
        has_same_frequencies = np.allclose(self.inv_freq, other.inv_freq, rtol=tolerance, atol=0)
        has_same_factor = self.attention_factor == other.attention_factor
        has_same_scale = self.softmax_scale == other.softmax_scale
        return bool(has_same_frequencies) and has_same_factor and has_same_scale

    def simplify_crossed(self) -> "Schedule":
        """The schedule with a form that llama.cpp computes too (`forms.simplify_crossed`)."""
        if self.form is None:
            return self
        return replace(self, form=simplify_crossed(self.form, 2 * len(self.inv_freq)))

    def keeps_frequencies(self, before: "Schedule") -> bool:
        """Whether it has the frequencies of another schedule, as far as float32 tells them apart.

        The attention factor and the scaling of queries may differ.

        Args:
            before: The other schedule.
        """
        pairs = [(self.inv_freq, before.inv_freq)]
        if self.short_inv_freq is not None or before.short_inv_freq is not None:
            pairs.append((self._short_or_only, before._short_or_only))
        for vector, other in pairs:
            if vector.shape != other.shape:
                return False
            if not np.allclose(vector, other, rtol=IN_FLOAT32, atol=0):
                return False
        return True

    @property
    def _short_or_only(self) -> Vector:
        """The frequencies for short prompts; of one list, those for all."""
        if self.short_inv_freq is None:
            return self.inv_freq
        return self.short_inv_freq

    @property
    def digest(self) -> str:
        """sha256 over all numbers that change a logit.

        Schedules of equal digest compute the same model.
        """
        parts = [b"ropeconv schedule 1"]
        for vector in (self.inv_freq, self.short_inv_freq):
            if vector is None:
                parts.append(b"")
            else:
                parts.append(np.ascontiguousarray(vector, dtype="<f8").tobytes())
        parts.append(struct.pack("<dd", self.attention_factor, self.softmax_scale))
        if self.log_n is not None:
            parts.append(f"{self.log_n.kind} {self.log_n.length}".encode())
        if self.query_scaling is not None:
            scaling = self.query_scaling
            # "staircase" is what it was called in the first version: a digest stays what it was
            numbers = struct.pack("<ddq", scaling.beta, scaling.gain, scaling.length)
            parts.append(b"staircase" + numbers)

        # with their lengths in front, no two lists of parts are the same bytes
        lengths = b"".join(struct.pack("<q", len(part)) for part in parts)
        return hashlib.sha256(lengths + b"".join(parts)).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-ready data, with the digest; numbers round-trip float64."""
        data: dict[str, Any] = {
            "inv_freq": [float(value) for value in self.inv_freq],
            "attention_factor": self.attention_factor,
            "context": self.context,
            "original_context": self.original_context,
        }

        if self.short_inv_freq is not None:
            data["short_inv_freq"] = [float(value) for value in self.short_inv_freq]
        if self.softmax_scale != 1.0:
            data["softmax_scale"] = self.softmax_scale
        if self.log_n is not None:
            data["log_n"] = asdict(self.log_n)
        if self.query_scaling is not None:
            data["query_scaling"] = asdict(self.query_scaling)
        return data | {"digest": self.digest}
