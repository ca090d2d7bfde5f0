"""Encoding `weights`: the attention factor folded into weights, the frequencies in config.json."""

from __future__ import annotations

from dataclasses import replace

from ...errors import UnsupportedBake
from ..encoding import CheckpointResult, EncodeRequest, bare, encoding, furthest, refuse_log_n
from ..fold import fold


@encoding("weights", order=3, max_ulp=64, folds=True)
def weights(request: EncodeRequest) -> CheckpointResult:
    """The schedule with its attention factor and softmax scale folded into weights, which every runtime multiplies.

    The frequencies are written as the encoding of config.json alone that most runtimes read exactly. Raises
    UnsupportedBake for factors of 1, for log-n, and for a config.json alone.
    """
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
    found = fold(schedule, request.spec, request.family, request.config, tensors, request.target.fold_into or "k")
    verdicts = result.verdicts
    if found.expected_kl:
        verdicts = tuple(replace(v, status="rounded") if v.status == "exact" else v for v in verdicts)
    return replace(result, encoding="weights", verdicts=verdicts, fold=found)
