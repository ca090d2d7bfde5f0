"""Schedule: the frequencies, attention factor and lengths that a runtime has to compute, however they are written."""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from .lazy import np

if TYPE_CHECKING:
    from .forms import Vector

from .errors import RecipeError
from .forms import Form
from .lengths import MOST_TOKENS
from .log_n import LogN, QueryScaling


@dataclass(frozen=True, eq=False)
class Schedule:
    """Frequencies, attention factor and length of one rotary embedding.

    inv_freq: float64, shape [rotary_dim / 2], radians per token; 0 for pairs that do not rotate.
    attention_factor: multiplies cos and sin, so logits of rotated dimensions scale by its square.
    context: tokens the result is meant for. original_context: tokens the unscaled model was trained for.
    form: a closed form that gives exactly `inv_freq`, where there is one.
    short_inv_freq: LongRoPE's other list, in force while the sequence is within `original_context`.
    softmax_scale: multiplies all logits (DeepSeek's mscale_all_dim, squared).
    log_n: query scaling that the recipe adds. query_scaling: query scaling that the architecture has (Ministral 3).

    Raises RecipeError when a number is not finite, a frequency is negative, or the attention factor is not positive.
    """

    inv_freq: Vector
    attention_factor: float
    context: int
    original_context: int
    form: Form | None = None
    short_inv_freq: Vector | None = None
    softmax_scale: float = 1.0
    log_n: LogN | None = None
    query_scaling: QueryScaling | None = None

    def __post_init__(self) -> None:
        for vector in (self.inv_freq, self.short_inv_freq):
            if vector is not None and not (np.isfinite(vector).all() and (vector >= 0).all()):
                raise RecipeError("the method gives frequencies that are negative or not finite; check its parameters")
        if not (math.isfinite(self.attention_factor) and self.attention_factor > 0):
            raise RecipeError(
                f"attention_factor is {self.attention_factor}; pass a positive number with --attention-factor"
            )
        if self.context > MOST_TOKENS:
            raise RecipeError(f"the context would be {self.context:,} tokens, and runtimes count up to {MOST_TOKENS:,}")
        if self.context < 1:
            raise RecipeError(f"the context is {self.context} tokens; pass a positive --context")

    @property
    def digest(self) -> str:
        """sha256 over all numbers that change a logit; schedules of equal digest compute the same model."""
        parts = [b"ropeconv schedule 1"]
        for vector in (self.inv_freq, self.short_inv_freq):
            parts.append(b"" if vector is None else np.ascontiguousarray(vector, dtype="<f8").tobytes())
        parts.append(struct.pack("<dd", self.attention_factor, self.softmax_scale))
        if self.log_n is not None:
            parts.append(f"{self.log_n.kind} {self.log_n.length}".encode())
        if self.query_scaling is not None:
            scaling = self.query_scaling
            # "staircase" is what it was called in the first version: a digest stays what it was
            parts.append(b"staircase" + struct.pack("<ddq", scaling.beta, scaling.gain, scaling.length))
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
