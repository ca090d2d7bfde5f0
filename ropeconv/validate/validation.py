"""Validation, the result of a comparison of logits, and the rule by which it agrees."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Literal

from ..engines.engine import LogProbs
from ..formats.jsontext import JsonObject
from ..summary import Summary
from .sampling import Bucket

if TYPE_CHECKING:
    from torch import Tensor

BLOCK_BYTES = 64 << 20  # of one matrix [positions, vocabulary] in float32
SMALL = 0.1


@dataclass(frozen=True)
class Measures:
    """Measures between two sets of logits per position, as tensors of shape [positions].

    kl: KL(reference || other) in nats. max_dlogit: largest difference of a logit. top1: 1 where the likeliest token is
    the same, else 0. top5: share of the five likeliest tokens that both have. loss_reference, loss_other: of the next
    token, in nats, NaN where it is not known. cosine: of hidden states, which have nothing of the last four and no KL
    (see `measure_states`); None for logits.
    """

    kl: Tensor
    max_dlogit: Tensor
    top1: Tensor
    top5: Tensor
    loss_reference: Tensor
    loss_other: Tensor
    cosine: Tensor | None = None

    def __getitem__(self, rows: slice) -> Measures:
        return Measures(*(None if values is None else values[rows] for values in vars(self).values()))


@dataclass(frozen=True)
class Figures:
    """Measures over many positions: mean, 95th percentile and maximum of the KL in nats, and means of the others.

    max_dlogit is the maximum. Losses are None where no next token is known. cosine: of hidden states, what 95 % of
    positions have at least; top1 and top5 are None with it.
    """

    kl_mean: float
    kl_95: float
    kl_max: float
    max_dlogit: float
    top1: float | None
    top5: float | None
    loss_reference: float | None
    loss_other: float | None
    cosine: float | None = None


def measure(reference: Tensor, other: Tensor, targets: Tensor | None = None, temperature: float = 1.0) -> Measures:
    """Measures between logits of shape [positions, vocabulary].

    reference, other: the logits. targets: the next tokens, -1 where there is none. temperature: by which logits are
    divided for the KL.

    KL is summed as `p (d + e^-d - 1)`, d = ln p - ln q, whose terms are positive: it resolves 1e-12 in
    float32, where sums of `p d` resolve 1e-7.
    """
    import torch

    reference, other = reference.float(), other.float()
    p, q = (torch.log_softmax(logits / temperature, dim=-1) for logits in (reference, other))
    d, share = p - q, p.exp()
    terms = torch.where(d.abs() < SMALL, share * (torch.expm1(-d) + d), share * d - share + q.exp())
    likely, likely_other = (logits.topk(min(5, logits.shape[-1]), dim=-1).indices for logits in (reference, other))
    same = (likely[:, :, None] == likely_other[:, None, :]).any(dim=-1).float().mean(dim=-1)
    losses = []
    in_nats = (p, q) if temperature == 1 else (torch.log_softmax(logits, dim=-1) for logits in (reference, other))
    for logs in in_nats:
        if targets is None:
            losses.append(torch.full(logs.shape[:1], torch.nan))
            continue
        ahead = targets.to(logs.device)
        loss = -logs.gather(1, ahead.clamp(min=0)[:, None])[:, 0]
        losses.append(torch.where(ahead < 0, torch.nan, loss).cpu())
    return Measures(
        terms.sum(dim=-1).clamp(min=0).cpu().double(),
        (reference - other).abs().amax(dim=-1).cpu(),
        (likely[:, 0] == likely_other[:, 0]).float().cpu(),
        same.cpu(),
        *losses,
    )


def in_blocks(measured: Callable[[slice], Measures], count: int, vocabulary: int) -> Measures:
    """Measures of `count` positions, computed in blocks, so that only 64 MiB of logits exist at a time.

    measured: from a slice of positions to their measures. vocabulary: number of logits per position.
    """
    import torch

    rows = max(1, BLOCK_BYTES // (4 * vocabulary))
    parts = [measured(slice(first, min(first + rows, count))) for first in range(0, count, rows)]
    columns = ([vars(part)[name] for part in parts] for name in Measures.__dataclass_fields__)
    return Measures(*(None if values[0] is None else torch.cat(values) for values in columns))


def summarise(measures: Measures) -> Figures:
    """The figures over all positions of some measures."""
    means = (measures.top1, measures.top5, measures.loss_reference, measures.loss_other)
    top1, top5, reference, other = (None if math.isnan(mean) else mean for mean in (m.nanmean().item() for m in means))
    return Figures(
        measures.kl.mean().item(),
        measures.kl.quantile(0.95).item(),
        measures.kl.max().item(),
        measures.max_dlogit.max().item(),
        top1,
        top5,
        reference,
        other,
        None if measures.cosine is None else measures.cosine.quantile(0.05).item(),
    )


def compare_logits(reference: Tensor, other: Tensor, temperature: float = 1.0) -> Figures:
    """The figures between two tensors of logits, [positions, vocabulary]. temperature: as in `measure`."""
    return summarise(measure(reference, other, temperature=temperature))


def spread_of(logits: Tensor) -> float:
    """The standard deviation of logits [positions, vocabulary] over the vocabulary, as the mean square of positions.

    It is a temperature at which a softmax is neither one-hot nor uniform, so that its KL grows with the square of the
    relative error of the logits, whatever their scale. 1 where all logits of a position are equal.
    """
    spread = float(logits.double().var(dim=-1, correction=0).mean().sqrt())
    return spread or 1.0


KL_FLOOR = 1e-5  # float32 noise between different kernels; wrong frequencies give 1e-2 and more
SAME_KERNELS = 1e-5  # sharp models with frequencies rounded otherwise have 7e-6 where 3e-7 is measured
ANGLE_ERROR = 2.0**-22  # rounding of position * inv_freq and of inv_freq itself, in float32
RESOLUTION = 1e-12  # of a KL in float32
SEPARATION = 10.0
POWER = 1000.0  # of a control over what is allowed: errors of 3 % of what the method changes are noticed then
DETAIL = 100.0  # of a faint fault over what is allowed
NOISE = 5.0
TWICE = 2.0  # means over a hundred positions differ by a quarter from run to run


STATES = "hidden states are compared, and half of their squared relative error is called KL: "


def rule(floor: float, states: bool = False) -> str:
    """The rule of a comparison in a sentence.

    floor: the KL in nats that is always allowed. states: whether hidden states are compared in place of logits.
    """
    return (STATES if states else "") + (
        f"a bucket agrees when 95 % of its positions have a KL of at most {floor:g} + (last position * 2^-22)^2 + "
        f"{NOISE:g} x the noise floor; beyond the trained context the unscaled source has to be {SEPARATION:g} times "
        "further away than that; the noise floor is the sum of the KLs of the reference from itself in other chunks, "
        "with frequencies two steps of float32 away, and with weights rounded where a fold rounds them, or in low "
        "precision a fifth of that from float32 (all of it with a fold), at the worst up to that bucket; without "
        "noise, no more is allowed than a hundredth of the KL of the reference with all attention scores 2 % larger"
    )


RULE = rule(KL_FLOOR)


@dataclass(frozen=True)
class BucketResult:
    """Figures of one bucket of positions.

    name: its positions. last: its last position. run: "spread" (a few tokens over the whole range) or "whole" (every
    token before it). kl_*, max_dlogit: of the output from the reference, KL in nats. top1, top5: share of equal
    likeliest tokens. loss_*: of the next token in nats, None where it is not known. control_kl: mean KL of the unscaled
    source. noise_kl: the noise floor, a 95th percentile, or a mean with `rounded_weights`. tolerance: the KL that is
    allowed. agrees: by the rule. rounded_weights: whether weights are not in float32, and so the mean KL is compared.
    cosine: of hidden states, where these are compared, what 95 % of positions have at least; half of the squared
    relative error is their KL, max_dlogit is of their numbers, and they have no top1 and top5.

    A bucket agrees where 95 % of its positions are within the tolerance: a wrong rotation shows everywhere, while
    rounding may change the choice of a router of experts at single tokens.
    """

    name: str
    last: int
    kl_mean: float
    kl_95: float
    kl_max: float
    max_dlogit: float
    top1: float | None
    control_kl: float
    tolerance: float
    agrees: bool
    top5: float | None = 1.0
    loss_reference: float | None = None
    loss_baked: float | None = None
    noise_kl: float = 0.0
    run: Literal["spread", "whole"] = "spread"
    rounded_weights: bool = False
    cosine: float | None = None

    @property
    def compared_kl(self) -> float:
        """The KL that is compared with the tolerance: the 95th percentile, of quantised weights the mean."""
        return self.kl_mean if self.rounded_weights else self.kl_95

    def figure(self, kl: float) -> str:
        """A KL of this bucket in words; of hidden states the relative error that it stands for."""
        return f"KL {kl:.2e}" if self.cosine is None else f"relative error {math.sqrt(2 * kl):.2e}"

    @property
    def is_distinguished(self) -> bool:
        """Whether the unscaled source is far enough away."""
        if self.rounded_weights:  # the tolerance is often a part of the control, and so equal but for rounding
            return self.control_kl * (1 + 1e-9) >= SEPARATION * self.tolerance
        return self.control_kl >= SEPARATION * max(self.kl_95, self.tolerance)


@dataclass(frozen=True)
class Validation(Summary):
    """The result of a comparison over all buckets.

    transformers: version, or empty. device: that it ran on. digest: of the schedule. tokens: of a spread run. seed: of
    the tokens. agrees: by the rule. sentence: the result for people. runtime: name and version. length: of the run over
    every position, 0 without one. chunk: tokens read at a time. curve: (position, KL) of that run. speed: tokens per
    second of whole runs. partial: whether it was stopped early. precision_kl: in low precision, KL of the reference
    from itself in float32, at the end of the context. frequencies: before and after, radians per token. lengths:
    trained and new, in tokens. unrotated: (d - r)/2, None in results of earlier versions. unchecked: properties that
    this run cannot check. config_reference_kl: KL of the source with the method in its config from the reference, the
    worst 95th percentile of a spread run; None where it was not run. rule: in a sentence. score_factor: by which the
    attention scores of both sides were multiplied. temperature: by which logits were divided for the KL. All KL in
    nats.
    """

    transformers: str
    device: str
    digest: str
    tokens: int
    seed: int
    buckets: tuple[BucketResult, ...]
    agrees: bool
    sentence: str
    runtime: str = "transformers"
    dtype: str = "float32"
    length: int = 0
    chunk: int = 0
    partial: bool = False
    curve: tuple[tuple[int, float], ...] = ()
    precision_kl: float = 0.0
    speed: dict[str, float] = field(default_factory=dict)
    frequencies: dict[str, list[float]] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)
    unrotated: float | None = None
    unchecked: tuple[str, ...] = ()
    config_reference_kl: float | None = None
    score_factor: float = 1.0
    temperature: float = 1.0
    rule: str = RULE

    def summary(self) -> dict[str, str]:
        """What is shown, by name."""
        return {
            "agrees": "yes" if self.agrees else "no",
            "result": self.sentence,
            "runtime": f"{self.runtime} {self.transformers}".strip(),
            "device": f"{self.device}, {self.dtype}",
        }

    def to_dict(self) -> JsonObject:
        """The fields as JSON-ready data; keys stay within a schema."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: JsonObject) -> Validation:
        """The inverse of `to_dict`, also for results of earlier versions."""
        known = {item.name for item in fields(cls)}
        buckets = tuple(BucketResult(**bucket) for bucket in data["buckets"])
        return cls(**{key: value for key, value in data.items() if key in known} | {"buckets": buckets})


def tolerance(last: int, noise: float, floor: float = KL_FLOOR, faint: float = math.inf) -> float:
    """The KL in nats that is allowed in a bucket.

    last: its last position. noise: the noise floor, in nats. floor: what is allowed at position 0 without noise. faint:
    the KL of a faint fault, of which no more than a hundredth is allowed besides noise: where attention hardly matters,
    little is wrong.
    """
    return min(floor + (last * ANGLE_ERROR) ** 2, max(faint / DETAIL, RESOLUTION)) + NOISE * noise


def bucket_result(
    run: Bucket,
    measures: Measures,
    control_kl: float,
    noise: float = 0.0,
    kind: Literal["spread", "whole"] = "spread",
    allowed: float | None = None,
) -> BucketResult:
    """The result of a bucket, with the tolerance at its last position.

    run: the bucket. measures: of its positions, between the reference and the output. control_kl: mean KL of the
    unscaled source, in nats. noise: the noise floor, in nats. kind: of the run that the bucket belongs to. allowed: the
    tolerance, by default `tolerance` at the last position.
    """
    last, figures = run.positions[-1], summarise(measures)
    allowed = tolerance(last, noise) if allowed is None else allowed
    return BucketResult(
        run.name, last, figures.kl_mean, figures.kl_95, figures.kl_max, figures.max_dlogit, figures.top1, control_kl,
        allowed, figures.kl_95 <= allowed, figures.top5, figures.loss_reference, figures.loss_other, noise, kind,
        cosine=figures.cosine,
    )  # fmt: skip


def with_rounded_weights(result: BucketResult) -> BucketResult:
    """The result for quantised weights, whose mean KL may be up to a tenth of that of the control."""
    allowed = max(result.tolerance, result.control_kl / SEPARATION)
    return replace(result, tolerance=allowed, agrees=result.kl_mean <= allowed, rounded_weights=True)


def with_noise(result: BucketResult, noise: float, part: float = 0.0) -> BucketResult:
    """The result for weights that are not in float32, with which the two sides do not round alike.

    noise: the mean KL of the unscaled source between the two sides, in nats; the mean KL may be twice of that besides
    the tolerance. part: of the KL of the control, which is allowed too.
    """
    allowed = max(result.tolerance + TWICE * noise, part * result.control_kl)
    return replace(result, tolerance=allowed, agrees=result.kl_mean <= allowed, rounded_weights=True, noise_kl=noise)


def noise_floor(same: list[float], other: list[float], part: float = 1 / NOISE) -> float:
    """The noise floor in nats: the sum of `same`, or a part of the largest of `other` where that is larger.

    same, other: 95th percentiles of the KL of the reference from its variants in the same precision and in another.
    part: of `other`; 1 where the two sides do not round alike. KL is quadratic in errors of logits, so that those of
    independent errors add.
    """
    return max(sum(same), *(kl * part for kl in other), 0.0)


def conclusion(results: list[BucketResult], unchanged: bool) -> tuple[bool, str]:
    """Whether all buckets agree and the control does not, and a sentence on that.

    results: per bucket. unchanged: whether the recipe changes no frequency, so that there is no control.
    """
    if not all(result.agrees for result in results):
        worst = max(results, key=lambda result: result.compared_kl / result.tolerance)
        found, allowed = (worst.figure(kl) for kl in (worst.compared_kl, worst.tolerance))
        return False, f"FAIL: {found} at {worst.name}, where {allowed.rpartition(' ')[2]} is allowed."
    if unchanged:
        return (
            True,
            "PASS: matches the reference at every position. The recipe changes no frequency, so there is no control.",
        )
    unclear = [result for result in results[1:] or results if not result.is_distinguished]
    what = "logits" if results[0].cosine is None else "hidden states"
    if unclear:
        return (
            False,
            f"INCONCLUSIVE: at {unclear[0].name} the source without scaling matches too, so these {what} show nothing.",
        )
    return True, "PASS: matches the reference at every position; without scaling, the source does not."


def otherwise(changes: Sequence[str]) -> str:
    """A sentence on what was compared otherwise than usual; empty without `changes`, which are phrases."""
    return f" Settings changed to make the test more sensitive: {', '.join(changes)}." if changes else ""


LEAST = 1e-7  # of a rest: below, it is rounding


def coarse(logits: Tensor, said: Sequence[LogProbs], targets: Sequence[int]) -> Measures:
    """Measures between logits [positions, vocabulary] and log-probabilities of some tokens.

    logits: of the reference. said: one dict per position, from a server. targets: the next token per position. All
    other tokens count as one, so the KL is at most that of the whole distributions (data processing inequality).
    max_dlogit is of log-probabilities. Losses are NaN where the next token is not among the known ones.
    """
    import torch

    logs = torch.log_softmax(logits.float(), dim=-1).cpu().double()
    rows = []
    for row, known, target in zip(logs, said, targets, strict=True):
        p, q = row[torch.tensor(list(known))], torch.tensor(list(known.values()), dtype=torch.float64)
        d = p - q
        kl = (p.exp() * (torch.expm1(-d) + d)).sum().item()
        rest, rest_there = (max(0.0, 1 - logs.exp().sum().item()) for logs in (p, q))  # all other tokens
        if min(rest, rest_there) >= LEAST:
            kl += max(0.0, rest * math.log(rest / rest_there) - rest + rest_there)
        likely, likely_there = row.topk(min(5, len(known))).indices.tolist(), sorted(known, key=lambda t: -known[t])
        same = len({*likely} & {*likely_there[: len(likely)]}) / len(likely)
        losses = (-row[target].item(), -known[target]) if target in known else (math.nan, math.nan)
        rows.append((kl, d.abs().max().item(), float(likely[0] == likely_there[0]), same, *losses))
    return Measures(*(torch.tensor(values, dtype=torch.float64) for values in zip(*rows, strict=True)))


def log_probs_of(logits: Tensor, said: Sequence[LogProbs]) -> list[LogProbs]:
    """The log-probabilities that a server with these logits would give for the tokens in `said`.

    logits: [positions, vocabulary]. said: one dict per position, of which only the ids are used.
    """
    import torch

    logs = torch.log_softmax(logits.float(), dim=-1).cpu()
    return [{token: row[token].item() for token in known} for row, known in zip(logs, said, strict=True)]


def measure_states(reference: Tensor, other: Tensor) -> Measures:
    """Measures between hidden states of shape [positions, hidden_size].

    Half of the squared relative error, `|other - reference|^2 / (2 |reference|^2)`, stands for the KL: that is what the
    KL of small errors of logits is that are divided by their spread. reference, other: the hidden states.
    """
    import torch

    reference, other = reference.double(), other.double()
    error = (other - reference).norm(dim=-1) / reference.norm(dim=-1).clamp(min=torch.finfo(torch.float64).tiny)
    unknown = torch.full_like(error, torch.nan).cpu()
    largest, cosine = (other - reference).abs().amax(dim=-1), torch.cosine_similarity(reference, other, dim=-1)
    return Measures((error.square() / 2).cpu(), largest.cpu(), unknown, unknown, unknown, unknown, cosine.cpu())
