"""Measures between whole distributions and ones of which only the likeliest tokens are known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...engines import LogProbs
from .measures import Measures

LEAST = 1e-7  # of a rest: below, it is rounding


def coarse(logits: Any, said: Sequence[LogProbs], targets: Sequence[int]) -> Measures:
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
        kl = (p.exp() * (torch.expm1(-d) + d)).sum().item() + _rest(1 - p.exp().sum().item(), 1 - q.exp().sum().item())
        likely, likely_there = row.topk(min(5, len(known))).indices.tolist(), sorted(known, key=lambda t: -known[t])
        same = len({*likely} & {*likely_there[: len(likely)]}) / len(likely)
        losses = (-row[target].item(), -known[target]) if target in known else (math.nan, math.nan)
        rows.append((kl, d.abs().max().item(), float(likely[0] == likely_there[0]), same, *losses))
    return Measures(*(torch.tensor(values, dtype=torch.float64) for values in zip(*rows, strict=True)))


def log_probs_of(logits: Any, said: Sequence[LogProbs]) -> list[LogProbs]:
    """The log-probabilities that a server with these logits would give for the tokens in `said`.

    logits: [positions, vocabulary]. said: one dict per position, of which only the ids are used.
    """
    import torch

    logs = torch.log_softmax(logits.float(), dim=-1).cpu()
    return [{token: row[token].item() for token in known} for row, known in zip(logs, said, strict=True)]


def _rest(p: float, q: float) -> float:
    """The term of all other tokens, with probabilities p and q, in a KL written as `sum p (d + e^-d - 1)`."""
    p, q = max(p, 0.0), max(q, 0.0)
    return 0.0 if min(p, q) < LEAST else max(0.0, p * math.log(p / q) - p + q)
