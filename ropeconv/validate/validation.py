"""Validation, the result of a comparison of logits, and the rule by which it agrees."""

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

BLOCK_BYTES = 64 << 20  # of one matrix [positions, vocabulary] in float32
SMALL = 0.1


@dataclass(frozen=True)
class Measures:
    """Measures between two sets of logits per position, as tensors of shape [positions].

    kl: KL(reference || other) in nats. max_dlogit: largest difference of a logit. top1: 1 if the
    likeliest token is the same, else 0. top5: share of the five likeliest tokens that both have.
    loss_reference, loss_other: of the next token in nats, NaN if it is not known. cosine: of hidden
    states, which lack the last four measures and have no KL (see `measure_states`); None for
    logits.
    """

    kl: Tensor
    max_dlogit: Tensor
    top1: Tensor
    top5: Tensor
    loss_reference: Tensor
    loss_other: Tensor
    cosine: Tensor | None = None

    def __getitem__(self, rows: slice) -> Measures:
        return Measures(
            *(None if values is None else values[rows] for values in vars(self).values())
        )


def measure(
    reference: Tensor, other: Tensor, targets: Tensor | None = None, temperature: float = 1.0
) -> Measures:
    """Compare logits of shape [positions, vocabulary].

    KL is summed as `p (d + e^-d - 1)`, d = ln p - ln q, whose terms are positive: it resolves 1e-12
    in float32, while sums of `p d` resolve 1e-7.

    Args:
        reference: Logits of the reference.
        other: Logits of the output.
        targets: The next tokens, -1 for an unknown one.
        temperature: Divides the logits for the KL.
    """
    import torch

    reference = reference.float()
    other = other.float()
    p, q = (torch.log_softmax(logits / temperature, dim=-1) for logits in (reference, other))
    d = p - q
    share = p.exp()
    terms = torch.where(d.abs() < SMALL, share * (torch.expm1(-d) + d), share * d - share + q.exp())
    likely, likely_other = (
        logits.topk(min(5, logits.shape[-1]), dim=-1).indices for logits in (reference, other)
    )
    same = (likely[:, :, None] == likely_other[:, None, :]).any(dim=-1).float().mean(dim=-1)
    losses = []
    in_nats = (
        (p, q)
        if temperature == 1
        else (torch.log_softmax(logits, dim=-1) for logits in (reference, other))
    )
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
    """Return the measures of `count` positions, computed in blocks with at most 64 MiB of logits.

    measured: from a slice of positions to their measures. vocabulary: number of logits per
    position.
    """
    import torch

    rows = max(1, BLOCK_BYTES // (4 * vocabulary))
    parts = [measured(slice(first, min(first + rows, count))) for first in range(0, count, rows)]
    columns = ([vars(part)[name] for part in parts] for name in Measures.__dataclass_fields__)
    return Measures(*(None if values[0] is None else torch.cat(values) for values in columns))


def spread_of(logits: Tensor) -> float:
    """Return the standard deviation of logits [positions, vocabulary] over the vocabulary, as the
    root mean square.

    At this temperature a softmax is neither one-hot nor uniform, so its KL grows with the square of
    the relative error of the logits, whatever their scale. 1 if all logits of a position are equal.
    """
    spread = float(logits.double().var(dim=-1, correction=0).mean().sqrt())
    return spread or 1.0


KL_FLOOR = 1e-5  # float32 noise between different kernels; wrong frequencies give 1e-2 and more
SAME_KERNELS = (
    1e-5  # sharp models with frequencies rounded differently have 7e-6, and 3e-7 is measured
)
ANGLE_ERROR = 2.0**-22  # rounding of position * inv_freq and of inv_freq itself, in float32
RESOLUTION = 1e-12  # of a KL in float32
SEPARATION = 10.0
DEVIATIONS = 4.0
"""Standard errors of a mean that are allowed beside it."""
PART = 0.1
"""The part of a measured noise that is allowed beside it: two ways of rounding are not equally far
from a third.
"""
# of a control over the tolerance: errors of 3 % of the change by the method are noticed then
POWER = 1000.0
DETAIL = 100.0  # of a faint fault over the tolerance
NOISE = 5.0
TWICE = 2.0  # means over a hundred positions differ by a quarter from run to run


STATES = "hidden states are compared, and half of their squared relative error is called KL: "


def rule(floor: float, states: bool = False) -> str:
    """Return the rule of a comparison in a sentence.

    floor: the KL in nats that is always allowed. states: whether hidden states are compared in
    place of logits.
    """
    return (
        (STATES if states else "")
        + f"a bucket agrees when 95 % of its positions have a KL of at most {floor:g} + (last"
        f" position * 2^-22)^2 + {NOISE:g} x the noise floor; beyond the trained context the"
        f" unscaled source must have {SEPARATION:g} times that KL; the noise floor is the sum of"
        " the KLs of the reference from itself in other chunks, with frequencies two steps of"
        " float32 away, and with weights rounded as a fold rounds them, or in low precision a"
        " fifth of the KL from float32 (all of it with a fold), the largest up to that bucket;"
        " without noise, at most a hundredth of the KL of the reference with all attention"
        " scores 2 % larger is allowed"
    )


RULE = rule(KL_FLOOR)


@dataclass(frozen=True)
class BucketResult:
    """Figures of one bucket of positions.

    name: its positions. last: its last position. run: "spread" (a few tokens over the whole range)
    or "whole" (every token before it). kl_*, max_dlogit: of the output from the reference, KL in
    nats. top1, top5: share of equal likeliest tokens. loss_*: of the next token in nats, None if it
    is not known. control_kl: mean KL of the unscaled source. noise_kl: the noise floor, a 95th
    percentile, or a mean with `rounded_weights`. tolerance: the allowed KL. agrees: by the rule.
    rounded_weights: whether weights are not in float32, so that the mean KL is compared. cosine:
    the 5th percentile if hidden states are compared; their KL is half of the squared relative
    error, max_dlogit is of their numbers, and they have no top1 and top5.

    A bucket agrees if 95 % of its positions are within the tolerance: a wrong rotation shows
    everywhere, while rounding may change the choice of a router of experts at single tokens.
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
        """The KL that is compared with the tolerance: the 95th percentile, or for quantised weights
        the mean.
        """
        return self.kl_mean if self.rounded_weights else self.kl_95

    def figure(self, kl: float) -> str:
        """Return a KL of this bucket in words; for hidden states the relative error that it stands
        for.
        """
        return f"KL {kl:.2e}" if self.cosine is None else f"relative error {math.sqrt(2 * kl):.2e}"

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


OPTIONAL = ("KL max", "max |dlogit|", "top-5", "KL mean", "top-1")
"""Columns that are shown only where all numbers are asked for."""


def describe_bucket(bucket: BucketResult) -> dict[str, str]:
    """Return the row of a bucket for people, by column."""
    return _describe_logits(bucket) if bucket.cosine is None else _describe_states(bucket)


def _describe_states(bucket: BucketResult) -> dict[str, str]:
    """A row for hidden states by column, with relative errors instead of KLs."""
    kls = {
        "relative error": bucket.kl_mean,
        "95 %": bucket.kl_95,
        "max": bucket.kl_max,
        "allowed": bucket.tolerance,
    }
    return {
        "positions": bucket.name,
        **{name: f"{math.sqrt(2 * kl):.1e}" for name, kl in kls.items()},
        "cosine": f"{bucket.cosine:.9f}",
        "unscaled source": f"{math.sqrt(2 * bucket.control_kl):.1e}",
        "": "agrees" if bucket.agrees else "disagrees",
    }


def _describe_logits(bucket: BucketResult) -> dict[str, str]:
    """A row for logits by column."""
    shares = {"top-1": bucket.top1, "top-5": bucket.top5}
    return {
        "positions": bucket.name,
        "KL mean": f"{bucket.kl_mean:.1e}",
        "KL 95 %": f"{bucket.kl_95:.1e}",
        "KL max": f"{bucket.kl_max:.1e}",
        "allowed": f"{bucket.tolerance:.1e}",
        "max |dlogit|": f"{bucket.max_dlogit:.1e}",
        **{name: "-" if value is None else f"{value:.1%}" for name, value in shares.items()},
        "unscaled source": f"KL {bucket.control_kl:.1e}",
        "": "agrees" if bucket.agrees else "disagrees",
    }


def hidden_columns(buckets: Sequence[BucketResult]) -> tuple[str, ...]:
    """Return the columns that are left out by default: of two KLs, the one that is not compared."""
    if not buckets[0].rounded_weights:
        return OPTIONAL
    kept = [name for name in OPTIONAL if name != "KL mean"]
    return (*kept, "KL 95 %")


@dataclass(frozen=True)
class Validation(TableSummary):
    """The result of a comparison over all buckets. All KL in nats.

    transformers: version, or empty. digest: of the schedule. tokens: of a spread run. sentence: the
    result for people. runtime: name and version. length: of the run over every position, 0 without
    one. chunk: tokens read at a time. curve: (position, KL) of that run. reached: up to how many
    tokens positions were compared. speed: tokens per second of whole runs. partial: whether it was
    stopped early. frequencies: before and after, radians per token. lengths: trained and new, in
    tokens. unchecked: properties that this run cannot check. score_factor: the factor of the
    attention scores of both sides. temperature: the divisor of logits for the KL.
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
    speed: dict[str, float] = field(default_factory=dict)
    frequencies: dict[str, list[float]] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)
    reached: int = 0
    unchecked: tuple[str, ...] = ()
    score_factor: float = 1.0
    temperature: float = 1.0
    rule: str = RULE

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
            tables.append(SummaryTable("buckets", tuple(columns), cells, f"{run} run"))
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
        buckets = tuple(BucketResult(**bucket) for bucket in data["buckets"])
        return cls(
            **{key: value for key, value in data.items() if key in names} | {"buckets": buckets}
        )


def tolerance(last: int, noise: float, floor: float = KL_FLOOR, faint: float = math.inf) -> float:
    """Return the allowed KL of a bucket in nats.

    last: its last position. noise: the noise floor, in nats. floor: what is allowed at position 0
    without noise. faint: the KL of a faint fault, of which at most a hundredth is allowed besides
    noise.
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
    """Return the result of a bucket.

    measures: of its positions, between the reference and the output. control_kl: mean KL of the
    unscaled source, in nats. noise: the noise floor, in nats. kind: of its run. allowed: the
    tolerance, by default that at its end.
    """
    last = run.positions[-1]
    kl = measures.kl
    cosine = measures.cosine
    kl_95 = kl.quantile(0.95).item()
    allowed = tolerance(last, noise) if allowed is None else allowed
    means = (measures.top1, measures.top5, measures.loss_reference, measures.loss_other)
    top1, top5, reference, other = (
        None if math.isnan(mean) else mean for mean in (m.nanmean().item() for m in means)
    )
    return BucketResult(
        run.name,
        last,
        kl.mean().item(),
        kl_95,
        kl.max().item(),
        measures.max_dlogit.max().item(),
        top1,
        control_kl,
        allowed,
        kl_95 <= allowed,
        top5,
        reference,
        other,
        noise,
        kind,
        cosine=None if cosine is None else cosine.quantile(0.05).item(),
    )


def with_rounded_weights(
    result: BucketResult, noise: float = 0.0, separation: float = SEPARATION
) -> BucketResult:
    """Return the result for weights that are not in float32, which the two sides round differently,
    by the mean KL.

    noise: the mean KL of the unscaled source between the two sides, in nats; twice that is allowed
    besides the tolerance. separation: the KL of the control, divided by it, is allowed too.
    """
    allowed = max(result.tolerance + TWICE * noise, result.control_kl / separation)
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
    """Return the result for weights that are not in float32, by two references that round
    otherwise.

    A right output is one more way of rounding, so it is as far from the references as these are
    from each other. The same positions are compared, and its mean may be some standard errors and a
    part of the noise larger. The standard error is that of the noise: that of the output would grow
    with the fault.

    Args:
        result: The result of the comparison with the first reference.
        measures: The KLs between the first reference and the output.
        second: Those between the second reference and the output.
        noise: Those between the two references, where they are largest.
    """
    count = max(1, len(noise.kl))
    mean = noise.kl.mean().item()
    error = noise.kl.std(correction=0).item() / math.sqrt(count)
    # few roundings differ in a small model, so two ways may agree by chance
    allowed = max(
        result.tolerance + mean * (1 + PART) + DEVIATIONS * error, result.control_kl / POWER
    )
    distance = ((measures.kl + second.kl) / 2).mean().item()
    return replace(
        result,
        kl_mean=distance,
        tolerance=allowed,
        agrees=distance <= allowed,
        rounded_weights=True,
        noise_kl=mean,
    )


def beyond(results: list[BucketResult], trained: int) -> list[BucketResult]:
    """Return the buckets beyond the trained context, which show the extension; all where none is.

    trained: that context in tokens.
    """
    return [result for result in results if result.last >= trained] or results


def reached(results: Sequence[BucketResult]) -> int:
    """Return up to how many tokens positions were compared."""
    return max((result.last + 1 for result in results), default=0)


def on_reach(results: Sequence[BucketResult], trained: int, context: int, flag: str) -> str:
    """Return a sentence where no position beyond the trained context was compared; else empty.

    trained, context: the lengths before and after, in tokens. flag: the option of a longer run.
    """
    tokens = reached(results)
    if tokens > trained or context <= trained:
        return ""
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
    """Return whether all buckets agree and the control does not, and a sentence on that.

    unchanged: whether the recipe changes no frequency, so that there is no control. trained: the
    context in tokens, beyond which the control has to disagree. decisive: the buckets in which it
    has to, by default all.
    """
    if not all(result.agrees for result in results):
        worst = max(results, key=lambda result: result.compared_kl / result.tolerance)
        figure, allowed = (worst.figure(kl) for kl in (worst.compared_kl, worst.tolerance))
        return (
            False,
            f"FAIL: {figure} at {worst.name}, where {allowed.rpartition(' ')[2]} is allowed.",
        )
    if unchanged:
        sentence = "PASS: matches the reference at every position. The recipe changes no frequency"
        return True, f"{sentence}, so there is no control."
    unclear = [
        result for result in beyond(decisive or results, trained) if not result.is_distinguished
    ]
    compared = "logits" if results[0].cosine is None else "hidden states"
    if unclear:
        words = (
            f"at {unclear[0].name} the source without scaling matches too, so these {compared}"
            " prove nothing"
        )
        return False, f"INCONCLUSIVE: {words}."
    return (
        True,
        "PASS: matches the reference at every position; without scaling, the source does not.",
    )


def otherwise(changes: Sequence[str]) -> str:
    """Return a sentence on changed settings; empty without `changes`, which are phrases."""
    return (
        f" Settings changed to make the test more sensitive: {', '.join(changes)}."
        if changes
        else ""
    )


LEAST = 1e-7  # probability of all other tokens: below, it is rounding


def coarse(logits: Tensor, answers: Sequence[LogProbs], targets: Sequence[int]) -> Measures:
    """Compare logits [positions, vocabulary] of the reference with log-probabilities of some tokens
    from a server.

    All other tokens count as one, so the KL is at most that of the whole distributions (data
    processing inequality). max_dlogit is of log-probabilities. Losses are NaN if the server does
    not name the next token.

    answers: one dict per position. targets: the next token per position.
    """
    import torch

    logs = torch.log_softmax(logits.float(), dim=-1).cpu().double()
    rows = []
    for row, answer, target in zip(logs, answers, targets, strict=True):
        p = row[torch.tensor(list(answer))]
        q = torch.tensor(list(answer.values()), dtype=torch.float64)
        d = p - q
        kl = (p.exp() * (torch.expm1(-d) + d)).sum().item()
        others, others_served = (max(0.0, 1 - log_probs.exp().sum().item()) for log_probs in (p, q))
        if min(others, others_served) >= LEAST:
            kl += max(0.0, others * math.log(others / others_served) - others + others_served)
        likely = row.topk(min(5, len(answer))).indices.tolist()
        likely_served = sorted(answer, key=lambda t: -answer[t])
        same = len({*likely} & {*likely_served[: len(likely)]}) / len(likely)
        losses = (
            (-row[target].item(), -answer[target]) if target in answer else (math.nan, math.nan)
        )
        rows.append((kl, d.abs().max().item(), float(likely[0] == likely_served[0]), same, *losses))
    return Measures(
        *(torch.tensor(values, dtype=torch.float64) for values in zip(*rows, strict=True))
    )


def log_probs_of(logits: Tensor, answers: Sequence[LogProbs]) -> list[LogProbs]:
    """Return the log-probabilities of logits [positions, vocabulary] for the tokens that answers of
    a server name.
    """
    import torch

    logs = torch.log_softmax(logits.float(), dim=-1).cpu()
    return [
        {token: row[token].item() for token in answer}
        for row, answer in zip(logs, answers, strict=True)
    ]


def measure_states(reference: Tensor, other: Tensor) -> Measures:
    """Compare hidden states of shape [positions, hidden_size].

    Half of the squared relative error, `|other - reference|^2 / (2 |reference|^2)`, replaces the
    KL: it is the KL of small errors of logits that are divided by their spread.
    """
    import torch

    reference = reference.double()
    other = other.double()
    error = (other - reference).norm(dim=-1) / reference.norm(dim=-1).clamp(
        min=torch.finfo(torch.float64).tiny
    )
    unknown = torch.full_like(error, torch.nan).cpu()
    largest = (other - reference).abs().amax(dim=-1)
    cosine = torch.cosine_similarity(reference, other, dim=-1)
    return Measures(
        (error.square() / 2).cpu(), largest.cpu(), unknown, unknown, unknown, unknown, cosine.cpu()
    )
