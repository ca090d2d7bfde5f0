"""Encoding `ministral3`: Llama and Mistral weights as Ministral 3, a stock class that scales
queries by position.

Its query scaling, `1 + beta ln(1 + floor(p / O))`, is the log-n approximation: with O the length of
log-n it follows the clamped formula roughly; with O = 1, a large beta, and its inverse folded into
the weights, it is the full formula but for the 1 in front.
"""

import copy
from dataclasses import replace

from ...errors import UnsupportedBake
from ...models.config import text_part
from ...models.family import Family
from ...models.registry import by_name
from ...models.schema import Config, first_present
from ...rope.schedule import QueryScaling, approximate_log_n, deviation
from ...rope.spec import RopeSpec
from ..config_edit import put
from ..encoding import CheckpointResult, EncodeRequest, encode_for_most_versions, encoding
from ..fold import Fold, times_queries
from ..target import with_deviation
from .weights import weights

MINISTRAL3 = "ministral3"
OTHER_WAYS_FOR_LOG_N = "use --encoding buffers, or leave --log-n out"
KEYS_OF_BIASES = ("attention_bias", "mlp_bias")


@encoding(MINISTRAL3, order=4, max_ulp=64, model_type=lambda _: MINISTRAL3)
def ministral3(request: EncodeRequest) -> CheckpointResult:
    """Write the schedule as a Ministral 3 checkpoint, whose class scales queries by position.

    Log-n multiplies queries by a logarithm of the position p. The class multiplies them by
    `1 + beta ln(1 + floor(p / O))`. beta, O and a constant gain, which goes into the weights, are
    chosen so that this is near log-n. The frequencies and the attention factor are then written by
    another encoding, as for any Ministral 3.

    Raises:
        UnsupportedBake: For families with another layout, and for a schedule without log-n.
    """
    schedule = request.schedule
    family = request.family
    if schedule.log_n is None:
        raise UnsupportedBake(
            "a schedule without log-n",
            MINISTRAL3,
            "only log-n is worth another class",
            "use --encoding auto",
        )
    _refuse_other_weights(request.config, family)

    # The source as if it were a Ministral 3 checkpoint that scales queries in this way already. The
    # request for it has the same schedule without log-n: frequencies and attention factor.
    approximation = approximate_log_n(schedule.log_n)
    in_config = QueryScaling(approximation.beta, approximation.length)
    as_ministral3 = replace(
        request,
        schedule=replace(schedule, log_n=None, query_scaling=in_config),
        spec=replace(request.spec, query_scaling=in_config),
        family=by_name()[MINISTRAL3],
        config=_as_ministral3(request.config, family, request.spec, in_config),
    )

    # These are written into config.json. If that fails, the attention factor may be the reason,
    # since it can go into the weights instead.
    try:
        result = encode_for_most_versions(as_ministral3)
    except UnsupportedBake:
        has_attention_factor = schedule.attention_factor != 1
        has_weights = bool(request.tensors())
        if not has_attention_factor or not has_weights:
            raise
        result = weights(as_ministral3)

    # The gain is a number by which all queries are multiplied, so it is folded into their weights,
    # beside an attention factor that may have been folded above.
    folded = result.fold
    if approximation.gain != 1:
        tensors = request.tensors()
        if not tensors:
            raise UnsupportedBake(
                "full log-n",
                "only a config.json",
                "a factor goes into its weights",
                OTHER_WAYS_FOR_LOG_N,
            )
        if folded is None:
            folded = Fold(request.target.fold_into or "k", scalings=(), expected_kl=0.0)
        scalings = times_queries(approximation.gain, request.spec, family, tensors)
        folded = replace(folded, scalings=(*folded.scalings, *scalings))

    # how far the output is from the formula of log-n, for the verdicts and the user
    off = deviation(schedule.log_n, approximation, schedule.context)
    return replace(
        result,
        encoding=MINISTRAL3,
        verdicts=tuple(with_deviation(verdict, off) for verdict in result.verdicts),
        fold=folded,
        notes=(*result.notes, _note(approximation, off, schedule.context)),
        log_n_approximation=approximation,
        deviation=off,
    )


def _refuse_other_weights(config: Config, family: Family) -> None:
    """Raise UnsupportedBake for a model whose weights transformers cannot load as Ministral 3.

    Log-n scales queries by position. Ministral 3 is a class of transformers that does so, and its
    weights have the same names and shapes as those of Llama and Mistral.
    """
    # other families than Llama and Mistral
    if family.ministral3 is None:
        raise UnsupportedBake(
            "log-n",
            f"{family.display_name} as {MINISTRAL3}",
            "Llama and Mistral have its layout, no other",
            OTHER_WAYS_FOR_LOG_N,
        )

    # Llama with biases, which the class of Ministral 3 would not load
    part = text_part(config, family)
    for key in KEYS_OF_BIASES:
        has_biases = part.get(key, False) is not False
        if has_biases:
            raise UnsupportedBake(
                "log-n",
                f"a checkpoint with {key} as {MINISTRAL3}",
                "that class has no biases",
                OTHER_WAYS_FOR_LOG_N,
            )


def _as_ministral3(
    config: Config, family: Family, spec: RopeSpec, query_scaling: QueryScaling
) -> Config:
    """Return a copy of a config.json with which transformers loads the model as Ministral 3.

    For Llama, model_type becomes "ministral3", architectures ["Ministral3ForCausalLM"], and the
    RoPE dictionary gets llama_4_scaling_beta, the strength of Ministral 3's query scaling.

    Args:
        config: The whole config.json of the source, such as Llama's.
        family: The family of the source.
        spec: The RoPE of the source.
        query_scaling: The factor of queries, 1 + beta ln(1 + floor(position / length)).
    """
    converted = copy.deepcopy(config)
    part = text_part(converted, family)

    # Keys that the source leaves out have the defaults of the source's class. Where Ministral 3 has
    # another default, the key is written; `null` has the keys whose default is null.
    rules = family.ministral3
    assert rules is not None
    for key, value in rules.defaults.items():
        part.setdefault(key, value)
    for key in rules.null:
        part.setdefault(key, None)

    # absent or null in the source: as many key heads as query heads
    query_heads = part.get("num_attention_heads", 32)
    key_heads = first_present(part, ("num_key_value_heads",), default=query_heads)
    part["num_key_value_heads"] = key_heads

    # the class; only a whole config has the key "architectures", not its part "text_config"
    part["model_type"] = MINISTRAL3
    is_whole_config = part is converted
    if is_whole_config:
        part["architectures"] = ["Ministral3ForCausalLM"]

    # a RoPE without scaling but with the query scaling; the caller writes the new scaling later
    beta_key = by_name()[MINISTRAL3].keys.query_beta  # llama_4_scaling_beta
    put(part, "head_dim", spec.head_dim, after="hidden_size")
    part["rope_scaling"] = None
    part["rope_parameters"] = {
        "rope_type": "default",
        "rope_theta": spec.rope_theta,
        "original_max_position_embeddings": query_scaling.length,
        beta_key: query_scaling.beta,
    }
    return converted


def _note(steps: QueryScaling, off: float, context: int) -> str:
    """A sentence on how near the log-n of the output is to its formula."""
    if steps.gain == 1:
        return (
            f"log-n comes in steps of {steps.length} tokens, up to {off:.1%} above the formula over"
            f" {context} tokens and right at the end of each; the model type becomes ministral3"
        )
    return (
        f"log-n is within {off:.1e} of the formula; the weights make queries {1 / steps.gain:g}"
        " times smaller, and the class undoes that; the model type becomes ministral3"
    )
