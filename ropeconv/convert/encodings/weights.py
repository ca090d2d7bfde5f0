"""Encoding `weights`: the attention factor folded into weights, the frequencies in config.json."""

from dataclasses import replace

from ...errors import UnsupportedBake
from ..encoding import (
    CheckpointResult,
    EncodeRequest,
    encode_for_most_versions,
    encoding,
    refuse_log_n,
)
from ..fold import fold


# 64 ulp of float32: runtimes compute the formula of the frequencies in different orders
@encoding("weights", order=3, max_ulp=64)
def weights(request: EncodeRequest) -> CheckpointResult:
    """Write the attention factor and the softmax scale by multiplying weights of queries and keys.

    Runtimes differ in how they read an attention factor from a config; weights have the same effect
    in all of them. The frequencies are written into config.json, with the encoding that most
    runtime versions compute exactly.

    Raises:
        UnsupportedBake: Where both factors are 1, where only a config.json is given, and for log-n,
            a scaling of queries by position, which a constant weight cannot express.
    """
    schedule = request.schedule
    if schedule.attention_factor == 1 and schedule.softmax_scale == 1:
        repair = "use --encoding native or factors"
        raise UnsupportedBake(
            "an attention factor of 1", "the weights", "there is nothing to multiply", repair
        )
    refuse_log_n(request)

    tensors = request.tensors()
    if not tensors:
        change = "an attention factor in the weights"
        raise UnsupportedBake(
            change, "only a config.json", "its weights are not here", "give the whole folder"
        )

    # the config: the frequencies without the two factors
    without_factors = replace(schedule, attention_factor=1.0, softmax_scale=1.0)
    result = encode_for_most_versions(replace(request, schedule=without_factors))

    # the weights: `fold` lists the tensors that both factors multiply
    multiplied_side = request.target.fold_into or "k"  # keys, unless the user chose queries or both
    folded = fold(
        schedule,
        request.spec,
        request.family,
        request.config,
        tensors,
        multiplied_side,
        request.quantised_weights(),
    )

    # Unless a factor is a power of two, the multiplied weights are rounded to their dtype. The
    # status of a runtime that computes the config exactly is then "rounded".
    weights_are_rounded = folded.expected_kl > 0  # KL divergence from exact weights, in nats
    verdicts = []
    for verdict in result.verdicts:
        if weights_are_rounded and verdict.status == "exact":
            verdict = replace(verdict, status="rounded")
        verdicts.append(verdict)
    return replace(result, encoding="weights", verdicts=tuple(verdicts), fold=folded)
