"""What a plan starts from: scaled sources, lengths, that nothing becomes shorter unasked, and what
it refuses.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import ropeconv
from ropeconv.bake.plan import Plan
from ropeconv.bake.restore import restore_plan
from ropeconv.errors import BadSource, UnsupportedBake, UsageError
from ropeconv.features.identify.identifying import Subject
from ropeconv.inspection.inspection import inspect_source
from ropeconv.models.open import open_source
from ropeconv.rope.errors import RopeconvError
from ropeconv.rope.forms import Llama3, Yarn
from ropeconv.rope.recipe import Recipe
from ropeconv.verbs.given_model import find

from ..conftest import CONFIGS
from ..convert.made_requests import CONFIG
from ..support.baking import AS_IS, YARN, apply, make_plan, recipe_of
from ..support.gguf_files import plain_tensors, write
from ..support.models import make

LLAMA_3_1 = CONFIGS / "meta-llama--Meta-Llama-3.1-8B.json"  # 8,192 tokens trained, 131,072 declared
LLAMA_3 = CONFIGS / "meta-llama--Meta-Llama-3-8B.json"
DEEPSEEK_V3 = CONFIGS / "deepseek-ai--DeepSeek-V3.json"
DEEPSEEK_V2 = CONFIGS / "deepseek-ai--DeepSeek-V2-Lite.json"
GPT_OSS = CONFIGS / "openai--gpt-oss-20b.json"


def plan(
    source: Path,
    method: str,
    *values: object,
    context: int | None = None,
    on_top: bool = False,
    **more,
) -> Plan:
    given = {"original_context": more.pop("original_context")} if "original_context" in more else {}
    return make_plan(
        source, recipe_of(method, *values, context=context, on_top=on_top, **given), **more
    )


# Scaled sources


def test_a_scaled_model_needs_a_word(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(
        RopeconvError,
        match=r"is scaled already \(llama3, .*\); pass --on-top .*--as-is .*--replace",
    ):
        plan(LLAMA_3_1, "yarn", 32.0)
    assert plan(LLAMA_3_1, "as-is").schedule.form == Llama3(500000.0, 8.0, 8192)
    baked = apply(plan(llama, "ntk", 4.0, out=tmp_path / "out"))
    with pytest.raises(RopeconvError, match="extended by ropeconv"):
        plan(baked, "yarn", 8.0)


@pytest.mark.parametrize(
    ("source", "method", "value", "form"),
    [
        (LLAMA_3_1, "llama3", "512k", Llama3(500000.0, 32.0, 8192)),
        (DEEPSEEK_V3, "yarn", 2.0, Yarn(10000.0, 80.0, 4096)),
        (GPT_OSS, "yarn", "256k", Yarn(150000.0, 64.0, 4096, truncate=False)),
    ],
)
def test_on_top_keeps_the_scaling_of_published_models(
    source: Path, method: str, value: object, form: object
) -> None:
    bake_plan = plan(source, method, value, on_top=True)
    assert bake_plan.schedule.form == form
    assert bake_plan.result.encoding == "native"
    assert not any("being replaced" in warning for warning in bake_plan.warnings)


@pytest.mark.parametrize(("source", "factor"), [(DEEPSEEK_V2, 80), (GPT_OSS, 64)])
def test_plot_and_identify_take_the_settings_of_the_model_as_apply_does(
    source: Path, factor: int
) -> None:
    """DeepSeek's mscale pair, and truncate of gpt-oss, which is off."""
    written = plan(source, "yarn", float(factor), replace=True).schedule
    plotted = find(str(source), {"yarn": str(factor)}, None, None).schedules()
    assert [schedule.digest for schedule in plotted.values()] == [written.digest]

    recipe = recipe_of("yarn", float(factor))
    named = Subject.of_recipe(str(source), recipe)
    assert named.extension.schedule.digest == written.digest

    # the control: YaRN without these settings is another schedule
    unscaled = inspect_source(open_source(str(source))).spec.unscaled()
    assert recipe.schedule(unscaled).digest != written.digest


# Lengths


@pytest.mark.parametrize(
    ("method", "values", "declared", "repair", "way_out"),
    [
        ("yarn", (4.0,), "32,768", "pass --yarn 512k, or --context 32k if you mean it", ("512k",)),
        (
            "linear",
            ("64k",),
            "65,536",
            "pass --linear 256k, or --context 64k if you mean it",
            ("256k",),
        ),
        (
            "piecewise",
            ("2@35",),
            "16,384",
            "pass --piecewise 256k@35, or --context 16k if you mean it",
            ("256k@35",),
        ),
        (
            "theta",
            (1e6,),
            "8,192",
            "pass --context 128k to keep that, or --context 8k if you mean it",
            None,
        ),
        (
            "dynamic",
            ("yarn:4", 32768),
            "32,768",
            "pass --dynamic yarn:32 --at 256k, or --context 32k if you mean it",
            ("yarn:32", 262144),
        ),
    ],
)
def test_a_shorter_result_is_refused_with_two_ways_out_that_work(
    method: str,
    values: tuple[Any, ...],
    declared: str,
    repair: str,
    way_out: tuple[Any, ...] | None,
) -> None:
    with pytest.raises(UsageError) as refusal:
        plan(LLAMA_3_1, method, *values, replace=True)
    assert (
        str(refusal.value) == f"the result declares {declared}, less than today's 131,072; {repair}"
    )
    if way_out is not None:
        assert plan(LLAMA_3_1, method, *way_out, replace=True).schedule.context > 131072
    length = int(declared.replace(",", ""))
    assert plan(LLAMA_3_1, method, *values, context=length, replace=True).schedule.context == length


def test_neither_do_gguf_files_nor_conversions(llama: Path, tmp_path: Path) -> None:
    extra = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 8.0,
        "rope.scaling.original_context_length": 64,
    }
    path = write(
        tmp_path / "scaled.gguf", extra={**extra, "context_length": 512}, tensors=plain_tensors()
    )
    with pytest.raises(UsageError, match="256, .* 512; pass --yarn 2k, or --context 256"):
        plan(path, "yarn", 4.0, replace=True)
    assert plan(path, "yarn", 16.0, replace=True).schedule.context == 1024
    scaled = apply(plan(llama, "yarn", 8.0, out=tmp_path / "scaled"))
    with pytest.raises(UsageError, match="256, .* 512"):
        plan(scaled, "yarn", 4.0, replace=True, to="gguf", out=tmp_path / "again.gguf")


KEPT = "the llama3 scaling is kept"
TAKEN_AWAY = (
    "; 8,192 is the length before the llama3 scaling that --replace removes, with which the model"
    " declares 131,072"
)


@pytest.mark.parametrize(
    ("source", "method", "value", "more", "notes"),
    [
        (LLAMA_3, "yarn", "128k", {}, ("factor 16 = 131,072 / 8,192 trained tokens",)),
        (
            LLAMA_3,
            "yarn",
            "12k",
            {"original_context": 4096},
            ("factor 3 = 12,288 / 4,096 trained tokens",),
        ),
        (
            LLAMA_3_1,
            "yarn",
            64.0,
            {"replace": True},
            (f"factor 64 = 524,288 / 8,192 trained tokens{TAKEN_AWAY}",),
        ),
        (
            LLAMA_3_1,
            "llama3",
            "512k",
            {"on_top": True},
            (f"{KEPT} with factor 32 = 8 x 4 (4 = 524,288 / 131,072 declared tokens)",),
        ),
        (
            LLAMA_3_1,
            "ntk",
            2.0,
            {"on_top": True},
            (
                (
                    f"{KEPT}, and ntk is applied on top of it with factor 2 = 262,144 / 131,072"
                    " declared tokens"
                ),
            ),
        ),
        (LLAMA_3_1, "theta", 1e6, {"on_top": True}, (KEPT,)),
    ],
)
def test_a_note_says_how_a_factor_follows(
    source: Path, method: str, value: object, more: dict[str, Any], notes: tuple[str, ...]
) -> None:
    assert plan(source, method, value, **more).notes == notes


@pytest.mark.parametrize(
    ("source", "method", "values", "more", "words"),
    [
        (LLAMA_3, "yarn", (4.0,), {"context": 32768}, ""),
        (
            LLAMA_3,
            "yarn",
            (4.0,),
            {"context": 32769},
            (
                "--yarn: 4 x 8,192 trained tokens is 32,768, which does not cover --context 32,769;"
                " pass --yarn 32769"
            ),
        ),
        (
            LLAMA_3,
            "yarn",
            (4.0,),
            {"context": 16385, "original_context": 4096},
            "--yarn: 4 x 4,096 trained tokens is 16,384",
        ),
        (
            LLAMA_3_1,
            "llama3",
            (2.0,),
            {"context": 262145, "on_top": True},
            "2 x 131,072 declared tokens is 262,144",
        ),
        (
            LLAMA_3,
            "theta-for",
            (16384,),
            {"context": 16385},
            "it is made for 16,384 tokens, which does not cover",
        ),
        (
            LLAMA_3,
            "dynamic",
            ("yarn:8", 16384),
            {"context": 32768},
            "it is made for 16,384 tokens, which does not co",
        ),
        (LLAMA_3, "theta", (5e5,), {"context": 1 << 20}, ""),
    ],
)
def test_a_factor_that_does_not_cover_the_context_is_a_warning_with_the_numbers(
    source: Path, method: str, values: tuple[Any, ...], more: dict[str, Any], words: str
) -> None:
    warnings = [
        warning
        for warning in plan(source, method, *values, **more).warnings
        if "does not cover" in warning
    ]
    assert len(warnings) == bool(words)
    assert words in "".join(warnings)


# What comes out on top of a scaling


@pytest.fixture
def widened(llama: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A tiny Llama with yarn 2, and the output of yarn 2 on top of it."""
    first = apply(plan(llama, "yarn", 2.0, out=tmp_path / "first"))
    return first, apply(plan(first, "yarn", 2.0, on_top=True, out=tmp_path / "second"))


def test_transformers_computes_the_widened_scaling(llama: Path, widened: tuple[Path, Path]) -> None:
    """The reference is a config with yarn 4 that is given to transformers by hand, over the
    unscaled weights.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(llama)
    config.rope_parameters = {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    config.max_position_embeddings = 256
    ids = torch.from_numpy(np.random.default_rng(0).integers(3, 300, (1, 200)))
    with torch.no_grad():
        expected = AutoModelForCausalLM.from_pretrained(llama, config=config)(ids).logits
        actual, before = (
            AutoModelForCausalLM.from_pretrained(path)(ids).logits for path in reversed(widened)
        )
    assert (actual - expected).abs().max() < 1e-3
    assert (before - expected).abs().max() > 0.1


def test_a_saved_recipe_gives_the_same_model_again(
    widened: tuple[Path, Path], tmp_path: Path
) -> None:
    """That it goes on top stands in the recipe, and so in the receipt: it changes what is
    computed.
    """
    first, second = widened
    receipt = ropeconv.read_receipt(second)
    again = make_plan(first, Recipe.from_dict(receipt.recipe), tmp_path / "again")
    assert again.schedule.digest == receipt.schedule.digest
    assert ropeconv.Comparison.open(second, str(first)).schedule.digest == receipt.schedule.digest


# What a plan refuses of a source before anything is written, with the way out, from files without a
# model


LOG_N = recipe_of("yarn", 4.0, log_n="clamped")


def folder(root: Path, *names: str, weights: bool = False, **config: Any) -> Path:
    """A folder with a config, empty files of some names, and where `weights` says so a
    model.safetensors.
    """
    root.mkdir()
    (root / "config.json").write_text(json.dumps({**CONFIG, **config}))
    for name in names:
        (root / name).write_text("{}" if name.endswith(".json") else "")
    if weights:
        parts = ["qkv"] if config.get("model_type") == "phi3" else ["q", "k"]
        rows = {
            f"model.layers.0.self_attn.{name}_proj.weight": np.ones((16, 16), np.float32)
            for name in parts
        }
        save_file(rows, root / "model.safetensors")
    return root


@pytest.mark.parametrize(
    ("names", "refused"),
    [(("tokenizer.model",), True), (("tokenizer.model", "tokenizer.json"), False), ((), False)],
)
def test_a_tokenizer_that_another_class_reads_otherwise(
    tmp_path: Path, names: tuple[str, ...], refused: bool
) -> None:
    source = folder(tmp_path / "model", *names, weights=True)
    options = {"encoding": "ministral3", "allow_approximate": True}
    if not refused:
        assert make_plan(source, LOG_N, **options).result.encoding == "ministral3"
        return
    with pytest.raises(
        BadSource,
        match=r"tokenizer\.model .* ministral3",
    ):
        make_plan(source, LOG_N, **options)
    assert make_plan(source, YARN).result.encoding == "native"


# Restoring


@pytest.mark.parametrize(
    ("name", "out", "in_place", "error", "words"),
    [
        (
            "model",
            Path("x.gguf"),
            False,
            UsageError,
            r"-o x\.gguf is not a name for a folder; choose another name",
        ),
        (
            "model",
            None,
            True,
            UsageError,
            "--in-place changes a GGUF file itself, and a folder is written anew",
        ),
        (
            "model",
            None,
            False,
            BadSource,
            r"has no ropeconv\.json, so it is not an output of ropeconv",
        ),
        (
            "model.gguf",
            Path("x.gguf"),
            True,
            UsageError,
            "--in-place changes the GGUF file itself; leave -o out",
        ),
        (
            "model.gguf",
            Path("x"),
            False,
            UsageError,
            r"-o x is not a name for GGUF; end its name in \.gguf",
        ),
        (
            "model.gguf",
            None,
            False,
            BadSource,
            "has no receipt among its keys, so it is not an output of ropeconv",
        ),
    ],
)
def test_what_cannot_be_brought_back(
    tmp_path: Path, name: str, out: Path | None, in_place: bool, error: type[Exception], words: str
) -> None:
    folder(tmp_path / "model", weights=True)
    write(tmp_path / "model.gguf")
    with pytest.raises(error, match=words):
        restore_plan(ropeconv.open_source(str(tmp_path / name)), out, in_place=in_place)


# What the installed transformers is expected to do


def test_a_context_of_lengths_that_imply_a_factor_is_the_one_that_is_declared(
    tmp_path: Path,
) -> None:
    """Phi 3's class derives an attention factor from two lengths, so that a little more than wanted
    is declared.
    """
    source = folder(
        tmp_path / "model", weights=True, model_type="phi3", max_position_embeddings=4096
    )
    quiet = make_plan(source, recipe_of("mixed", 4.0, attention_factor=1.0))
    assert quiet.schedule.context == 16384
    loud = make_plan(source, recipe_of("mixed", 4.0, attention_factor=1.1))
    assert loud.schedule.context > 16384
    assert loud.schedule.context == loud.result.config["max_position_embeddings"]
    assert any("default window" in words for words in loud.warnings)


@pytest.mark.parametrize("name", ["as it is", "on top"])
def test_a_model_that_cannot_have_an_attention_factor_keeps_the_one_that_it_states(
    name: str, tmp_path: Path
) -> None:
    """Hunyuan normalises queries and keys after the rotation, which cancels whatever yarn
    multiplies them by.
    """
    source = make("hunyuan_v1_dense", tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    rope = {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    config.pop("rope_scaling", None)
    config |= {"rope_parameters": rope, "max_position_embeddings": 256}
    (source / "config.json").write_text(json.dumps(config))
    recipe = AS_IS if name == "as it is" else recipe_of("yarn", 2.0, on_top=True)
    plan = make_plan(source, recipe, tmp_path / "out")
    assert plan.schedule.attention_factor == pytest.approx(1 + 0.1 * math.log(4))
    with pytest.raises(UnsupportedBake, match="pass --attention-factor 1"):
        make_plan(source, recipe_of("yarn", 8.0), tmp_path / "out", replace=True)
