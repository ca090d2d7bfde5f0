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
SETTINGS = "stored_rope"
TENSOR = "model.rotary_emb.inv_freq"
OTHER_ENCODING = "use --encoding auto"
NOTE_ON_REMOTE_CODE = (
    "needs trust_remote_code: it comes with {}, about a screen of code, which users will want to"
    " read"
)


@encoding("buffers", order=5, max_ulp=0, model_type=lambda name: f"{name}{STORED_ROPE}")
def buffers(request: EncodeRequest) -> CheckpointResult:
    """Write the schedule as a tensor of frequencies, with a modelling file (.py) that uses it.

    transformers runs such a file with `trust_remote_code`. The tensor can hold any frequencies.

    Raises:
        UnsupportedBake: For families without a modelling file, for two factor lists, and where only
            a config.json is given, without weights.
    """
    schedule = request.schedule
    family = request.family
    _refuse_unwritable(request)

    # The config has no scaling. The modelling file takes the frequencies from the tensor, and the
    # attention factor and log-n from the key "stored_rope" of the config.
    unscaled = RopeSetting({"rope_type": "default"}, request.spec.rope_theta, schedule.context)
    baked = bake_config(request.config, family, request.spec, unscaled)
    stored_rope: JsonObject = {"attention_factor": float(schedule.attention_factor)}
    if schedule.log_n is not None:
        stored_rope["log_n"] = {"kind": schedule.log_n.kind, "length": schedule.log_n.length}

    # the keys by which transformers finds the class in the modelling file
    named = class_keys(family)
    baked["model_type"] = named["model_type"]
    baked["architectures"] = named["architectures"]
    put(baked, "auto_map", named["auto_map"], after="architectures")
    put(baked, SETTINGS, stored_rope, after="rope_parameters")

    return CheckpointResult(
        "buffers",
        judge_code(family, baked),
        config=baked,
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
    """Return the text of the modelling file for a family; `log_n` is that of the schedule."""
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

    It stores the frequencies as a tensor, and adds a modelling file (.py) that reads them.
    """
    schedule = request.schedule
    family = request.family

    # the modelling file is made for a few families, with one vector of frequencies
    if family.code is None:
        raise _refusal(
            family.display_name, "there is code for Llama, Mistral, Qwen 2 and Qwen 3 only"
        )
    # a multimodal config has the settings of the language model in a part of their own
    part: Config = text_part(request.config, family)
    if part is not request.config:
        raise _refusal("a model with a vision part", "there is code for the language model only")
    if schedule.short_inv_freq is not None:
        raise _refusal("a pair of factor lists", "there is one tensor of frequencies")

    # the frequencies are stored beside the weights
    if not request.tensors():
        raise _refusal("only a config.json", "the frequencies become one of the tensors")
    if TENSOR in request.tensors():
        raise _refusal(f"a checkpoint with {TENSOR}", "it would be there twice")

    # With log-n the modelling file has attention of its own, which does not read the config key
    # that switches windows on, such as use_sliding_window of Qwen 2.
    switch = family.code.window_switch
    if schedule.log_n and switch and part.get(switch):
        raise _refusal("log-n with window layers", f"the code has no {switch}")


def _refusal(change: str, reason: str) -> UnsupportedBake:
    """The error for something that cannot be written as stored frequencies."""
    return UnsupportedBake(change, "stored frequencies", reason, OTHER_ENCODING)
