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


@encoding("weights", order=3, max_ulp=64)
def weights(request: EncodeRequest) -> CheckpointResult:
    """Write the attention factor and the softmax scale by multiplying weights of queries and keys.

    Runtimes differ in how they read an attention factor, and all of them multiply by weights. The
    frequencies stay in config.json, in the encoding that most runtime versions compute exactly.

    Raises:
        UnsupportedBake: For factors of 1, for log-n, and for only a config.json.
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

    # the frequencies go into the config, and both factors into the weights
    without_factors = replace(schedule, attention_factor=1.0, softmax_scale=1.0)
    result = encode_for_most_versions(replace(request, schedule=without_factors))
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

    # A factor that is not a power of two rounds the weights that it multiplies, and then the
    # expected KL divergence is above 0. Runtimes that read the config exactly compute with these
    # rounded weights, so their status "exact" becomes "rounded".
    weights_are_rounded = folded.expected_kl > 0
    verdicts = []
    for verdict in result.verdicts:
        if weights_are_rounded and verdict.status == "exact":
            verdict = replace(verdict, status="rounded")
        verdicts.append(verdict)
    return replace(result, encoding="weights", verdicts=tuple(verdicts), fold=folded)
