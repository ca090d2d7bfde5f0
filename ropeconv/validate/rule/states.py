"""Measures between two sets of hidden states, for models that have no logits: encoders."""

from __future__ import annotations

from typing import Any

from .measures import Measures


def measure_states(reference: Any, other: Any) -> Measures:
    """Measures between hidden states of shape [positions, hidden_size].

    Half of the squared relative error, `|other - reference|^2 / (2 |reference|^2)`, stands for the KL: that is what the
    KL of small errors of logits is that are divided by their spread. reference, other: the hidden states.
    """
    import torch

    reference, other = reference.double(), other.double()
    error = (other - reference).norm(dim=-1) / reference.norm(dim=-1).clamp(min=torch.finfo(torch.float64).tiny)
    unknown = torch.full_like(error, torch.nan).cpu()
    return Measures(
        (error.square() / 2).cpu(),
        (other - reference).abs().amax(dim=-1).cpu(),
        unknown,
        unknown,
        unknown,
        unknown,
        torch.cosine_similarity(reference, other, dim=-1).cpu(),
    )
