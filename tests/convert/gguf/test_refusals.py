"""What the encodings of a GGUF file refuse, and what is named instead."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropeconv.bake.plan import Plan
from ropeconv.convert.gguf_encoding import judge_edit
from ropeconv.errors import UnsupportedBake
from ropeconv.formats.gguf.edit import Edit
from ropeconv.formats.gguf.header import f32, u32
from ropeconv.rope.errors import RopeconvError
from ropeconv.rope.recipe import Recipe

from ...support.baking import LINEAR, MIXED, YARN, make_plan, recipe_of
from ...support.gguf_files import write
from .edits import before, planned

FULL = recipe_of("mixed", 4.0, log_n="full")
CLAMPED = recipe_of("mixed", 4.0, log_n="clamped")
PAIR = recipe_of("mixed", 4.0, keep_short=True)


def refusal(folder: Path, arch: str, of: Recipe, *given: Any, **options: Any) -> str:
    with pytest.raises(RopeconvError) as problem:
        planned(folder, arch, of, *given, **options)
    return str(problem.value)


@pytest.mark.parametrize(
    ("arch", "of", "options", "words"),
    [
        (
            "cogvlm",
            LINEAR,
            {},
            "with the base 10000 whatever the file has; extend the checkpoint instead",
        ),
        ("hunyuan-moe", YARN, {}, "it normalises queries and keys after the rotation"),
        (
            "qwen2",
            YARN,
            {"encoding": "nope"},
            "--encoding nope is not for GGUF; choose auto, keys, tensor or carrier",
        ),
        (
            "starcoder2",
            MIXED,
            {"encoding": "carrier"},
            (
                "starcoder2 as another architecture: this carrier is not known; "
                "theta, linear and yarn fit into its keys"
            ),
        ),
        (
            "qwen3",
            MIXED,
            {"carrier": "llama"},
            "qwen3 as llama: this carrier is not known; theta, linear and yarn fit into its keys",
        ),
        (
            "llama",
            MIXED,
            {"carrier": "qwen2"},
            "this carrier is not known; take --carrier mistral3",
        ),
        (
            "llama",
            YARN,
            {"encoding": "keys", "carrier": "llama"},
            "so --encoding keys does not go with it; leave one",
        ),
        (
            "llama",
            MIXED,
            {"encoding": "keys"},
            "nothing names an arbitrary frequency vector; use --encoding tensor",
        ),
        (
            "llama",
            recipe_of("llama3", 4.0),
            {"encoding": "keys"},
            "llama3 cannot be baked for GGUF metadata",
        ),
        (
            "llama",
            recipe_of("yarn", 4.0, 16.0),
            {"encoding": "keys"},
            "other architectures only and computes 32 and 1",
        ),
        (
            "llama",
            recipe_of("yarn", 4.0, 32.0, 1.0, False),
            {"encoding": "keys"},
            "llama.cpp always rounds the ends",
        ),
        (
            "exaone4",
            PAIR,
            {"encoding": "tensor"},
            "it supports one list; give one list: leave --keep-short out",
        ),
        (
            "qwen2",
            PAIR,
            {"encoding": "tensor"},
            "loads no rope_freqs for it; name a carrier (--carrier llama",
        ),
        (
            "starcoder2",
            MIXED,
            {},
            (
                "starcoder2: by keys, nothing names an arbitrary frequency vector; by tensor, "
                "llama.cpp loads no rope_freqs for it; theta, linear and yarn fit into its keys"
            ),
        ),
        (
            "llama",
            FULL,
            {},
            "take --carrier mistral3, which llama and qwen2 can become, or leave --log-n out",
        ),
        ("mistral3", CLAMPED, {}, "--allow-approximate to take that, or take --log-n full"),
    ],
)
def test_what_a_file_cannot_hold(
    tmp_path: Path, arch: str, of: Recipe, options: dict[str, Any], words: str
) -> None:
    assert words in refusal(tmp_path, arch, of, **options)


def test_a_length_that_also_scales_queries_stays(tmp_path: Path) -> None:
    scaled = {"attention.temperature_scale": 0.1, "rope.scaling.original_context_length": 64}
    shorter = recipe_of("yarn", 4.0, original_context=32)
    words = (
        "yarn over 32 tokens cannot be baked for the keys of mistral3: its original context, 64,"
        " also gives the"
    )
    assert words in refusal(tmp_path, "mistral3", shorter, scaled, encoding="keys")
    assert planned(tmp_path, "mistral3", YARN, scaled, encoding="keys").result.encoding == "keys"
    assert "already" in refusal(tmp_path, "mistral3", FULL, scaled)


@pytest.mark.parametrize(
    ("extra", "more", "words"),
    [
        (
            {},
            {"blk.0.attn_qkv.weight": np.zeros((192, 128), np.float16)},
            "its projections are fused",
        ),
        ({"attention.head_count_kv": [1, 2]}, {}, "its layers have different heads"),
    ],
)
def test_a_file_that_cannot_become_another_architecture(
    tmp_path: Path, extra: dict[str, Any], more: dict[str, Any], words: str
) -> None:
    message = f"this schedule cannot be baked for a carrier: {words}; choose another method"
    assert refusal(tmp_path, "qwen2", MIXED, extra, more) == message
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize("extra", [{}, {"rope.dimension_count": 32}])
def test_window_layers_without_a_norm_of_what_rotates(
    tmp_path: Path, extra: dict[str, int]
) -> None:
    loud = recipe_of("yarn", 4.0, attention_factor=1.5)
    window = {
        "block_count": 6,
        "attention.sliding_window": 32,
        **extra,
    }  # five layers with a window, and one without
    names = [f"blk.{layer}.attn_q_norm.weight" for layer in range(5)]
    norms = {name: np.ones(64, np.float32) for name in names}
    words = (
        "its key would change the window layers too, and they have no F32 query norm that could"
        " undo that"
    )
    assert words in refusal(tmp_path, "gemma3", loud, window)
    assert words in refusal(tmp_path, "gemma3", loud, window, {names[0]: norms[names[0]]})
    assert words in refusal(
        tmp_path, "gemma3", loud, window, norms | {names[1]: np.ones(64, np.float16)}
    )
    if extra:
        assert words in refusal(tmp_path, "gemma3", loud, window, norms)
    else:
        assert set(planned(tmp_path, "gemma3", loud, window, norms).result.edit.changes) == set(
            names
        )


def test_an_edit_is_read_back(tmp_path: Path) -> None:
    """What llama.cpp would compute from the edited header is compared with the schedule."""
    plan = planned(tmp_path, "smollm3", LINEAR, {"block_count": 4})
    model = before(plan)
    edit = plan.result.edit
    assert judge_edit(plan.schedule, model, edit, "keys").status == "exact"

    def found(change: Edit) -> str:
        with pytest.raises(UnsupportedBake) as problem:
            judge_edit(plan.schedule, model, edit.merge(change), "made up")
        return str(problem.value)

    assert "with made up: other layers" in found(Edit({"smollm3.block_count": u32(5)}))
    assert "with made up: it computes" in found(Edit({"smollm3.rope.dimension_count": u32(32)}))
    ones = {"rope_freqs.weight": np.ones(32, np.float32).tobytes()}
    assert "smollm3 with rope_freqs.weight" in found(Edit(added=ones))
    window = planned(tmp_path, "gemma3", YARN, {"block_count": 6, "attention.sliding_window": 32})
    loud = window.result.edit.merge(Edit({"ropeconv.window_norm_scale": f32(1.5)}))
    with pytest.raises(UnsupportedBake, match=r"window layers by 1\.5000"):
        judge_edit(window.schedule, before(window), loud, "keys")


# Encodings for named readers of GGUF other than llama.cpp, and the choice that most of them read


FLAT = recipe_of("yarn", 4.0, attention_factor=1.0)


def plan_of(folder: Path, arch: str, recipe: Recipe = YARN, *runtimes: str, **options: str) -> Plan:
    source = folder / f"{arch}.gguf"
    if not source.exists():
        write(source, arch)
    return make_plan(source, recipe, folder / "out.gguf", runtimes=runtimes, **options)


def statuses(plan: Plan) -> dict[str, str]:
    return {verdict.runtime: verdict.status for verdict in plan.result.verdicts}


@pytest.mark.parametrize(
    ("arch", "recipe", "expected"),
    [
        (
            "llama",
            YARN,
            {"ollama@0.12": "exact", "ik-llama-cpp@2026.4": "exact", "lm-studio": "exact"},
        ),
        ("qwen3", YARN, {"ollama@0.12": "differs"}),
        ("qwen3", FLAT, {"ollama@0.12": "exact"}),
        ("llama", MIXED, {"ik-llama-cpp@2026.4": "ignored", "ik-llama-cpp@2026.8": "exact"}),
    ],
)
def test_what_each_reader_does(
    tmp_path: Path, arch: str, recipe: Recipe, expected: dict[str, str]
) -> None:
    assert expected.items() <= statuses(plan_of(tmp_path, arch, recipe)).items()


def test_auto_takes_the_tensor_where_more_readers_read_it(tmp_path: Path) -> None:
    """In mistral3, ik_llama.cpp 2026.8 reads the base and the tensor; its yarn is untested."""
    result = plan_of(tmp_path, "mistral3", FLAT).result
    reasons = {
        choice.encoding: choice.reason for choice in result.considered if not choice.selected
    }
    assert result.encoding == "tensor"
    assert list(reasons) == ["keys"]
    assert (
        plan_of(tmp_path, "mistral3", YARN).result.encoding == "keys"
    )  # Ollama 0.12 does not use the tensor


def test_a_named_reader_decides(tmp_path: Path) -> None:
    assert plan_of(tmp_path, "llama", YARN, "ik-llama-cpp", "ollama").result.encoding == "keys"
    assert plan_of(tmp_path, "qwen3", YARN, "ollama").result.encoding == "keys"
    with pytest.raises(UnsupportedBake) as refusal:
        plan_of(tmp_path, "qwen3", YARN, "ollama@0.12")
    assert "Ollama 0.12: with keys: differs" in str(refusal.value)
    assert "with tensor: " in str(refusal.value)
    assert "--runtime ollama" in str(refusal.value)


@pytest.mark.parametrize(
    ("arch", "recipe", "readers", "options", "words"),
    [
        (
            "llama",
            LINEAR,
            ("ik-llama-cpp@2026.5",),
            {"encoding": "tensor"},
            "with tensor: ignored.*with keys: exact; .*; take --encoding keys$",
        ),
        (
            "qwen3",
            YARN,
            ("ollama@0.12", "koboldcpp"),
            {},
            (
                "with keys: Ollama 0.12 differs, .* and koboldcpp .*; leave --runtime koboldcpp"
                " out, and measure what"
            ),
        ),
        (
            "qwen2",
            MIXED,
            ("ollama@0.12",),
            {"carrier": "mistral3"},
            "with carrier: ignored, .*; leave --runtime ollama out, or choose another method$",
        ),
    ],
)
def test_the_way_out_where_a_named_reader_does_not_compute_it(
    tmp_path: Path,
    arch: str,
    recipe: Recipe,
    readers: tuple[str, ...],
    options: dict[str, str],
    words: str,
) -> None:
    with pytest.raises(UnsupportedBake, match=words):
        plan_of(tmp_path, arch, recipe, *readers, **options)


def test_a_program_that_runs_llama_cpp_has_its_verdict(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "qwen3", YARN, "LM Studio")
    assert statuses(plan)["lm-studio"] == "exact"
    (remark,) = [
        verdict.reason for verdict in plan.result.verdicts if verdict.runtime == "lm-studio"
    ]
    assert "in llama.cpp" in remark
    # qwen3's file has no place for another vector, which llama.cpp would not read either
    with pytest.raises(UnsupportedBake):
        plan_of(tmp_path, "qwen3", MIXED, "LM Studio")


def test_nobody_looked(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedBake, match="is untested.*`ropeconv validate FILE --server URL`"):
        plan_of(tmp_path, "qwen3", YARN, "koboldcpp")
