"""What `inspect` says about configs that are wrong or will surprise somebody, and about draft
models.
"""

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ropeconv.bake.evidence import trained_scaling
from ropeconv.errors import BadSource, UnsupportedBake
from ropeconv.inspection.document import Problem
from ropeconv.inspection.inspection import ConfigInspection, inspect_source
from ropeconv.inspection.problems import config_problems
from ropeconv.models.open import open_source
from ropeconv.rope.methods.method import REGISTRY
from ropeconv.rope.recipe import Recipe

from ..support.baking import apply, inspected, make_plan, recipe_of, replaced
from ..support.extent import sample
from ..support.gguf_files import write
from ..support.in_process import command
from ..support.models import TRAINED
from ..support.rotary import rotary

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "max_position_embeddings": 32768,
    "rope_theta": 5e6,
}
GEMMA3 = {**LLAMA, "model_type": "gemma3_text", "sliding_window": 512}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LINEAR = {"rope_type": "linear", "factor": 4.0}
LLAMA_3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
NTK = {"type": "dynamic", "factor": 2.0}
PLAIN = {"rope_type": "default", "rope_theta": 5e6}


def seen(tmp_path: Path, config: dict[str, Any]) -> dict[str, Problem]:
    (tmp_path / "config.json").write_text(json.dumps(config))
    return {problem.code: problem for problem in inspected(tmp_path / "config.json").problems}


def without(key: str, config: dict[str, Any] = LLAMA) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name != key}


MIMO: dict[str, Any] = {
    "model_type": "mimo_v2_flash",
    "hidden_size": 4096,
    "num_attention_heads": 64,
    "num_hidden_layers": 2,
    "head_dim": 192,
    "max_position_embeddings": 262144,
    "layer_types": ["full_attention", "sliding_attention"],
    "rope_theta": 5000000,
    "swa_rope_theta": 10000,
    "partial_rotary_factor": 0.334,
}
DECLARED = {**LLAMA, "max_position_embeddings": 131072}


@pytest.mark.parametrize(
    ("config", "codes"),
    [
        (LLAMA, set()),
        ({**LLAMA, "rope_scaling": None, "rope_parameters": PLAIN}, set()),
        (without("rope_theta") | {"rope_parameters": PLAIN}, {"schemas"}),
        (
            {**LLAMA, "rope_parameters": {**PLAIN, "rope_theta": 10000.0}},
            {"schemas", "contradiction"},
        ),
        (without("rope_theta") | {"rope_scaling": {**LINEAR, "rope_theta": 5e6}}, {"schemas"}),
        (
            {**LLAMA, "rope_scaling": {"type": "linear", "rope_type": "dynamic", "factor": 4.0}},
            {"schemas", "contradiction", "dynamic"},
        ),
        ({**LLAMA, "rope_scaling": YARN}, {"context"}),
        ({**DECLARED, "rope_scaling": YARN}, set()),
        # more than four times the original length
        ({**DECLARED, "max_position_embeddings": 200000, "rope_scaling": YARN}, {"context"}),
        (
            {**LLAMA, "rope_scaling": without("original_max_position_embeddings", YARN)},
            {"context", "original"},
        ),
        ({**DECLARED, "rope_scaling": {**YARN, "attn_factor": 0.9}}, {"attn-factor"}),
        ({**LLAMA, "rope_scaling": NTK}, {"dynamic"}),
        ({**LLAMA, "model_type": "mistral", "sliding_window": 4096}, set()),
        ({**LLAMA, "model_type": "mistral", "sliding_window": None}, set()),
        (
            {**LLAMA, "model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False},
            set(),
        ),
        ({**GEMMA3, "rope_theta": 1e6, "rope_parameters": PLAIN}, {"flat"}),
        ({**GEMMA3, "rope_theta": 1e6}, set()),
        ({**LLAMA, "auto_map": {"AutoConfig": "x.Y"}}, set()),
        # Llama 3.1 and EXAONE 3.5 as published: what they declare is no product of factor and
        # original length
        ({**DECLARED, "rope_scaling": LLAMA_3}, set()),
        ({**LLAMA, "rope_theta": 10000.0}, set()),
        # Vicuna 16k: what it declares is the trained length
        (
            {
                **LLAMA,
                "max_position_embeddings": 4096,
                "max_sequence_length": 16384,
                "rope_scaling": LINEAR,
            },
            {"context"},
        ),
    ],
)
def test_codes(tmp_path: Path, config: dict[str, Any], codes: set[str]) -> None:
    assert set(seen(tmp_path, config)) == codes


@pytest.mark.parametrize(
    ("declared", "factor", "trained", "covered"),
    [
        (2048, 8.0, 2048, 16384),  # LongChat-13b-16k
        (16384, 8.0, 2048, 16384),
        (4096, 4.0, 4096, 16384),  # Vicuna 16k, without its max_sequence_length
        (4096, 8.0, 4096, 32768),
        (32768, 8.0, 4096, 32768),  # LLaMA-2-7B-32K
        (16384, 4.0, 4096, 16384),
    ],
)
def test_no_model_was_trained_for_a_few_hundred_tokens(
    declared: int, factor: float, trained: int, covered: int, tmp_path: Path
) -> None:
    """A linear scaling stands beside the trained length, or beside the reached one."""
    scaling = {"type": "linear", "factor": factor}
    config = {**LLAMA, "max_position_embeddings": declared, "rope_scaling": scaling}
    (tmp_path / "config.json").write_text(json.dumps(config))
    inspection = inspect_source(open_source(str(tmp_path / "config.json")))
    assert inspection.spec.original_context == trained
    assert trained_scaling(inspection)
    problems = {problem.code: problem.repair for problem in inspection.problems}
    assert problems.get("context") == (
        f"--as-is --context {covered}" if declared < covered else None
    )


@pytest.mark.parametrize(
    ("scaling", "trained", "covered"),
    [(YARN, 16384, 131072), (YARN, 65536, 131072), (LINEAR, 16384, 65536), (LINEAR, 65536, 262144)],
)
def test_a_trained_length_of_its_own_does_not_change_what_yarn_covers(
    scaling: dict[str, Any], trained: int, covered: int, tmp_path: Path
) -> None:
    """YaRN is computed over the length beside it, whatever a receipt says about the training."""
    config = {**DECLARED, "max_position_embeddings": 131072, "rope_scaling": scaling}
    (tmp_path / "config.json").write_text(json.dumps(config))
    inspection = inspect_source(open_source(str(tmp_path / "config.json")))
    assert isinstance(inspection, ConfigInspection)
    spec = replace(inspection.spec, original_context=trained, original_context_source="receipt")
    assert spec.covered_context == covered
    problems = list(config_problems(config, inspection.model_family, spec))
    repairs = [problem.repair for problem in problems if problem.code == "context"]
    declares_less = covered > 131072
    assert repairs == ([f"--as-is --context {covered}"] if declares_less else [])


@pytest.mark.parametrize(
    ("config", "code", "repair", "theta", "factor"),
    [
        # Qwen's documented form with the old context: the factor is there, the window is not
        (
            {**LLAMA, "rope_scaling": YARN},
            "context",
            "--as-is --context 131072",
            5e6,
            0.1 * math.log(4) + 1,
        ),
        # the window is there, the factor is not
        (
            {**LLAMA, "max_position_embeddings": 200000, "rope_scaling": YARN},
            "context",
            "--as-is --context 131072",
            5e6,
            0.1 * math.log(4) + 1,
        ),
        (
            {
                **LLAMA,
                "max_position_embeddings": 4096,
                "max_sequence_length": 16384,
                "rope_scaling": LINEAR,
            },
            "context",
            "--as-is --context 16384",
            5e6,
            1.0,
        ),
        # only the schema of transformers 5, which earlier versions do not read
        (without("rope_theta") | {"rope_parameters": PLAIN}, "schemas", "--as-is", 5e6, 1.0),
    ],
)
def test_the_flags_of_a_problem_keep_the_rope_that_transformers_computes(
    tmp_path: Path, config: dict[str, Any], code: str, repair: str, theta: float, factor: float
) -> None:
    assert seen(tmp_path, config)[code].repair == repair
    before = rotary(tmp_path / "config.json")
    after = tmp_path / "repaired"
    command(tmp_path, "apply", tmp_path / "config.json", *repair.split(), "-o", after, "-q", code=0)
    frequencies, attention_factor = rotary(after / "config.json")
    assert np.array_equal(frequencies, before[0])
    assert attention_factor == before[1] == pytest.approx(factor)
    assert frequencies[0] == pytest.approx(1.0 if "linear" not in json.dumps(config) else 0.25)
    assert frequencies[1] / frequencies[0] == pytest.approx(theta ** (-1 / 64))
    fixed = {problem.code for problem in inspected(after / "config.json").problems}
    assert code not in fixed


@pytest.mark.parametrize(
    ("config", "code"),
    [
        # two bases, two rope types, two factors: which one the weights were trained with is not
        # known
        ({**LLAMA, "rope_parameters": {**PLAIN, "rope_theta": 10000.0}}, "schemas"),
        ({**LLAMA, "rope_scaling": LINEAR, "rope_parameters": PLAIN}, "schemas"),
        (
            {
                **LLAMA,
                "rope_scaling": LINEAR,
                "rope_parameters": {**LINEAR, "factor": 8.0, "rope_theta": 5e6},
            },
            "schemas",
        ),
        (
            {**LLAMA, "rope_scaling": {"type": "linear", "rope_type": "dynamic", "factor": 4.0}},
            "schemas",
        ),
        # right in transformers as it is; fixed frequencies are those of one length
        ({**LLAMA, "rope_scaling": NTK}, "dynamic"),
        # a family whose class reads other keys than the code that the publisher trained with
        ({**LLAMA, "swa_rope_theta": 10000.0}, "ignored-key"),
        ({**LLAMA, "partial_rotary_factor": 0.5}, "ignored-key"),
        ({**GEMMA3, "rope_theta": 1e6, "rope_parameters": PLAIN}, "flat"),
        # DeepSeek-R1-0528-Qwen3-8B: SGLang computes the attention factor 1, transformers 1.1386
        ({**DECLARED, "rope_scaling": {**YARN, "attn_factor": 0.8782488562869419}}, "attn-factor"),
        # yarn by 4 over an assumed length: with the declared one as the original, it would reach
        # four times as far
        (
            {**DECLARED, "rope_scaling": without("original_max_position_embeddings", YARN)},
            "original",
        ),
        (
            {**DECLARED, "rope_scaling": without("original_max_position_embeddings", YARN)},
            "context",
        ),
    ],
)
def test_a_command_that_could_replace_what_the_weights_were_trained_with_is_not_printed(
    tmp_path: Path, config: dict[str, Any], code: str
) -> None:
    assert seen(tmp_path, config)[code].repair is None
    shown = command(tmp_path, "inspect", "config.json", "--explain", code=0).stdout
    assert ("Fix:" in shown, "Fixable" in shown and code != "dynamic") == (False, False)


def test_the_keys_of_a_publisher_are_not_replaced_by_those_of_the_class(tmp_path: Path) -> None:
    """The class of MiMo reads only rope_parameters, and `--as-is` writes its own bases in them."""
    assert (
        seen(tmp_path, MIMO | {"rope_theta": 640000, "swa_rope_theta": 50000})["ignored-key"].repair
        is None
    )
    command(
        tmp_path, "apply", tmp_path / "config.json", "--as-is", "-o", tmp_path / "out", "-q", code=0
    )
    written = json.loads((tmp_path / "out" / "config.json").read_text())["rope_parameters"]
    assert written["full_attention"]["rope_theta"] == 5000000  # which is why
    assert written["sliding_attention"]["rope_theta"] == 10000


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("orignal_max_position_embeddings", "original_max_position_embeddings"),
        ("beta_fats", "beta_fast"),
        ("rope_typ", "rope_type"),
        ("atention_factor", "attention_factor"),
        ("low_frequency_factor", "low_freq_factor"),
    ],
)
def test_a_misspelt_key_is_named_with_the_right_one(tmp_path: Path, key: str, meant: str) -> None:
    config = {**LLAMA, "max_position_embeddings": 131072, "rope_scaling": {**YARN, key: 1}}
    assert f"{key}; did you mean {meant}?" in seen(tmp_path, config)["misspelt"].message


IGNORED: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    (MIMO, ("rope_theta", "swa_rope_theta", "partial_rotary_factor")),
    ({**LLAMA, "swa_rope_theta": 10000.0}, ("swa_rope_theta",)),
    (
        {**LLAMA, "rope_theta_scale": 2.0, "rotary_base": 500000},
        ("rope_theta_scale", "rotary_base"),
    ),
    ({**LLAMA, "model_type": "gpt_neox", "rotary_pct": 0.25, "rope_theta": 5e5}, ("rope_theta",)),
    (
        {
            **LLAMA,
            "model_type": "gpt_neox",
            "rope_theta": 5e5,
            "rope_parameters": {"rope_theta": 5e5},
        },
        (),
    ),
    (GEMMA3, ()),
    ({**GEMMA3, "rope_local_base_freq": 10000.0}, ()),
    ({**LLAMA, "model_type": "phi3", "original_max_position_embeddings": 32768}, ()),
    ({**LLAMA, "rope_scaling": None, "swa_rope_theta": None, "num_rope": 0}, ()),
    # not in transformers
    ({**LLAMA, "model_type": "chatglm", "num_layers": 2, "seq_length": 8192, "rope_ratio": 50}, ()),
]


@pytest.mark.parametrize(("config", "keys"), IGNORED)
def test_keys_that_the_class_ignores(
    tmp_path: Path, config: dict[str, Any], keys: tuple[str, ...]
) -> None:
    problem = seen(tmp_path, config).get("ignored-key")
    assert bool(problem) is bool(keys)
    assert problem is None or problem.message.partition(" ignores ")[2].startswith(
        " and ".join(keys)
    )


LLAVA: dict[str, Any] = {"model_type": "llava", "text_config": LLAMA}
AROUND: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"rope_scaling": YARN}, ("rope_scaling",)),
    ({"rope_parameters": PLAIN | {"rope_theta": 1e6}}, ("rope_parameters",)),
    (
        {"rope_theta": 1e6, "max_position_embeddings": 131072},
        ("rope_theta", "max_position_embeddings"),
    ),
    # the same as in the text part, and settings of nothing
    ({"rope_theta": 5e6, "max_position_embeddings": 32768}, ()),
    ({"rope_scaling": None, "rope_parameters": {}}, ()),
    ({"max_position_embeddings": 4096}, ()),
    ({"text_config": {**LLAMA, "rope_scaling": YARN}, "rope_scaling": YARN}, ()),
]


@pytest.mark.parametrize(("around", "keys"), AROUND)
def test_settings_outside_the_text_part(
    tmp_path: Path, around: dict[str, Any], keys: tuple[str, ...]
) -> None:
    """Qwen's README has rope_scaling for the top of a config, where its later classes ignore it."""
    problem = seen(tmp_path, LLAVA | around).get("outside-text")
    assert bool(problem) is bool(keys)
    if problem is not None:
        assert (problem.message.startswith(" and ".join(keys)), problem.repair) == (True, None)
        assert "text_config" in problem.message
        plan = make_plan(tmp_path / "config.json", recipe_of("yarn", 8.0), tmp_path / "out")
        assert any(keys[0] in warning for warning in plan.warnings)


# What ropeconv itself wrote is never suspicious: `inspect` finds in an output what it found in the
# source


PAIRS = 32
VECTOR = tuple(float(value) for value in 10000.0 ** (-np.arange(PAIRS) / PAIRS) / 3)
PARAMETERS: dict[str, tuple[Any, ...]] = {
    "theta": (1e6,),
    "theta-for": (256,),
    "theta-bound": (256,),
    "longrope": ((4.0,) * PAIRS, (2.0,) * PAIRS),
    "piecewise": ("8@16",),
    "inv-freq": (VECTOR,),
    "dynamic": ("ntk:4", 256),
    "as-is": (),
}


def recipe(method: str, context: int = 0) -> Recipe:
    lengths = {"theta", "longrope", "piecewise", "inv-freq"}
    target = context or (256 if method in lengths else None)
    return recipe_of(method, *PARAMETERS.get(method, (4.0,)), context=target)


def codes(path: Path) -> set[str]:
    return {problem.code for problem in inspected(path).problems} - {"bound"}


FOLDERS = list(product(sorted(REGISTRY), ("native", "factors", "weights", "ministral3"), (0, 200)))
FILES = list(product(sorted(REGISTRY), ("keys", "tensor", "carrier"), (0, 200)))


@pytest.mark.parametrize(("method", "encoding", "context"), sample(FOLDERS))
def test_folders(llama: Path, tmp_path: Path, method: str, encoding: str, context: int) -> None:
    """buffers have a model type of their own, which inspect does not read."""
    (llama / "tokenizer_config.json").write_text('{"model_max_length": 64}')
    assert_nothing_new(llama, tmp_path / "out", recipe(method, context), encoding)


@pytest.mark.parametrize(("method", "encoding", "context"), sample(FILES))
def test_gguf_files(tmp_path: Path, method: str, encoding: str, context: int) -> None:
    assert_nothing_new(
        write(tmp_path / "model.gguf"), tmp_path / "out.gguf", recipe(method, context), encoding
    )


def assert_nothing_new(source: Path, out: Path, of: Recipe, encoding: str) -> None:
    try:
        plan = make_plan(source, of, out, encoding=encoding)
    except UnsupportedBake:
        return
    assert codes(apply(plan)) == codes(source) == set()
    assert inspected(out).spec.original_context == TRAINED


def test_the_same_settings_of_somebody_else_are_suspicious(llama: Path, tmp_path: Path) -> None:
    """Without the receipt, or with a config that was edited, nobody says that the shorter context
    was wanted.
    """
    out = apply(make_plan(llama, recipe("yarn", 200), tmp_path / "out"))
    receipt = out / "ropeconv.json"
    config = json.loads((out / "config.json").read_text())
    assert codes(out) == set()
    receipt.rename(tmp_path / "ropeconv.json")
    assert codes(out) == {"context"}
    (tmp_path / "ropeconv.json").rename(receipt)
    (out / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 128}))
    assert codes(out) == {"context"}
    receipt.write_text("{")  # a damaged receipt is none
    assert codes(out) == {"context"}


# Draft models for speculative decoding have the config of a model and other tensors: they are
# refused

ATTENTION = (
    "self_attn.q_proj.weight",
    "self_attn.k_proj.weight",
    "self_attn.v_proj.weight",
    "self_attn.o_proj.weight",
)
EAGLE = [f"layers.0.{name}" for name in ATTENTION] + ["embed_tokens.weight", "fc.weight"]
EAGLE_3 = [f"midlayer.{name}" for name in ATTENTION] + [
    "fc.weight",
    "d2t",
    "t2d",
    "norm.weight",
    "lm_head.weight",
]
MEDUSA = ["0.0.linear.weight", "0.1.weight", "1.0.linear.weight"]
MTP = [
    f"model.layers.61.{name}"
    for name in (*ATTENTION, "eh_proj.weight", "enorm.weight", "hnorm.weight")
]
QWEN_MTP = [f"mtp.layers.0.{name}" for name in ATTENTION] + ["mtp.fc.weight", "mtp.norm.weight"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (EAGLE, "is an EAGLE head for speculative decoding"),
        (EAGLE_3, "is an EAGLE-3 head for speculative decoding"),
        *(
            (names, "none of its 2 layers has self_attn.q_proj")
            for names in (MEDUSA, MTP, QWEN_MTP)
        ),
    ],
    ids=["EAGLE", "EAGLE-3", "Medusa", "MTP", "Qwen's MTP"],
)
def test_draft_models_are_refused_by_their_tensors(
    llama: Path, names: list[str], message: str
) -> None:
    save_file({name: np.ones((2, 2), np.float32) for name in names}, llama / "model.safetensors")
    with pytest.raises(
        BadSource, match=f"{message}.*(extend it with its target|extend that model)"
    ):
        inspected(llama)


@pytest.mark.parametrize(
    ("name", "kind"),
    {
        "LlamaForCausalLMEagle3": "an EAGLE-3 head",
        "Eagle3LlamaForCausalLM": "an EAGLE-3 head",
        "EagleLlamaForCausalLM": "an EAGLE head",
        "MedusaModel": "a set of Medusa heads",
        "DeepSeekMTPModel": "the MTP layers of a checkpoint",
        "DFlashDraftModel": "a DFlash draft",
        "MLPSpeculatorPreTrainedModel": "an MLP speculator",
    }.items(),
)
def test_a_config_alone_is_refused_by_its_class(llama: Path, name: str, kind: str) -> None:
    replaced(llama / "config.json", "LlamaForCausalLM", name)
    with pytest.raises(BadSource, match=f"is {kind} for speculative decoding, not a whole model; "):
        inspected(llama / "config.json")


@pytest.mark.parametrize(
    ("rename", "more"),
    [
        (lambda name: name, []),
        (lambda name: name.removeprefix("model."), []),  # saved by AutoModel
        (lambda name: f"language_model.{name}", []),  # inside LLaVA
        (lambda name: re.sub(r"_proj\.weight$", "_proj.qweight", name), []),  # GPTQ
        (lambda name: name, MTP + QWEN_MTP),  # layers that predict further tokens, beside a model
    ],
)
def test_models_are_not(llama: Path, rename: Callable[[str], str], more: list[str]) -> None:
    tensors = {
        rename(name): value for name, value in load_file(llama / "model.safetensors").items()
    }
    tensors |= {name: np.ones((2, 2), np.float32) for name in more}
    save_file(tensors, llama / "model.safetensors")
    assert inspected(llama).name == "llama"
