"""Figures that compare two sets of logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Figures:
    """KL(reference || other) in nats, over positions: mean, 95th percentile, maximum. top1: share of equal argmax."""

    kl_mean: float
    kl_95: float
    kl_max: float
    max_dlogit: float
    top1: float


def compare_logits(reference: Any, other: Any) -> Figures:
    """Figures for two float32 tensors of shape [positions, vocabulary]; KL is summed in float64."""
    import torch

    p, q = (torch.log_softmax(logits.double(), dim=-1) for logits in (reference, other))
    kl = (p.exp() * (p - q)).sum(dim=-1).clamp(min=0)
    agree = (reference.argmax(dim=-1) == other.argmax(dim=-1)).double().mean()
    return Figures(
        kl.mean().item(),
        kl.quantile(0.95).item(),
        kl.max().item(),
        (reference - other).abs().max().item(),
        agree.item(),
    )
