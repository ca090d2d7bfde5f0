"""Encoding `weights`: the attention factor in the weights, the frequencies in the config that most runtimes read."""

from __future__ import annotations

from dataclasses import replace

from ....errors import UnsupportedBake
from ...fold.placement import fold
from ..config_only import bare, furthest, refuse_log_n
from ..encoding import encoding
from ..request import CheckpointResult, EncodeRequest


@encoding("weights", order=3, max_ulp=64, folds=True)
def weights(request: EncodeRequest) -> CheckpointResult:
    """Whoever multiplies queries by keys computes it then. Raises UnsupportedBake where there is nothing to fold."""
    schedule = request.schedule
    if schedule.attention_factor == 1 and schedule.softmax_scale == 1:
        raise UnsupportedBake(
            "an attention factor of 1",
            "the weights",
            "there is nothing to multiply",
            "use --encoding native or factors",
        )
    refuse_log_n(request)
    tensors = request.tensors()
    if not tensors:
        raise UnsupportedBake(
            "an attention factor in the weights",
            "a config.json alone",
            "its weights are not here",
            "give the whole folder",
        )
    result = furthest(bare(request))
    found = fold(schedule, request.spec, request.family, request.config, tensors, request.target.fold.into or "k")
    verdicts = result.verdicts
    if found.expected_kl:
        verdicts = tuple(replace(v, status="rounded") if v.status == "exact" else v for v in verdicts)
    return replace(result, encoding="weights", verdicts=verdicts, fold=found)
