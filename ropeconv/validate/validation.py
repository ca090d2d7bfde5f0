"""Validation, the result of a comparison of logits, and the rule by which it agrees.

`measure` compares logits, `bucket_result` judges a range of positions by them, and `conclusion` all
ranges.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from ..engines.engine import LogProbs
from ..formats.jsontext import JsonObject
from ..rope.summary import SummaryTable, TableSummary
from .sampling import Bucket

if TYPE_CHECKING:
    from torch import Tensor

BLOCK_BYTES = 64 << 20
"""Bytes of one matrix [positions, vocabulary] in float32."""
SMALL_DIFFERENCE = 0.1
"""A difference of log-probabilities below which e^-d - 1 + d is computed by `expm1`."""


@dataclass(frozen=True)
class Measures:
    """Measures between two sets of logits per position, as tensors of shape [positions]."""

    kl: Tensor
    """KL(reference || other) in nats; for hidden states see `measure_states`."""

    max_dlogit: Tensor
    """The largest difference of a logit, or of a number of hidden states."""

    top1: Tensor
    """1 if the likeliest token is the same, else 0; NaN for hidden states."""

    top5: Tensor
    """The share of the five likeliest tokens that both have; NaN for hidden states."""

    loss_reference: Tensor
    """The loss of the next token by the reference in nats; NaN if the token is not known."""

    loss_other: Tensor
    """The loss of the next token by the other side in nats; NaN if the token is not known."""

    cosine: Tensor | None = None
    """The cosine of hidden states; None for logits."""

    def __getitem__(self, rows: slice) -> Measures:
        """Return the measures of some positions."""
        cosine = self.cosine
        if cosine is not None:
            cosine = cosine[rows]
        return Measures(
            kl=self.kl[rows],
            max_dlogit=self.max_dlogit[rows],
            top1=self.top1[rows],
            top5=self.top5[rows],
            loss_reference=self.loss_reference[rows],
            loss_other=self.loss_other[rows],
            cosine=cosine,
        )


def measure(
    reference: Tensor, other: Tensor, targets: Tensor | None = None, temperature: float = 1.0
) -> Measures:
    """Compare logits of shape [positions, vocabulary].

    Args:
        reference: Logits of the reference.
        other: Logits of the output.
        targets: The next tokens [positions], -1 for an unknown one.
        temperature: Divides the logits for the KL.
    """
    import torch

    # KL(p || q) of the two distributions
    reference = reference.float()
    other = other.float()
    p = torch.log_softmax(reference / temperature, dim=-1)
    q = torch.log_softmax(other / temperature, dim=-1)
    kl = _kl(p, q)

    # which of the five likeliest tokens of the reference are among the five of the output
    width = min(5, reference.shape[-1])
    likely = reference.topk(width, dim=-1).indices
    likely_other = other.topk(width, dim=-1).indices
    in_both = (likely[:, :, None] == likely_other[:, None, :]).any(dim=-1)

    # losses of the next token, which are without the temperature
    if temperature != 1:
        p = torch.log_softmax(reference, dim=-1)
        q = torch.log_softmax(other, dim=-1)
    return Measures(
        kl=kl.cpu().double(),
        max_dlogit=(reference - other).abs().amax(dim=-1).cpu(),
        top1=(likely[:, 0] == likely_other[:, 0]).float().cpu(),
        top5=in_both.float().mean(dim=-1).cpu(),
        loss_reference=_losses(p, targets),
        loss_other=_losses(q, targets),
    )


def _kl(p: Tensor, q: Tensor) -> Tensor:
    """Return the KL divergence KL(p || q) of two distributions in nats, [positions].

    It is summed as `p (d + e^-d - 1)`, d = ln p - ln q, whose terms are positive: it resolves 1e-12
    in float32, while sums of `p d` resolve 1e-7.

    Args:
        p: Log-probabilities ln p, [positions, vocabulary].
        q: Log-probabilities ln q, likewise.
    """
    import torch

    d = p - q
    share = p.exp()
    near = share * (torch.expm1(-d) + d)  # exact where d is small
    far = share * d - share + q.exp()  # the same, without an overflow of e^-d
    terms = torch.where(d.abs() < SMALL_DIFFERENCE, near, far)
    return terms.sum(dim=-1).clamp(min=0)


def _losses(log_probs: Tensor, targets: Tensor | None) -> Tensor:
    """Return the losses of the next tokens, [positions]; NaN for unknown ones."""
    import torch

    if targets is None:
        return torch.full(log_probs.shape[:1], torch.nan)
    ahead = targets.to(log_probs.device)
    losses = -log_probs.gather(1, ahead.clamp(min=0)[:, None])[:, 0]
    return torch.where(ahead < 0, torch.nan, losses).cpu()


def in_blocks(measured: Callable[[slice], Measures], count: int, vocabulary: int) -> Measures:
    """Return the measures of many positions, computed in blocks with at most 64 MiB of logits.

    Args:
        measured: Returns the measures of a slice of the positions.
        count: The number of positions.
        vocabulary: The number of logits per position.
    """
    bytes_per_position = 4 * vocabulary  # float32
    block = max(1, BLOCK_BYTES // bytes_per_position)
    parts = []
    for first in range(0, count, block):
        last = min(first + block, count)
        parts.append(measured(slice(first, last)))
    return _concatenate(parts)


def _concatenate(parts: Sequence[Measures]) -> Measures:
    """Return the measures of several parts as one: the numbers of all their positions in order."""
    import torch

    def join(name: str) -> Tensor:
        return torch.cat([getattr(part, name) for part in parts])

    return Measures(
        kl=join("kl"),
        max_dlogit=join("max_dlogit"),
        top1=join("top1"),
        top5=join("top5"),
        loss_reference=join("loss_reference"),
        loss_other=join("loss_other"),
        cosine=None if parts[0].cosine is None else join("cosine"),
    )


def spread_of(logits: Tensor) -> float:
    """Return the standard deviation of logits over the vocabulary, as the root mean square.

    At this temperature a softmax is neither one-hot nor uniform, so its KL grows with the square of
    the relative error of the logits, whatever their scale. 1 if all logits of a position are equal.

    Args:
        logits: [positions, vocabulary]
    """
    spread = float(logits.double().var(dim=-1, correction=0).mean().sqrt())
    return spread or 1.0


KL_FLOOR = 1e-5
"""Noise of float32 between different kernels; wrong frequencies give 1e-2 and more."""
SAME_KERNELS = 1e-5
"""Noise between the same kernels; 3e-7 is measured.

Sharp models with frequencies rounded differently have 7e-6.
"""
ANGLE_ERROR = 2.0**-22
"""Rounding of position * inv_freq and of inv_freq itself, in float32."""
KL_RESOLUTION = 1e-12
"""The resolution of a KL in float32."""
SEPARATION = 10.0
"""How many times as far as allowed the unscaled source must be from the reference."""
DEVIATIONS = 4.0
"""Standard errors of a mean that are allowed beside it."""
NOISE_MARGIN = 0.1
"""The part of a measured noise that is allowed beside it.

Two ways of rounding are not equally far from a third.
"""
ENOUGH_POWER = 1000.0
"""The control over the tolerance, if errors of 3 % of the change by the method are noticed."""
ENOUGH_DETAIL = 100.0
"""A faint fault over the tolerance."""
NOISE_FACTOR = 5.0
"""How many times the noise floor is allowed."""
MEAN_NOISE_FACTOR = 2.0
"""How many times a mean is allowed: those of a hundred positions differ by a quarter from run to
run.
"""


STATES = "hidden states are compared, and half of their squared relative error is called KL: "


def rule(floor: float, states: bool = False) -> str:
    """Return the sentence of the report that says how an output was judged.

    Args:
        floor: The KL in nats that is allowed at position 0 without noise.
        states: Whether hidden states were compared, for a model without logits.
    """
    # A bucket is a range of positions. 2^-22 is the relative error of an angle, the product of a
    # position and a frequency in float32, on both sides together (`tolerance`).
    agreement = (
        f"a bucket agrees when 95 % of its positions have a KL of at most {floor:g} + (last"
        f" position * 2^-22)^2 + {NOISE_FACTOR:g} x the noise floor"
    )
    # the unscaled source must not agree (`BucketResult.is_distinguished`)
    control = (
        f"beyond the trained context the unscaled source must have {SEPARATION:g} times that KL"
    )
    # runs of the same model that differ only by rounding (`HiddenStates.noise_floor`); a fold is a
    # factor that was multiplied into weights
    noise_floor = (
        "the noise floor is the sum of the KLs of the reference from itself in other chunks, with"
        " frequencies two steps of float32 away, and with weights rounded as a fold rounds them, or"
        " in low precision a fifth of the KL from float32 (all of it with a fold), the largest up"
        " to that bucket"
    )
    # the smallest fault that must be noticed (`tolerance`)
    faint_fault = (
        "without noise, at most a hundredth of the KL of the reference with all attention scores"
        " 2 % larger is allowed"
    )
    words = "; ".join([agreement, control, noise_floor, faint_fault])
    if states:
        return STATES + words
    return words


RULE = rule(KL_FLOOR)


@dataclass(frozen=True)
class BucketResult:
    """Figures of one bucket of positions: how far the output is from the reference.

    A bucket agrees if 95 % of its positions are within the tolerance: a wrong rotation shows
    everywhere, while rounding may change the choice of a router of experts at single tokens. Where
    hidden states are compared, the KL is half of their squared relative error.
    """

    name: str
    """Its positions, such as `0-1,023`."""

    last: int
    """Its last position."""

    kl_mean: float
    """The mean KL in nats."""

    kl_95: float
    """The 95th percentile of the KL in nats."""

    kl_max: float
    """The largest KL in nats."""

    max_dlogit: float
    """The largest difference of a logit, or of a number of hidden states."""

    top1: float | None
    """The share of positions with the same likeliest token; None for hidden states."""

    control_kl: float
    """The mean KL of the unscaled source in nats."""

    tolerance: float
    """The allowed KL in nats."""

    agrees: bool
    """Whether it agrees by the rule."""

    top5: float | None = 1.0
    """The share of equal tokens among the five likeliest; None for hidden states."""

    loss_reference: float | None = None
    """The mean loss of the next token by the reference in nats; None if it is not known."""

    loss_baked: float | None = None
    """The mean loss of the next token by the output in nats; None if it is not known."""

    noise_kl: float = 0.0
    """The noise floor in nats: a 95th percentile, or a mean with `rounded_weights`."""

    run: Literal["spread", "whole"] = "spread"
    """Either "spread", a few tokens over the whole range, or "whole", every token before it."""

    rounded_weights: bool = False
    """Whether weights are not in float32, so that the mean KL is compared."""

    cosine: float | None = None
    """The 5th percentile of the cosine of hidden states; None for logits."""

    @property
    def compared_kl(self) -> float:
        """The KL that is compared: the 95th percentile, or for quantised weights the mean."""
        return self.kl_mean if self.rounded_weights else self.kl_95

    def figure(self, kl: float) -> str:
        """Return a KL of this bucket in words, for hidden states the relative error behind it."""
        name = "KL" if self.cosine is None else "relative error"
        return f"{name} {_shown_size(self, kl):.2e}"

    @property
    def is_distinguished(self) -> bool:
        """Whether the unscaled source differs enough.

        The KLs of independent errors add, so the control has the noise too: what a fault adds to it
        is compared with what it may add unnoticed.
        """
        if self.rounded_weights:
            fault = self.control_kl - self.noise_kl
            unnoticed = self.tolerance - self.noise_kl
            # the tolerance is often a part of the control, and equal except for rounding
            return fault * (1 + 1e-9) >= SEPARATION * unnoticed
        return self.control_kl >= SEPARATION * max(self.kl_95, self.tolerance)


def _shown_size(bucket: BucketResult, kl: float) -> float:
    """Return a KL; for hidden states the relative error e for which `kl` is e^2 / 2."""
    if bucket.cosine is None:
        return kl
    return math.sqrt(2 * kl)


OPTIONAL = ("KL max", "max |dlogit|", "top-5", "KL mean", "top-1")
"""Columns that are shown only where all numbers are asked for."""


def describe_bucket(bucket: BucketResult) -> dict[str, str]:
    """Return the row of a bucket for people, by column."""
    if bucket.cosine is None:
        return _describe_logits(bucket)
    return _describe_states(bucket)


def _describe_states(bucket: BucketResult) -> dict[str, str]:
    """Return the row of a bucket of hidden states, with relative errors instead of KLs."""

    def error(kl: float) -> str:
        """Return the relative error e, for which `measure_states` has e^2 / 2 as a KL."""
        return f"{math.sqrt(2 * kl):.1e}"

    return {
        "positions": bucket.name,
        "relative error": error(bucket.kl_mean),
        "95 %": error(bucket.kl_95),
        "max": error(bucket.kl_max),
        "allowed": error(bucket.tolerance),
        "cosine": f"{bucket.cosine:.9f}",
        "unscaled source": error(bucket.control_kl),
        "": "agrees" if bucket.agrees else "disagrees",
    }


def _describe_logits(bucket: BucketResult) -> dict[str, str]:
    """Return the row of a bucket of logits, by column."""
    return {
        "positions": bucket.name,
        "KL mean": f"{bucket.kl_mean:.1e}",
        "KL 95 %": f"{bucket.kl_95:.1e}",
        "KL max": f"{bucket.kl_max:.1e}",
        "allowed": f"{bucket.tolerance:.1e}",
        "max |dlogit|": f"{bucket.max_dlogit:.1e}",
        "top-1": _describe_share(bucket.top1),
        "top-5": _describe_share(bucket.top5),
        "unscaled source": f"KL {bucket.control_kl:.1e}",
        "": _describe_verdict(bucket),
    }


def _describe_verdict(bucket: BucketResult) -> str:
    """Return whether a bucket agrees, and whether a wrong output would not.

    In a GGUF file with weights of two bits (IQ2), quantisation changes the logits as much as the
    method does, so that the unscaled source agrees with its checkpoint too.
    """
    if not bucket.agrees:
        return "disagrees"
    has_control = bucket.control_kl > 0  # a method that changes nothing has none
    if bucket.rounded_weights and has_control and not bucket.is_distinguished:
        return "not decisive"
    return "agrees"


def _describe_share(share: float | None) -> str:
    """Return a share of positions in percent; a dash for an unknown one."""
    if share is None:
        return "-"
    return f"{share:.1%}"


def hidden_columns(buckets: Sequence[BucketResult]) -> tuple[str, ...]:
    """Return the columns that are left out by default: of two KLs, the one that is not compared."""
    if not buckets[0].rounded_weights:
        return OPTIONAL
    kept = [name for name in OPTIONAL if name != "KL mean"]
    return (*kept, "KL 95 %")


@dataclass(frozen=True)
class Validation(TableSummary):
    """The result of a comparison over all buckets. All KL in nats."""

    transformers: str
    """The version of transformers, or empty."""

    device: str

    digest: str
    """The digest of the schedule."""

    tokens: int
    """Tokens of a spread run."""

    seed: int
    buckets: tuple[BucketResult, ...]
    agrees: bool

    sentence: str
    """The result for people."""

    runtime: str = "transformers"
    """Name and version of the runtime."""

    dtype: str = "float32"

    length: int = 0
    """Tokens of the run over every position; 0 without one."""

    chunk: int = 0
    """Tokens read at a time."""

    partial: bool = False
    """Whether it was stopped early."""

    curve: tuple[tuple[int, float], ...] = ()
    """Position and KL along the run over every position."""

    speed: dict[str, float] = field(default_factory=dict)
    """Tokens per second of whole runs."""

    frequencies: dict[str, list[float]] = field(default_factory=dict)
    """Frequencies "before" and "after", in radians per token."""

    lengths: dict[str, int] = field(default_factory=dict)
    """The "trained" and the "new" context, in tokens."""

    reached: int = 0
    """Up to how many tokens positions were compared."""

    unchecked: tuple[str, ...] = ()
    """Properties that this run cannot check, as phrases."""

    score_factor: float = 1.0
    """The factor of the attention scores of both sides."""

    temperature: float = 1.0
    """The divisor of logits for the KL."""

    rule: str = RULE
    """The rule by which a bucket agrees, in a sentence."""

    record_keys: ClassVar[tuple[str, ...]] = tuple(item.name for item in fields(BucketResult))

    def summary(self) -> dict[str, str]:
        """Return what is shown, by name."""
        return {
            "sentence": self.sentence,
            "agrees": "yes" if self.agrees else "no",
            "runtime": f"{self.runtime} {self.transformers}".strip(),
            "device": self.device,
            "dtype": self.dtype,
            "unchecked": "; ".join(self.unchecked),
        }

    def shown_tables(self) -> list[SummaryTable]:
        """Return a table for each kind of run, with a row for each bucket of positions."""
        tables = []
        for run in ("spread", "whole"):
            buckets = [bucket for bucket in self.buckets if bucket.run == run]
            if not buckets:
                continue

            hidden = hidden_columns(buckets)
            rows = [describe_bucket(bucket) for bucket in buckets]
            columns = [name for name in rows[0] if name not in hidden]
            cells = [[row[name] for name in columns] for row in rows]
            table = SummaryTable(
                name="buckets", columns=tuple(columns), rows=cells, title=f"{run} run"
            )
            tables.append(table)
        return tables

    def records(self) -> list[JsonObject]:
        """Return a row for each bucket of positions."""
        return [asdict(bucket) for bucket in self.buckets]

    def to_dict(self) -> JsonObject:
        """Return the fields as JSON-ready data; keys stay within a schema."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: JsonObject) -> Validation:
        """Return the result of `to_dict` data, which may have further keys."""
        names = {item.name for item in fields(cls)}
        known = {key: value for key, value in data.items() if key in names}
        known["buckets"] = tuple(BucketResult(**bucket) for bucket in data["buckets"])
        return cls(**known)


def tolerance(last: int, noise: float, floor: float = KL_FLOOR, faint: float = math.inf) -> float:
    """Return the KL in nats that a right output may have in a range of positions.

    `min(floor + (last * 2^-22)^2, max(faint / 100, 1e-12)) + 5 * noise`

    Args:
        last: The last position of the range.
        noise: The KL that rounding causes.
        floor: The KL that is allowed at position 0 without noise.
        faint: The KL of the smallest fault that must be noticed: attention scores that are 2 %
            larger. Infinite if it was not measured.
    """
    # Angles are products of a position and a frequency, which float32 rounds. At position 131,071
    # the angles of both sides may differ by 131,071 * 2^-22 = 0.03 radians, and the KL by the
    # square of that, 1e-3.
    angle_error = last * ANGLE_ERROR
    allowed_by_angles = floor + angle_error**2

    # A hundredth of the smallest fault, and at least the smallest KL that float32 can show.
    allowed_by_fault = max(faint / ENOUGH_DETAIL, KL_RESOLUTION)
    return min(allowed_by_angles, allowed_by_fault) + NOISE_FACTOR * noise


def bucket_result(
    bucket: Bucket,
    measures: Measures,
    control_kl: float,
    noise: float = 0.0,
    kind: Literal["spread", "whole"] = "spread",
    allowed: float | None = None,
) -> BucketResult:
    """Return the result of a bucket, which agrees if 95 % of its positions are within a tolerance.

    A bucket is a range of positions whose logits are compared, such as 0 to 8,191.

    Args:
        bucket: The bucket.
        measures: The measures of its positions, between the reference and the output.
        control_kl: The mean KL of the unscaled source, in nats.
        noise: The noise floor, in nats.
        kind: The kind of the run that it is a part of.
        allowed: The tolerance, by default that at its end.
    """
    last = bucket.positions[-1]
    if allowed is None:
        allowed = tolerance(last, noise)
    kl_95 = measures.kl.quantile(0.95).item()
    lowest_cosine = None
    if measures.cosine is not None:
        lowest_cosine = measures.cosine.quantile(0.05).item()

    return BucketResult(
        name=bucket.name,
        run=kind,
        last=last,
        agrees=kl_95 <= allowed,
        tolerance=allowed,
        noise_kl=noise,
        control_kl=control_kl,
        kl_mean=measures.kl.mean().item(),
        kl_95=kl_95,
        kl_max=measures.kl.max().item(),
        max_dlogit=measures.max_dlogit.max().item(),
        top1=_mean(measures.top1),
        top5=_mean(measures.top5),
        loss_reference=_mean(measures.loss_reference),
        loss_baked=_mean(measures.loss_other),
        cosine=lowest_cosine,
    )


def _mean(values: Tensor) -> float | None:
    """Return the mean of the known values; None where none is known."""
    mean = float(values.nanmean())
    return None if math.isnan(mean) else mean


def with_rounded_weights(
    result: BucketResult, noise: float = 0.0, separation: float = SEPARATION
) -> BucketResult:
    """Judge a range of positions by its mean KL, for an output with rounded weights (Q4_K).

    Rounding changes the logits at every position a little. The mean KL may be at most

        max(tolerance + 2 * noise, control_kl / separation)

    where `control_kl` is the KL of the unscaled source from the reference.

    Args:
        result: The result for other outputs, which are judged by the 95th percentile of the KL.
        noise: The mean KL in nats between both programs when both run the unscaled source; 0 if it
            was not measured.
        separation: How many times smaller than `control_kl` the KL of the output must be. Infinite
            to allow the noise only.
    """
    allowed_for_noise = result.tolerance + MEAN_NOISE_FACTOR * noise
    allowed_by_control = result.control_kl / separation
    allowed = max(allowed_for_noise, allowed_by_control)
    return replace(
        result,
        tolerance=allowed,
        agrees=result.kl_mean <= allowed,
        rounded_weights=True,
        noise_kl=result.noise_kl + noise,
    )


def with_noise(
    result: BucketResult, measures: Measures, second: Measures, noise: Measures
) -> BucketResult:
    """Judge a range of positions by two references that differ only by rounding.

    The KL between the two references is the noise. A right output has about the same KL from each
    reference. Its mean KL, averaged over both references, may be at most

        max(tolerance + 1.1 * mean(noise) + 4 * standard_error(noise), control_kl / 1000)

    where `control_kl` is the KL of the unscaled source from the first reference.

    Args:
        result: The result of the comparison with the first reference.
        measures: The KLs between the first reference and the output, [positions].
        second: The KLs between the second reference and the output, [positions].
        noise: The KLs between the two references, in the range of positions with the largest mean.
    """
    position_count = max(1, len(noise.kl))
    noise_mean = noise.kl.mean().item()
    noise_standard_error = noise.kl.std(correction=0).item() / math.sqrt(position_count)
    allowed_for_noise = (
        result.tolerance + (1 + NOISE_MARGIN) * noise_mean + DEVIATIONS * noise_standard_error
    )

    # In a small model both references may be equal by chance, and the noise is then 0.
    allowed_by_control = result.control_kl / ENOUGH_POWER

    allowed = max(allowed_for_noise, allowed_by_control)
    mean_kl = ((measures.kl + second.kl) / 2).mean().item()
    return replace(
        result,
        kl_mean=mean_kl,
        tolerance=allowed,
        agrees=mean_kl <= allowed,
        rounded_weights=True,
        noise_kl=noise_mean,
    )


def beyond_trained(results: list[BucketResult], trained: int) -> list[BucketResult]:
    """Return the buckets beyond the trained context, which show the extension; all where none is.

    Args:
        results: The results of all buckets.
        trained: The trained context in tokens.
    """
    return [result for result in results if result.last >= trained] or results


def count_compared(results: Sequence[BucketResult]) -> int:
    """Return up to how many tokens positions were compared."""
    return max((result.last + 1 for result in results), default=0)


def reach_warning(results: Sequence[BucketResult], trained: int, context: int, flag: str) -> str:
    """Return a warning where no position beyond the trained context was compared; else empty.

    Args:
        results: The results of all buckets.
        trained: The trained context in tokens.
        context: The new one.
        flag: The option of a longer run, such as "--length".
    """
    tokens = count_compared(results)
    is_extended = context > trained
    if not is_extended or tokens > trained:
        return ""
    # a run that goes a quarter beyond the trained context, or 512 tokens if that is more
    longer = min(context, trained + max(512, trained // 4))
    return (
        f" Compared up to {tokens:,} tokens, inside the trained context of {trained:,}: this does"
        f" not show the extension; pass {flag} {longer}, or more."
    )


def conclusion(
    results: list[BucketResult],
    unchanged: bool,
    trained: int = 0,
    decisive: list[BucketResult] | None = None,
) -> tuple[bool, str]:
    """Return whether an output passes, and a sentence that begins with the verdict.

    Args:
        results: The result of each range of positions.
        unchanged: Whether the output has the RoPE of its source.
        trained: The trained context in tokens.
        decisive: The results that must show a missing scaling; None for all of `results`. With two
            references, these are the results of the second reference, which is the more exact one.
    """
    # FAIL: the output is farther from the reference than allowed. The range with the largest ratio
    # of the KL to the allowed KL is named.
    if not all(result.agrees for result in results):
        worst = max(results, key=lambda result: result.compared_kl / result.tolerance)
        figure = worst.figure(worst.compared_kl)
        allowed = f"{_shown_size(worst, worst.tolerance):.2e}"
        return False, f"FAIL: {figure} at {worst.name}, where {allowed} is allowed."

    passed = "PASS: matches the reference at every position"
    if unchanged:
        return True, f"{passed}. The recipe changes no frequency, so there is no control."

    # INCONCLUSIVE: the source without scaling agrees too, beyond the trained context, so that an
    # output with a wrong RoPE would pass.
    compared = "logits" if results[0].cosine is None else "hidden states"
    for result in beyond_trained(decisive or results, trained):
        if not result.is_distinguished:
            return False, (
                f"INCONCLUSIVE: at {result.name} the source without scaling matches too, so these"
                f" {compared} prove nothing."
            )
    return True, f"{passed}; without scaling, the source does not."


def describe_changes(changes: Sequence[str]) -> str:
    """Return a sentence on changed settings; empty without `changes`, which are phrases."""
    if not changes:
        return ""
    return f" Settings changed to make the test more sensitive: {', '.join(changes)}."


LEAST_PROBABILITY = 1e-7
"""The probability of all other tokens below which it is rounding."""


def measure_answers(
    logits: Tensor, answers: Sequence[LogProbs], targets: Sequence[int]
) -> Measures:
    """Compare logits of the reference with log-probabilities of some tokens from a server.

    A server returns only the likeliest tokens, for example 20 of them. All other tokens count as a
    single token, with the sum of their probabilities. The KL cannot become larger by that.

    Args:
        logits: Logits of the reference, [positions, vocabulary].
        answers: The log-probabilities of the server: a dict from token to log-probability for each
            position.
        targets: The next token at each position.

    Returns:
        The measures. `max_dlogit` is the largest difference of log-probabilities, since a server
        returns no logits. Losses are NaN where the server did not return the next token.
    """
    import torch

    log_probs = torch.log_softmax(logits.float(), dim=-1).cpu().double()
    measures_of_positions = []
    for reference_row, answer, target in zip(log_probs, answers, targets, strict=True):
        measures_of_positions.append(_measure_position(reference_row, answer, target))
    return _concatenate(measures_of_positions)


def _measure_position(reference_row: Tensor, answer: LogProbs, target: int) -> Measures:
    """Compare the reference with the answer of a server at one position.

    Args:
        reference_row: Log-probabilities of the reference, [vocabulary].
        answer: A dict from token to log-probability, with the tokens that the server returned.
        target: The next token.
    """
    import torch

    # KL = sum of p * ln(p / q), with p from the reference and q from the server. Terms of a sum of
    # p * ln(p / q) + q - p are all positive, so that it is more exact, and has the same value if p
    # and q both sum to 1. With d = ln(p / q), such a term is p * (d + e^-d - 1).
    log_p = reference_row[torch.tensor(list(answer))]
    log_q = torch.tensor(list(answer.values()), dtype=torch.float64)
    d = log_p - log_q
    kl = (log_p.exp() * (torch.expm1(-d) + d)).sum().item()

    # The tokens that the server did not return are one more term, with the rest of both
    # probabilities. A rest below LEAST_PROBABILITY is only rounding.
    rest_p = max(0.0, 1 - log_p.exp().sum().item())
    rest_q = max(0.0, 1 - log_q.exp().sum().item())
    if min(rest_p, rest_q) >= LEAST_PROBABILITY:
        kl += max(0.0, rest_p * math.log(rest_p / rest_q) - rest_p + rest_q)

    # the likeliest tokens of both sides, at most five
    likely = reference_row.topk(min(5, len(answer))).indices.tolist()
    likely_of_server = sorted(answer, key=lambda token: answer[token], reverse=True)
    likely_of_server = likely_of_server[: len(likely)]
    in_both = set(likely) & set(likely_of_server)

    reference_loss = math.nan
    server_loss = math.nan
    if target in answer:
        reference_loss = -reference_row[target].item()
        server_loss = -answer[target]

    def tensor_of(value: float) -> Tensor:
        """Return a number as a tensor of shape [1]."""
        return torch.tensor([value], dtype=torch.float64)

    return Measures(
        kl=tensor_of(kl),
        max_dlogit=tensor_of(d.abs().max().item()),
        top1=tensor_of(float(likely[0] == likely_of_server[0])),
        top5=tensor_of(len(in_both) / len(likely)),
        loss_reference=tensor_of(reference_loss),
        loss_other=tensor_of(server_loss),
    )


def log_probs_of(logits: Tensor, answers: Sequence[LogProbs]) -> list[LogProbs]:
    """Return the log-probabilities of logits for the tokens that a server names.

    Args:
        logits: [positions, vocabulary]
        answers: The answers of the server, one dict per position.
    """
    import torch

    logs = torch.log_softmax(logits.float(), dim=-1).cpu()
    named = []
    for row, answer in zip(logs, answers, strict=True):
        named.append({token: row[token].item() for token in answer})
    return named


def measure_states(reference: Tensor, other: Tensor) -> Measures:
    """Compare hidden states of shape [positions, hidden_size], for a model without logits.

    Half of the squared relative error, `|other - reference|^2 / (2 |reference|^2)`, replaces the
    KL. It is of the same size: if logits of unit variance have a small relative error e, the KL of
    their softmax is about e^2 / 2. `max_dlogit` is the largest difference of a number.
    """
    import torch

    reference = reference.double()
    other = other.double()
    difference = other - reference
    least = torch.finfo(torch.float64).tiny
    error = difference.norm(dim=-1) / reference.norm(dim=-1).clamp(min=least)
    unknown = torch.full_like(error, torch.nan).cpu()
    return Measures(
        kl=(error.square() / 2).cpu(),
        max_dlogit=difference.abs().amax(dim=-1).cpu(),
        top1=unknown,
        top5=unknown,
        loss_reference=unknown,
        loss_other=unknown,
        cosine=torch.cosine_similarity(reference, other, dim=-1).cpu(),
    )
