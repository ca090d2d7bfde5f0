"""`identify`: planted mistakes are named in transformers, in llama.cpp, and on a server.

A mistake is planted in the files of an output, as another tool would leave it: in config.json, in
the weights, or in the metadata of a GGUF file. The runtime then computes it by its own code.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import safetensors.numpy

import ropeconv
from ropeconv.engines.engine import Progress
from ropeconv.features.identify import identifying
from ropeconv.features.identify.identifying import identify, identify_comparison
from ropeconv.features.identify.mistakes import (
    MISTAKES,
    CandidateSchedule,
    Extension,
    candidates,
)
from ropeconv.rope.forms import Plain
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.spec import RopeSpec
from ropeconv.validate.comparison import Comparison, Settings
from ropeconv.validate.gguf import validate_gguf

from ...support.baking import AS_IS, apply, make_plan, recipe_of
from ...support.extent import sample
from ...support.in_process import command
from ...support.llamacpp import checkpoint
from ...support.models import make
from ..servers.stand_in import StandIn, running

YARN = recipe_of("yarn", 4.0)
BETAS = Recipe(ropeconv.METHODS["yarn"](4.0, beta_fast=4.0, beta_slow=0.5))
LONGROPE = Recipe(
    ropeconv.METHODS["longrope"](
        long_factor=tuple(np.linspace(1, 6, 32).tolist()),
        short_factor=tuple(np.linspace(1, 2, 32).tolist()),
    ),
    context=256,
)
Plant = Callable[[Path], None]


def rope(**keys: Any) -> Plant:
    """Set keys of the RoPE of a config; None takes one away, and `whole` replaces all others."""

    def plant(folder: Path) -> None:
        path = folder / "config.json"
        config = json.loads(path.read_text())
        for name in ("rope_parameters", "rope_scaling"):
            if isinstance(config.get(name), dict):
                changed = dict(config[name])
                if keys.get("whole"):
                    changed = (
                        {"rope_theta": changed["rope_theta"]} if "rope_theta" in changed else {}
                    )
                changed |= {key: value for key, value in keys.items() if key != "whole"}
                config[name] = {key: value for key, value in changed.items() if value is not None}
        if "rope_theta" in keys and "rope_theta" in config:
            config["rope_theta"] = keys["rope_theta"]
        path.write_text(json.dumps(config))

    return plant


def scale_local_layers(folder: Path) -> None:
    """Give the layers with a sliding window the RoPE of the others."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["rope_parameters"]["sliding_attention"] = config["rope_parameters"]["full_attention"]
    path.write_text(json.dumps(config))


def exchange_pairs(folder: Path) -> None:
    """Store the rows of queries and keys as for a runtime that rotates neighbours."""
    path = folder / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    for name, tensor in tensors.items():
        if "q_proj" in name or "k_proj" in name:
            heads = tensor.reshape(-1, 64, *tensor.shape[1:])
            pairs = np.concatenate([heads[:, 0::2], heads[:, 1::2]], axis=1)
            tensors[name] = np.ascontiguousarray(pairs.reshape(tensor.shape))
    safetensors.numpy.save_file(tensors, path, {"format": "pt"})


PLANTS: dict[str, tuple[str, Recipe, Plant]] = {
    "right": ("llama", YARN, lambda folder: None),
    "unscaled": ("llama", YARN, rope(whole=True, rope_type="default")),
    "no-attention-factor": ("llama", YARN, rope(attention_factor=1.0)),
    "attention-factor-twice": ("llama", YARN, rope(attention_factor=1.138629436111989**2)),
    "linear": ("llama", YARN, rope(whole=True, rope_type="linear", factor=4.0)),
    "default-base": ("qwen2", YARN, rope(rope_theta=10000.0)),
    "default-base-unscaled": (
        "qwen2",
        YARN,
        rope(whole=True, rope_type="default", rope_theta=10000.0),
    ),
    "original-context": ("llama", YARN, rope(original_max_position_embeddings=256)),
    "truncation": ("llama", YARN, rope(truncate=False)),
    "default-betas": ("llama", BETAS, rope(beta_fast=None, beta_slow=None)),
    "layout": ("llama", YARN, exchange_pairs),
    "local-layers": ("gemma3_text", YARN, scale_local_layers),
    "short-list": (
        "llama",
        LONGROPE,
        rope(long_factor=np.linspace(1, 2, 32).tolist()),
    ),
    "yarn": (
        "llama",
        recipe_of("linear", 4.0),
        rope(whole=True, rope_type="yarn", factor=4.0, original_max_position_embeddings=64),
    ),
}
"""By the mistake: a family, the recipe that was wanted, and what is left in its files."""
CHANGES: dict[str, dict[str, Any]] = {"qwen2": {"rope_theta": 500000.0}}
"""Changes of the source."""


def planted(folder: Path, model_type: str, recipe: Recipe, plant: Plant) -> tuple[Path, Path]:
    """Write a source and an output with a mistake."""
    source = checkpoint(model_type, folder / "source", **CHANGES.get(model_type, {}))
    apply(make_plan(source, recipe, folder / "out"))
    plant(folder / "out")
    return source, folder / "out"


@pytest.mark.parametrize(
    "name", ["right", *sample([name for name in PLANTS if name != "right"], 3)]
)
def test_a_planted_mistake_is_named_in_transformers(name: str, tmp_path: Path) -> None:
    model_type, recipe, plant = PLANTS[name]
    source, out = planted(tmp_path, model_type, recipe, plant)
    found = identify(out, source, recipe)
    assert found.fits == (name,), found
    nearest, runner_up = found.candidates[:2]
    assert (nearest.name, nearest.kl_95 <= found.allowed) == (name, True)
    assert runner_up.kl_95 > 10 * found.allowed
    assert (found.is_exact, found.is_right) == (True, name == "right")


FAMILIES = ["gemma3_text", "phi", "deepseek_v3", "glm", "gpt_neox", "olmo2", "qwen3_moe", "cohere"]


@pytest.mark.parametrize("model_type", sample(FAMILIES, 1))
def test_a_right_output_of_any_family_is_right_alone(model_type: str, tmp_path: Path) -> None:
    """Every candidate changes what the model computes, so none but the right one fits."""
    source = make(model_type, tmp_path / "source")
    out = apply(make_plan(source, YARN, tmp_path / "out"))
    assert identify(out, source, YARN).fits == ("right",)


def test_a_mistake_that_nobody_knows_is_none_of_these(tmp_path: Path) -> None:
    source, out = planted(tmp_path, "llama", YARN, rope(factor=3.0))
    found = identify(out, source, YARN)
    assert (found.fits, found.is_right) == ((), False)
    assert "none" in found.sentence
    assert found.candidates[0].kl_95 > found.allowed


def test_other_weights_are_none_of_these(tmp_path: Path) -> None:
    source = checkpoint("llama", tmp_path / "source")
    other = checkpoint("llama", tmp_path / "other", rms_norm_eps=0.3)
    assert identify(other, source, YARN).fits == ()


def test_a_mistake_is_never_left_out_for_lack_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch raises the same error for a mistake that a class cannot make, which is left out."""
    source, out = planted(tmp_path, "llama", YARN, rope(factor=4.0))
    measure = identifying._distances

    def lacking(engine: Any, subject: Any, candidate: CandidateSchedule, *rest: Any) -> Any:
        if candidate.name == "linear":
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return measure(engine, subject, candidate, *rest)

    monkeypatch.setattr(identifying, "_distances", lacking)
    with pytest.raises(ropeconv.RopeconvError, match="memory"):
        identify(out, source, YARN)


@pytest.mark.parametrize("outtype", sample(["f32", "q8_0"], 1))
@pytest.mark.parametrize(("made", "name"), [(YARN, "right"), (recipe_of("linear", 4.0), "linear")])
def test_a_gguf_file_is_run_in_llamacpp(
    made: Recipe, name: str, outtype: str, tmp_path: Path
) -> None:
    pytest.importorskip("llama_cpp")
    source = checkpoint("llama", tmp_path / "source")
    out = apply(make_plan(source, made, tmp_path / "a.gguf", to="gguf", outtype=outtype))
    found = identify(out, source, YARN)
    assert (found.fits, found.is_exact) == ((name,), outtype == "f32"), found
    assert "llama.cpp" in found.runtime


def test_a_server_is_asked_for_log_probabilities(tmp_path: Path) -> None:
    source, out = planted(tmp_path, "llama", YARN, rope(attention_factor=1.0))
    with running(StandIn("vllm", out)) as url:
        found = identify(None, source, YARN, server=url)
        words = ("--server", url, "--against", "source", "--yarn", 4, "--json")
        printed = command(tmp_path, "identify", *words, code=3).stdout
    assert (found.fits, found.subject) == (("no-attention-factor",), url)
    assert json.loads(printed)["fits"] == ["no-attention-factor"]


def test_an_output_needs_no_more_than_its_name(tmp_path: Path) -> None:
    checkpoint("llama", tmp_path / "source")
    command(tmp_path, "apply", "source", "--yarn", 4, "-o", "out", "-q", code=0)
    done = command(tmp_path, "identify", "out", code=0)
    assert "--yarn 4" in done.stdout
    assert "fits" in done.stdout


def test_a_validation_that_disagrees_names_the_mistake(tmp_path: Path) -> None:
    checkpoint("llama", tmp_path / "source")
    command(tmp_path, "apply", "source", "--yarn", 4, "-o", "out", "-q", code=0)
    shutil.copytree(tmp_path / "out", tmp_path / "served")
    rope(attention_factor=1.0)(tmp_path / "served")
    with running(StandIn("vllm", tmp_path / "served")) as url:
        words = ("validate", "out", "--against", "source", "--server", url, "--length", 200)
        done = command(tmp_path, *words, code=3)
        document = json.loads(command(tmp_path, *words, "--json", code=3).stdout)
    assert "without its attention factor" in " ".join(done.stdout.split())
    assert document["identified"]["fits"] == ["no-attention-factor"]


def test_a_gguf_file_with_other_weights_is_said_to_have_these(tmp_path: Path) -> None:
    """The candidates have the weights of the file, so only its RoPE is right."""
    pytest.importorskip("llama_cpp")
    checkpoint("llama", tmp_path / "source")
    words = ("--to", "gguf", "--outtype", "f32", "-o", "out.gguf", "-q")
    command(tmp_path, "apply", "source", "--yarn", 4, *words, code=0)
    out = tmp_path / "out.gguf"
    right = identify(out, tmp_path / "source", YARN)
    assert (right.own_weights, right.disagreed) == (True, False)
    assert "differ" not in right.sentence

    # one row of the queries over another
    reader = gguf.GGUFReader(out, "r+")
    queries = next(one for one in reader.tensors if one.name == "blk.1.attn_q.weight")
    queries.data[0] = queries.data[5]
    reader.data.flush()
    comparison = Comparison.open(out, str(tmp_path / "source"))
    assert validate_gguf(comparison).sentence.startswith("FAIL")
    found = identify_comparison(comparison, "", "", Settings(), Progress())
    assert (found.fits, found.own_weights, found.disagreed) == (("right",), True, True)
    assert found.sentence.startswith("With the weights of the file, it computes --yarn 4")
    assert "differ from the source's" in found.sentence


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ((), 2, "nothing to identify"),
        (("source",), 2, "no receipt"),
        (("source", "--yarn", 4), 2, "--against"),
        (("--server", "http://localhost:9", "--yarn", 4), 2, "--against"),
        (("source", "--model", "x"), 2, "--server"),
        (("source", "--against", "source", "--yarn", 4, "--length", "1k"), 1, "--length"),
    ],
)
def test_what_is_refused(
    words: tuple[object, ...], code: int, message: str, tmp_path: Path
) -> None:
    checkpoint("llama", tmp_path / "source")
    done = command(tmp_path, "identify", *words, code=code)
    assert message in done.stderr


def case(recipe: Recipe, **spec: Any) -> Extension:
    given = RopeSpec(64, 64, Plain(10000.0), 64, 64, **spec)
    return Extension(recipe, given, recipe.start(given), recipe.schedule(given))


def test_candidates_differ_and_each_mistake_is_possible() -> None:
    for recipe in (YARN, BETAS, LONGROPE, recipe_of("ntk", 2.0), AS_IS):
        found = candidates(case(recipe))
        digests = [candidate.schedule.digest for candidate in found if candidate.change is None]
        assert len(set(digests)) == len(digests)
    assert {*PLANTS} - {"right", "layout", "local-layers"} <= {*MISTAKES}
