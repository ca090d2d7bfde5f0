"""Numbers that compare two sets of logits: Measures per position, and Figures over many positions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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

    kl: Any
    max_dlogit: Any
    top1: Any
    top5: Any
    loss_reference: Any
    loss_other: Any
    cosine: Any = None

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


def measure(reference: Any, other: Any, targets: Any = None, temperature: float = 1.0) -> Measures:
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
    found = {name: [vars(part)[name] for part in parts] for name in Measures.__dataclass_fields__}
    return Measures(*(None if values[0] is None else torch.cat(values) for values in found.values()))


def summarise(found: Measures) -> Figures:
    """The figures over all positions of some measures."""
    means = (found.top1, found.top5, found.loss_reference, found.loss_other)
    top1, top5, loss_reference, loss_other = (_known(values.nanmean().item()) for values in means)
    return Figures(
        found.kl.mean().item(),
        found.kl.quantile(0.95).item(),
        found.kl.max().item(),
        found.max_dlogit.max().item(),
        top1,
        top5,
        loss_reference,
        loss_other,
        None if found.cosine is None else found.cosine.quantile(0.05).item(),
    )


def _known(mean: float) -> float | None:
    return None if math.isnan(mean) else mean


def compare_logits(reference: Any, other: Any, temperature: float = 1.0) -> Figures:
    """The figures between two tensors of logits, [positions, vocabulary]. temperature: as in `measure`."""
    return summarise(measure(reference, other, temperature=temperature))


def spread_of(logits: Any) -> float:
    """The standard deviation of logits [positions, vocabulary] over the vocabulary, as the mean square of positions.

    It is a temperature at which a softmax is neither one-hot nor uniform, so that its KL grows with the square of the
    relative error of the logits, whatever their scale. 1 where all logits of a position are equal.
    """
    spread = float(logits.double().var(dim=-1, correction=0).mean().sqrt())
    return spread or 1.0
