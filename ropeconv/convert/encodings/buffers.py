"""Encoding `buffers`: frequencies as a tensor of the checkpoint, and a modelling file that loads
it.

The only encoding that carries log-n as its formula, and the only one that needs trust_remote_code.
It has its own model type: under that of the family, runtimes that do not run the file would load
the checkpoint and ignore it.
"""

import numpy as np

from ...errors import UnsupportedBake
from ...formats.jsontext import JsonObject
from ...formats.package_data import render
from ...models.config import STORED_ROPE, text_part
from ...models.family import Family
from ...models.schema import Config
from ...rope.schedule import LogN
from ...runtimes.verdict import judge_code
from ..config_edit import RopeSetting, bake_config, put
from ..encoding import CheckpointResult, EncodeRequest, encoding

MODULE = "modeling_stored_rope"
KEY_OF_SETTINGS = "stored_rope"
TENSOR = "model.rotary_emb.inv_freq"
OTHER_ENCODING = "use --encoding auto"
NOTE_ON_REMOTE_CODE = (
    "needs trust_remote_code: it comes with {}, about a screen of code, which users will want to"
    " read"
)


@encoding(
    "buffers",
    order=5,
    max_ulp=0,  # the frequencies are stored as float32, so none may differ
    model_type=lambda name: f"{name}{STORED_ROPE}",
)
def buffers(request: EncodeRequest) -> CheckpointResult:
    """Write the RoPE frequencies as a tensor, and a modelling file (.py) that loads the tensor.

    transformers runs such a file with `trust_remote_code`. The tensor can hold any frequencies.

    Raises:
        UnsupportedBake: For families without a modelling file, for two factor lists, and where only
            a config.json is given, without weights.
    """
    schedule = request.schedule
    family = request.family
    _refuse_unwritable(request)

    # The RoPE keys of the config describe no scaling, since the frequencies are in the tensor.
    unscaled = RopeSetting(
        rope={"rope_type": "default"}, theta=request.spec.rope_theta, context=schedule.context
    )
    config = bake_config(request.config, family, request.spec, unscaled)

    # the keys by which transformers finds the class in the modelling file
    keys = class_keys(family)
    config["model_type"] = keys["model_type"]
    config["architectures"] = keys["architectures"]
    put(config, "auto_map", keys["auto_map"], after="architectures")

    # the settings that the modelling file reads: the attention factor and log-n
    settings: JsonObject = {"attention_factor": float(schedule.attention_factor)}
    if schedule.log_n is not None:
        settings["log_n"] = {"kind": schedule.log_n.kind, "length": schedule.log_n.length}
    put(config, KEY_OF_SETTINGS, settings, after="rope_parameters")

    return CheckpointResult(
        encoding="buffers",
        verdicts=judge_code(family, config),  # what each runtime does with the modelling file
        config=config,
        family=family,
        in_config=schedule,  # the schedule of the config and the tensor together
        written_as="buffers",
        context=schedule.context,
        notes=(NOTE_ON_REMOTE_CODE.format(f"{MODULE}.py"),),
        texts={f"{MODULE}.py": modelling_file(family, schedule.log_n)},
        added={TENSOR: schedule.inv_freq.astype(np.float32)},  # model.rotary_emb.inv_freq
    )


def class_keys(family: Family) -> JsonObject:
    """Return the keys of config.json that name the classes of the modelling file."""
    assert family.code is not None
    name = f"StoredRope{family.code.prefix}"
    classes = {"AutoConfig": "Config", "AutoModel": "Model", "AutoModelForCausalLM": "ForCausalLM"}
    return {
        "model_type": model_type(family),
        "architectures": [f"{name}ForCausalLM"],
        "auto_map": {auto: f"{MODULE}.{name}{kind}" for auto, kind in classes.items()},
    }


def modelling_file(family: Family, log_n: LogN | None) -> str:
    """Return the text of the modelling file (.py) of a family, with log-n unless that is None."""
    code = family.code
    assert code is not None
    return render(
        f"{MODULE}.py.jinja",
        prefix=code.prefix,
        module=family.model_types[0],
        model_type=model_type(family),
        since=family.since.get("transformers", "4.48"),
        qk_norm=bool(family.weights.q_norm),
        window=code.window,
        log_n=log_n.kind if log_n else "",
    )


def model_type(family: Family) -> str:
    """Return the `model_type` of checkpoints of a family with stored frequencies."""
    return f"{family.name}{STORED_ROPE}"


def _refuse_unwritable(request: EncodeRequest) -> None:
    """Raise UnsupportedBake for a schedule or checkpoint that the encoding "buffers" cannot write.

    The encoding stores the frequencies as a tensor, and adds a modelling file (.py) that loads the
    tensor. The two arguments of `_refusal` are halves of a message: "log-n with window layers
    cannot be baked for stored frequencies: the code has no use_sliding_window".
    """
    schedule = request.schedule
    family = request.family

    # a family without a template of the modelling file (`family.code`)
    if family.code is None:
        raise _refusal(
            family.display_name, "there is code for Llama, Mistral, Qwen 2 and Qwen 3 only"
        )

    # a multimodal model, whose config has the language model in a part such as "text_config"
    language_model: Config = text_part(request.config, family)
    if language_model is not request.config:
        raise _refusal("a model with a vision part", "there is code for the language model only")

    # LongRoPE with a list for short and a list for long inputs
    if schedule.short_inv_freq is not None:
        raise _refusal("a pair of factor lists", "there is one tensor of frequencies")

    # no weights, beside which the frequencies could be stored
    if not request.tensors():
        raise _refusal("only a config.json", "the frequencies become one of the tensors")

    # a checkpoint that has such a tensor already
    if TENSOR in request.tensors():
        raise _refusal(f"a checkpoint with {TENSOR}", "it would be there twice")

    # Qwen 2 with log-n and layers with a window: for log-n the modelling file has its own attention
    # code, which ignores the key that switches windows on, use_sliding_window
    window_switch = family.code.window_switch
    if schedule.log_n and window_switch and language_model.get(window_switch):
        raise _refusal("log-n with window layers", f"the code has no {window_switch}")


def _refusal(change: str, reason: str) -> UnsupportedBake:
    """The error for something that cannot be written as stored frequencies."""
    return UnsupportedBake(change, "stored frequencies", reason, OTHER_ENCODING)
