"""Draft models are recognised, and extended with their target to the same context from their own
trained length.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import ropeconv
from ropeconv.bake.companions import draft_plan, draft_recipe, paired
from ropeconv.bake.plan import Plan
from ropeconv.errors import BadSource, UsageError
from ropeconv.hub.card import companion
from ropeconv.inspection.inspection import inspect_source
from ropeconv.inspection.receipts.storage import read_receipt
from ropeconv.models.open import open_source
from ropeconv.models.registry import config_keys
from ropeconv.rope.errors import RopeconvError
from ropeconv.rope.forms import Yarn
from ropeconv.rope.methods.interpolation import YarnMethod
from ropeconv.rope.recipe import Recipe
from ropeconv.runtimes.drafts import draft_table
from ropeconv.runtimes.runtime import RUNS

from ..conftest import Run, hashes
from ..support.baking import YARN, inspected, make_plan, recipe_of, replaced
from ..support.models import make

EAGLE_3: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 2048,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 1,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.28.1",
    "use_cache": True,
    "vocab_size": 128256,
    "draft_vocab_size": 32000,
}
"""Of EAGLE-3 heads of Llama 3.1 8B:
https://github.com/sgl-project/SpecForge/blob/main/configs/llama3-8B-eagle3.json;
https://github.com/SafeAILab/EAGLE/blob/main/eagle/traineagle3/config.json has the same with the
class of the target.
"""
QWEN_3 = EAGLE_3 | {
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000,
    "vocab_size": 151936,
}
"""What others have in
https://github.com/sgl-project/SpecForge/blob/main/configs/qwen3-8b-eagle3.json.
"""
LLAMA_3 = {
    **{
        key: EAGLE_3[key]
        for key in ("hidden_size", "intermediate_size", "vocab_size", "num_attention_heads")
    },
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-05,
    "torch_dtype": "bfloat16",
}
SIZES = (
    "hidden_size",
    "vocab_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
)


def config(path: Path, data: dict[str, Any]) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(data))
    return path / "config.json"


def head_of(target: Path, path: Path, **changes: Any) -> Path:
    """An EAGLE-3 head for a tiny Llama, trained on 16 tokens, with weights."""
    whole = json.loads((target / "config.json").read_text())
    sizes = {key: whole[key] for key in SIZES if key in whole}
    config(
        path, EAGLE_3 | sizes | {"max_position_embeddings": 16, "draft_vocab_size": 32} | changes
    )
    names = [f"midlayer.self_attn.{name}_proj.weight" for name in "qkvo"] + [
        "fc.weight",
        "d2t",
        "norm.weight",
    ]
    save_file({name: np.ones((2, 2), np.float32) for name in names}, path / "model.safetensors")
    return path


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """Of Llama 3 8B for 32k, from its config alone."""
    return paired(make_plan(config(tmp_path / "target", LLAMA_3), YARN, tmp_path / "out"))


def test_a_head_reaches_the_context_of_its_target_from_its_own_length_and_base(
    plan: Plan, tmp_path: Path
) -> None:
    draft = draft_plan(str(config(tmp_path / "head", EAGLE_3)), plan)
    assert draft.out == tmp_path / "out-draft"
    assert draft.schedule.context == plan.schedule.context == 32768
    assert draft.schedule.original_context == 2048
    np.testing.assert_allclose(
        draft.schedule.inv_freq, Yarn(10000.0, 16.0, 2048).inv_freq(128), rtol=1e-12
    )
    of_target = Yarn(10000.0, 4.0, 2048).inv_freq(128)
    assert not np.allclose(draft.schedule.inv_freq, of_target, rtol=1e-3)
    written = json.loads(
        next(file.text for file in draft.files if file.name == "config.json") or ""
    )
    assert written["max_position_embeddings"] == 32768
    assert (
        written["rope_scaling"]["factor"]
        * written["rope_scaling"]["original_max_position_embeddings"]
        == 32768
    )
    kept = {key: value for key, value in EAGLE_3.items() if key != "max_position_embeddings"}
    assert {key: written[key] for key in kept} == kept


def test_a_head_that_declares_the_length_of_its_target_gets_its_factor(tmp_path: Path) -> None:
    target = QWEN_3 | {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "num_hidden_layers": 36,
    }
    del target["draft_vocab_size"]
    target_plan = paired(
        make_plan(config(tmp_path / "target", target), recipe_of("yarn", "160k"), tmp_path / "out")
    )
    head = draft_plan(str(config(tmp_path / "head", QWEN_3)), target_plan)
    assert (head.schedule.context, head.recipe.method) == (163840, YarnMethod(4.0))


def test_a_method_without_a_factor_is_repeated_only_for_the_same_rope(tmp_path: Path) -> None:
    recipe = Recipe.from_dict({"method": "theta", "parameters": {"base": 4e6}, "context": 32768})
    target_plan = paired(make_plan(config(tmp_path / "target", LLAMA_3), recipe, tmp_path / "out"))
    same = EAGLE_3 | {"rope_theta": 500000.0, "max_position_embeddings": 8192}
    assert (
        draft_plan(str(config(tmp_path / "same", same)), target_plan).recipe.method == recipe.method
    )
    others: dict[str, Any] = {
        "shorter": {"max_position_embeddings": 2048},
        "base": {"rope_theta": 10000.0},
    }
    for name, changes in others.items():
        with pytest.raises(
            UsageError,
            match="--theta cannot be repeated for --draft .*choose a method with a factor",
        ):
            draft_plan(str(config(tmp_path / name, same | changes)), target_plan)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        (
            {"hidden_size": 8192},
            "is for a model with hidden_size 8192, and .* has hidden_size 4096; give the draft",
        ),
        ({"target_hidden_size": 2048}, "is for a model with hidden_size 2048"),
        ({"vocab_size": 32000}, "is for a model with vocab_size 32000, and"),
        (
            {"max_position_embeddings": 32768},
            "declares 32,768 tokens already, which covers the 32,768 of its target",
        ),
        (
            {"medusa_num_heads": 4},
            "is a set of Medusa heads .*they have no RoPE; use them unchanged",
        ),
        (
            {"architectures": ["DeepSeekMTPModel"]},
            "is the MTP layers of a checkpoint .*extend the whole checkpoint",
        ),
        ({"speculators_model_type": "eagle3"}, "layout of the library speculators .*by hand"),
        (
            {"architectures": ["NewDraftModel"], "draft_vocab_size": None},
            "a draft model of another kind .*extend only its target",
        ),
    ],
)
def test_drafts_that_cannot_be_extended_are_refused(
    plan: Plan, tmp_path: Path, changes: dict[str, Any], error: str
) -> None:
    with pytest.raises(RopeconvError, match=error):
        draft_plan(str(config(tmp_path / "head", EAGLE_3 | changes)), plan)


def test_only_runtimes_whose_class_of_drafts_is_known_support_one(
    plan: Plan, tmp_path: Path
) -> None:
    other_plan = draft_plan(str(config(tmp_path / "head", EAGLE_3)), plan)
    statuses = {
        verdict.runtime.partition("@")[0]: verdict.status for verdict in other_plan.result.verdicts
    }
    assert {name for name, status in statuses.items() if status in RUNS} == {"vllm", "sglang"}
    assert statuses["transformers"] == "unsupported"
    grades = {
        verdict.runtime: verdict.grade
        for verdict in other_plan.result.verdicts
        if verdict.status in RUNS
    }
    assert {name for name, grade in grades.items() if grade == "run"} == {
        "vllm@0.33",
        "sglang@0.5.20",
        "sglang@0.5.23",
    }
    assert set(grades.values()) == {"run", "read"}
    eagle = EAGLE_3 | {"architectures": ["LlamaForCausalLMEagle"], "draft_vocab_size": None}
    other_plan = draft_plan(str(config(tmp_path / "eagle", eagle)), plan)
    assert {verdict.grade for verdict in other_plan.result.verdicts if verdict.status in RUNS} == {
        "read"
    }
    assert set(statuses.values()) == {"exact", "unsupported", "unknown"}
    phi3 = LLAMA_3 | {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3"}
    other_plan = paired(make_plan(config(tmp_path / "phi3", phi3), YARN, tmp_path / "out"))
    head = draft_plan(
        str(config(tmp_path / "phi-head", EAGLE_3 | {"model_type": "phi3"})), other_plan
    )
    assert {(entry.status, entry.grade) for entry in head.result.verdicts} == {
        ("unsupported", "read"),
        ("unknown", ""),
    }
    assert {entry.source for entry in head.result.verdicts if entry.status == "unknown"} == {""}


def test_a_smaller_model_has_the_verdicts_of_models(plan: Plan, tmp_path: Path) -> None:
    small = LLAMA_3 | {"hidden_size": 2048, "num_hidden_layers": 16}
    draft = draft_plan(str(config(tmp_path / "small", small)), plan)
    assert draft.recipe.method == YarnMethod(4.0)
    assert any(
        verdict.runtime.startswith("transformers") and verdict.status in RUNS
        for verdict in draft.result.verdicts
    )
    assert not any("vLLM refuses" in warning for warning in draft.warnings)
    other = draft_plan(str(config(tmp_path / "other", small | {"vocab_size": 128000})), plan)
    assert (
        "has vocab_size 128000, and its target has vocab_size 128256; vLLM refuses such a pair"
        in other.warnings[0]
    )


def test_on_top_and_replace_go_on_for_the_draft(tmp_path: Path) -> None:
    scaling: dict[str, Any] = {
        "rope_type": "llama3",
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    }
    scaling |= {"factor": 8.0, "original_max_position_embeddings": 8192}
    target = config(
        tmp_path / "target", LLAMA_3 | {"max_position_embeddings": 131072, "rope_scaling": scaling}
    )
    target_plan = make_plan(target, recipe_of("yarn", 2.0, on_top=True), tmp_path / "out")
    head = open_source(str(config(tmp_path / "head", EAGLE_3)))
    head.as_draft = True
    plain = draft_recipe(inspect_source(head), target_plan)
    assert (plain.method, plain.on_top) == (YarnMethod(128.0), False)
    scaled = EAGLE_3 | {"max_position_embeddings": 65536, "rope_scaling": scaling}
    head = open_source(str(config(tmp_path / "scaled", scaled)))
    head.as_draft = True
    again = draft_recipe(inspect_source(head), target_plan)
    assert (again.method, again.on_top) == (YarnMethod(4.0), True)


def test_a_pair_is_written_and_each_names_the_other(run: Run, llama: Path, tmp_path: Path) -> None:
    head_of(llama, tmp_path / "head")
    before = hashes(llama), hashes(tmp_path / "head")
    done = run("apply", "model", "--yarn", "4", "--draft", "head", "-o", "out")
    assert done.returncode == 0, done.stderr
    assert (hashes(llama), hashes(tmp_path / "head")) == before
    assert "head: 16 -> 256 tokens with --yarn 16" in done.stdout
    assert '{"method": "eagle3", "model": "out-draft", "num_speculative_tokens": 3}' in done.stdout
    target, draft = (read_receipt(tmp_path / name) for name in ("out", "out-draft"))
    assert (target.target.draft, target.target.drafts_for) == ("out-draft", "")
    assert (draft.target.draft, draft.target.drafts_for) == ("", "out")
    assert (tmp_path / "out-draft" / "model.safetensors").read_bytes() == (
        tmp_path / "head" / "model.safetensors"
    ).read_bytes()
    cards = {name: (tmp_path / name / "README.md").read_text() for name in ("out", "out-draft")}
    assert "[out-draft](../out-draft)" in cards["out"]
    assert "[out](../out)" in cards["out-draft"]
    assert "AutoModelForCausalLM" in cards["out"]
    assert "AutoModelForCausalLM" not in cards["out-draft"]
    assert (
        companion(target, "me/llama-32k")
        == "[me/llama-32k-draft](https://huggingface.co/me/llama-32k-draft)"
    )
    assert (
        companion(draft, "me/llama-32k-draft")
        == "[me/llama-32k](https://huggingface.co/me/llama-32k)"
    )
    assert (
        companion(draft, "me/head") == "out"
    )  # another name says nothing about that of the target
    with pytest.raises(BadSource, match="EAGLE-3 head.*validate its target"):
        ropeconv.validate_checkpoint(
            ropeconv.Comparison.open(tmp_path / "out-draft", str(tmp_path / "head"))
        )
    trained = run("train-config", "out-draft", "--for", "trl")
    assert (trained.returncode, trained.stdout) == (2, "")
    assert (
        "out-draft is an EAGLE-3 head for speculative decoding; give the output of its target"
        in trained.stderr
    )
    again = run("apply", "model", "--yarn", "4", "--draft", "head", "-o", "out")
    assert again.returncode == 0
    assert "out-draft is complete" in again.stderr
    assert run("restore", "out-draft", "-o", "back", "-q").returncode == 0
    assert hashes(tmp_path / "back") == before[1]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--push", "me/x"), "ropeconv push OUT-draft me/x-draft"),
        (("--to", "safetensors", "--to", "gguf"), "--draft goes with one SOURCE and one output"),
        (("--theta", "1e6"), "choose one"),
    ],
)
def test_nothing_is_written_where_the_pair_is_refused(
    run: Run, llama: Path, tmp_path: Path, options: tuple[str, ...], error: str
) -> None:
    head_of(llama, tmp_path / "head")
    done = run("apply", "model", "--yarn", "4", "--draft", "head", *options)
    assert done.returncode == 2
    assert re.search(error, done.stderr)
    assert {path.name for path in tmp_path.iterdir()} == {"model", "head"}


QWEN_3_DSPARK: dict[str, Any] = {
    "architectures": ["Qwen3DSparkModel"],
    "model_type": "qwen3",
    "hidden_size": 2560,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_hidden_layers": 5,
    "intermediate_size": 9728,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000,
    "block_size": 7,
    "markov_rank": 256,
    "num_target_layers": 36,
    "target_layer_ids": [1, 9, 17, 25, 33],
}
"""The shape of https://github.com/deepseek-ai/DeepSpec's drafts for Qwen 3."""


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, "dspark"),
        ({"architectures": ["Qwen3ForCausalLM"]}, "dspark"),
        ({"architectures": None, "markov_rank": None}, "other"),
        ({"architectures": None, "markov_rank": None, "num_target_layers": None}, "other"),
        (
            {"architectures": None, "markov_rank": None, "dflash_config": {"mask_token_id": 5}},
            "dflash",
        ),
        (
            {"architectures": None, "markov_rank": None, "eagle_aux_hidden_state_layer_ids": [1]},
            "eagle3",
        ),
        (
            {
                "architectures": None,
                "markov_rank": None,
                "num_target_layers": None,
                "target_layer_ids": None,
            },
            None,
        ),
        # DeepSeek V4 is a whole model with such a draft inside
        (
            {
                "architectures": None,
                "markov_rank": None,
                "num_target_layers": None,
                "target_layer_ids": None,
                "dspark_markov_rank": 256,
                "dspark_target_layer_ids": [1],
            },
            None,
        ),
    ],
)
def test_a_draft_is_known_by_what_only_drafts_have(
    changes: dict[str, Any], kind: str | None, tmp_path: Path, run: Run
) -> None:
    config(tmp_path / "draft", QWEN_3_DSPARK | changes)
    shown = run("inspect", "draft/config.json", "--json")
    if kind == "other":
        assert (shown.returncode, "another kind" in shown.stderr) == (1, True)
        return
    assert shown.returncode == 0, shown.stderr
    document = json.loads(shown.stdout)
    assert document["draft"] == kind
    exact = {
        verdict["runtime"].partition("@")[0]
        for verdict in document["runtimes"]
        if verdict["status"] == "exact"
    }
    assert ("transformers" in exact) is (kind is None)
    if kind == "dspark":
        assert exact == set()
    refused = run("apply", "draft/config.json", "--yarn", "4", "-o", "out")
    assert (refused.returncode, "--draft" in refused.stderr) == (
        (0, False) if kind is None else (1, True)
    )


def test_the_published_dflash_draft_stays_one(tmp_path: Path, run: Run) -> None:
    draft = QWEN_3_DSPARK | {
        "architectures": ["DFlashDraftModel"],
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "markov_rank": None,
        "target_layer_ids": None,
        "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
    }
    config(tmp_path / "draft", draft)
    assert (
        "a DFlash draft, not a whole model; for a model with hidden_size 2560"
        in run("inspect", "draft").stdout
    )


def test_weights_without_embeddings_are_those_of_a_draft(llama: Path, run: Run) -> None:
    path = llama / "model.safetensors"
    tensors = load_file(path)
    assert json.loads(run("inspect", "model", "--json").stdout)["draft"] is None
    without_head = {name: value for name, value in tensors.items() if "lm_head" not in name}
    save_file(without_head, path)  # of AutoModel, which is a whole model
    assert json.loads(run("inspect", "model", "--json").stdout)["draft"] is None
    save_file({name: value for name, value in without_head.items() if "embed" not in name}, path)
    refused = run("apply", "model", "--yarn", "4", "-o", "out")
    assert (refused.returncode, "another kind" in refused.stderr) == (1, True)


def test_no_config_class_of_a_whole_model_has_the_keys_of_drafts() -> None:
    keys = {key for kind in draft_table().kinds for key in kind.keys}
    assert {
        name: sorted(keys & of_class) for name, of_class in config_keys().items() if keys & of_class
    } == {}


# A draft's own trained length


def test_the_trained_length_of_a_draft_is_given(plan: Plan, tmp_path: Path) -> None:
    """A head that declares the 8,192 tokens of its target, and was trained on 2,048."""
    head = EAGLE_3 | {"max_position_embeddings": 8192}
    told = draft_plan(str(config(tmp_path / "head", head)), plan)
    assert any("8,192 tokens" in warning for warning in told.warnings)
    assert told.schedule.original_context == 8192
    draft = draft_plan(str(tmp_path / "head" / "config.json"), plan, 2048)
    assert not any("of its target" in warning for warning in draft.warnings)
    assert (draft.schedule.context, draft.schedule.original_context) == (32768, 2048)
    np.testing.assert_allclose(
        draft.schedule.inv_freq, Yarn(10000.0, 16.0, 2048).inv_freq(128), rtol=1e-12
    )
    assert not np.allclose(draft.schedule.inv_freq, told.schedule.inv_freq, rtol=1e-3)
    # its own length, not that of the target, says nothing
    own = draft_plan(str(config(tmp_path / "own", EAGLE_3)), plan)
    assert not any("of its target" in warning for warning in own.warnings)


def test_the_trained_length_of_a_draft_on_the_command_line(
    run: Run, llama: Path, tmp_path: Path
) -> None:
    head_of(llama, tmp_path / "head", max_position_embeddings=256)
    line = ("apply", "model", "--yarn", "4", "--draft", "head", "-o", "out")
    covered = run(*line)
    assert (covered.returncode, "--draft-original-context" in covered.stderr) == (2, True)
    done = run(*line, "--draft-original-context", "16")
    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / "out-draft" / "config.json").read_text())
    assert written["rope_scaling"]["factor"] == 16
    assert written["rope_scaling"]["original_max_position_embeddings"] == 16
    alone = run("apply", "model", "--yarn", "4", "-o", "other", "--draft-original-context", "16")
    assert (alone.returncode, "--draft;" in alone.stderr) == (2, True)
    longer = run(*line, "--draft-original-context", "1k", "--force")
    assert (longer.returncode, "fewer" in longer.stderr) == (2, True)


# Drafts in GGUF: they rotate by the keys of their own header


def draft_file(path: Path, arch: str, **extra: Any) -> Path:
    from ..support.gguf_files import write

    return write(path, arch, {"target_layers": [1, 2, 3], **extra})


@pytest.mark.parametrize("arch", ["eagle3", "dflash"])
def test_a_draft_in_gguf_is_extended_with_its_target(arch: str, tmp_path: Path, run: Run) -> None:
    from ..support.gguf_files import write

    write(tmp_path / "target.gguf")
    draft_file(tmp_path / "draft.gguf", arch)
    done = run("apply", "target.gguf", "--yarn", "4", "--draft", "draft.gguf", "-o", "out.gguf")
    assert done.returncode == 0, done.stderr
    keys = {
        name.rpartition(".")[2]: field.contents()
        for name, field in reader(tmp_path / "out-draft.gguf").items()
        if name.startswith(f"{arch}.rope.scaling.")
    }
    assert (keys["type"], keys["factor"], keys["original_context_length"]) == ("yarn", 4.0, 64)
    assert "-md out-draft.gguf" in done.stdout
    receipts = [read_receipt(tmp_path / name).target for name in ("out.gguf", "out-draft.gguf")]
    assert [(each.draft, each.drafts_for) for each in receipts] == [
        ("out-draft.gguf", ""),
        ("", "out.gguf"),
    ]
    trained = run(
        "apply",
        "target.gguf",
        "--yarn",
        "4",
        "--draft",
        "draft.gguf",
        "--draft-original-context",
        "32",
        "-o",
        "other.gguf",
    )
    assert trained.returncode == 0, trained.stderr
    fields = reader(tmp_path / "other-draft.gguf")
    assert fields[f"{arch}.rope.scaling.factor"].contents() == 8.0
    wrong = draft_file(tmp_path / "wrong.gguf", arch, target_hidden_size=512)
    refused = run("apply", "target.gguf", "--yarn", "4", "--draft", wrong.name, "-o", "third.gguf")
    assert (refused.returncode, "hidden_size 512" in refused.stderr) == (
        1,
        True,
    )


def reader(path: Path) -> dict[str, Any]:
    import gguf

    return dict(gguf.GGUFReader(path).fields)


@pytest.mark.parametrize(
    ("arch", "says"), [("eagle3", "an EAGLE-3 head"), ("dflash", "a DFlash draft")]
)
def test_a_draft_in_gguf_of_its_own(arch: str, says: str, tmp_path: Path, run: Run) -> None:
    draft_file(tmp_path / "draft.gguf", arch)
    shown = run("inspect", "draft.gguf")
    assert says in shown.stdout
    assert "Next: ropeconv apply TARGET" in shown.stdout
    done = run("apply", "draft.gguf", "--yarn", "4", "-o", "out.gguf")
    assert done.returncode == 0, done.stderr
    assert f"{says} and runs" in done.stderr
    assert "llama-server" not in done.stdout
    assert reader(tmp_path / "out.gguf")[f"{arch}.rope.scaling.factor"].contents() == 4.0
    validated = run("validate", "out.gguf", "--against", "draft.gguf")
    assert (validated.returncode, "only with" in validated.stderr) == (
        1,
        True,
    ), validated.stderr
    assert run("restore", "out.gguf", "-o", "back.gguf").returncode == 0
    assert hashes(tmp_path)["back.gguf"] == hashes(tmp_path)["draft.gguf"]
    if arch == "dflash":
        draft_file(tmp_path / "v4.gguf", arch, **{"hyper_connection.count": 4})
        refused = run("apply", "v4.gguf", "--yarn", "4", "-o", "new.gguf")
        assert (refused.returncode, "hyper_connection.count" in refused.stderr) == (1, True)


def test_a_head_alone_is_not_a_model(run: Run, llama: Path, tmp_path: Path) -> None:
    head_of(llama, tmp_path / "head")
    shown = run("inspect", "head")
    assert re.search("EAGLE-3 head.*hidden_size", shown.stdout)
    assert "ropeconv apply TARGET --yarn 1k --draft head" in shown.stdout
    assert json.loads(run("inspect", "head", "--json").stdout)["draft"] == "eagle3"
    assert json.loads(run("inspect", "model", "--json").stdout)["draft"] is None
    for words in (("apply", "head", "--yarn", "4"), ("advise", "head", "--context", "256")):
        refused = run(*words)
        assert refused.returncode == 1
        assert (
            "head is an EAGLE-3 head for speculative decoding, not a whole model; extend it with"
            in refused.stderr
        )


def test_the_first_eagle_heads_are_known_by_their_name(tmp_path: Path) -> None:
    # https://github.com/SafeAILab/EAGLE/blob/main/eagle/train/vicuna_7B_config.json has the class
    # of its target
    plain = EAGLE_3 | {"architectures": ["LlamaForCausalLM"], "draft_vocab_size": None}
    with pytest.raises(BadSource, match="is an EAGLE head"):
        inspected(config(tmp_path / "EAGLE-LLaMA3-Instruct-8B", plain))
    for name, changes in {"other": {}, "eagle-7b": {"num_hidden_layers": 32}}.items():
        assert inspected(config(tmp_path / name, plain | changes)).draft is None


def test_mtp_layers_are_told_as_a_part_of_their_model(llama: Path, run: Run) -> None:
    assert "MTP" not in run("inspect", "model").stdout
    replaced(llama / "config.json", "{", '{"num_nextn_predict_layers": 1,')
    assert (
        "MTP layers (1) are extended too, except by --hf-overrides of vLLM"
        in run("inspect", "model").stdout
    )


def test_assisted_generation_of_a_pair_gives_the_text_of_the_target(
    llama: Path, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    small = make("llama", tmp_path / "small", seed=1)
    replaced(
        small / "config.json", '"max_position_embeddings": 64', '"max_position_embeddings": 32'
    )
    output = ropeconv.apply(llama, yarn=4, draft=small, out=tmp_path / "out", check=False)
    assert output.draft is not None
    assert output.draft.path == tmp_path / "out-draft"
    models = [
        transformers.AutoModelForCausalLM.from_pretrained(each.path).eval()
        for each in (output, output.draft)
    ]
    prompt = torch.arange(5, 150)[None] % models[0].config.vocab_size
    options = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": None}
    alone = models[0].generate(prompt, **options)
    assert torch.equal(models[0].generate(prompt, assistant_model=models[1], **options), alone)
    base = transformers.AutoModelForCausalLM.from_pretrained(llama).eval()
    assert not torch.equal(base(prompt).logits, models[0](prompt).logits)
    rotary = models[1].model.rotary_emb
    expected = Yarn(rotary.config.rope_parameters["rope_theta"], 8.0, 32).inv_freq(
        2 * len(rotary.inv_freq)
    )
    np.testing.assert_allclose(rotary.inv_freq.numpy(), expected, rtol=1e-6)
    assert (
        load_file(small / "model.safetensors").keys()
        == load_file(output.draft.path / "model.safetensors").keys()
    )


def test_a_pair_of_gguf_files(tmp_path: Path, run: Run) -> None:
    from ..support.gguf_files import write

    for name in ("target", "small"):
        write(tmp_path / f"{name}.gguf")
    done = run("apply", "target.gguf", "--yarn", "4", "--draft", "small.gguf", "-o", "out.gguf")
    assert done.returncode == 0, done.stderr
    assert "llama-server -m out.gguf" in done.stdout
    assert "-md out-draft.gguf" in done.stdout
    receipts = [read_receipt(tmp_path / name).target for name in ("out.gguf", "out-draft.gguf")]
    assert [(each.draft, each.drafts_for) for each in receipts] == [
        ("out-draft.gguf", ""),
        ("", "out.gguf"),
    ]
    make("llama", tmp_path / "folder")
    mixed = run("apply", "target.gguf", "--yarn", "4", "--draft", "folder", "-o", "new.gguf")
    assert mixed.returncode == 2
    assert "both be" in mixed.stderr
    assert not (tmp_path / "new.gguf").exists()
