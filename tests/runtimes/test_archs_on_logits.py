"""Every architecture of the table in llama.cpp itself, on tiny files whose tensors llama.cpp asked
for.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropeconv.engines.llamacpp import overrides
from ropeconv.engines.llamacpp_program import Override
from ropeconv.errors import BadSource
from ropeconv.rope.recipe import Recipe
from ropeconv.runtimes.llamacpp.archs import Arch, arch_table

from ..support.baking import apply, inspected, make_plan, recipe_of
from ..support.extent import sample
from ..support.optional import MISSING, skip
from ..support.tiny_gguf import NAMES, answers, keys_of, make, rewritten

if "llama_cpp" in MISSING:
    skip("llama_cpp")

MADE = tuple(
    name for name in NAMES if name != "graniteswitch"
)  # its adapters need a tokenizer with their tokens
BEHIND_WINDOWS = "lfm2"
"""The architecture whose tiny file has a window in every layer, so no method changes it."""
KEYED = [name for name in MADE if not arch_table().arch[name].fixed and name != BEHIND_WINDOWS]
"""Architectures whose RoPE follows the keys."""
FREQS, LONG, SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
CHANGED, SAME = 0.05, 1e-4
"""Largest difference over the standard deviation of the answers: another rotation is above,
rounding below.
"""


@pytest.fixture
def tiny(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    name: str = request.getfixturevalue("name")
    return make(name, tmp_path / f"{name}.gguf")


def keys(name: str, **values: Override) -> dict[str, Override]:
    """Overrides by the names of keys, with __ for a dot."""
    return {f"{name}.{key.replace('__', '.')}": value for key, value in values.items()}


def apart(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> float:
    return float(np.abs(left - right).max() / right.std())


def recipe(arch: Arch) -> Recipe:
    """Yarn, or a larger base where layers with a window are all that rotate, or have another base
    and follow yarn.
    """
    alone = (
        arch.window is not None
        and arch.window.rotates == "window"
        and arch.window.scaling == "base"
    )
    if alone or arch.name == "dots3note":
        return recipe_of("theta", 500000.0, context=256)
    plain = arch.no_attention_factor or arch.softmax or arch.norm_after_rope
    return recipe_of("yarn", 4.0, attention_factor=1.0 if plain else None)


KEEPS_STATES = """
import ctypes, sys
import llama_cpp as llama
silent = llama.llama_log_callback(lambda *given: None)
llama.llama_log_set(silent, ctypes.c_void_p(0))
llama.llama_backend_init()
model = llama.llama_model_load_from_file(sys.argv[1].encode(), llama.llama_model_default_params())
print(llama.llama_model_is_hybrid(model) or llama.llama_model_is_recurrent(model))
"""


@pytest.mark.parametrize(
    "name",
    sorted({*(name for name in MADE if name in arch_table().states), *sample(MADE, 6, seed=3)}),
)
def test_the_architectures_with_states_are_those_of_llama_cpp(name: str, tiny: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KEEPS_STATES, str(tiny)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(name in arch_table().states)


@pytest.mark.parametrize("name", sample(KEYED, 2))
def test_a_file_with_the_keys_computes_what_the_source_does_under_the_same_settings(
    name: str, tiny: Path, tmp_path: Path
) -> None:
    arch = arch_table().arch[name]
    plan = make_plan(tiny, recipe(arch), tmp_path / "out.gguf", encoding="keys")
    apply(plan)
    given = overrides(plan.schedule, name, plan.before)
    assert given is not None
    logits = answers(
        name, tmp_path, {"source": tiny, "given": (tiny, given), "written": tmp_path / "out.gguf"}
    )
    assert apart(logits["written"], logits["given"]) == 0
    assert apart(logits["written"], logits["source"]) > CHANGED


@pytest.mark.parametrize(
    "name", ["llama4", *sample([name for name in KEYED if name != "llama4"], 2, seed=2)]
)
def test_settings_without_scaling_take_that_of_a_file_away(
    name: str, tiny: Path, tmp_path: Path
) -> None:
    """Under the type none alone, layers with a window keep the factor of the file in llama.cpp."""
    plan = make_plan(tiny, recipe(arch_table().arch[name]), tmp_path / "out.gguf", encoding="keys")
    apply(plan)
    given = overrides(plan.before.current(), name, plan.before)
    assert given is not None
    written = tmp_path / "out.gguf"
    logits = answers(
        name, tmp_path, {"source": tiny, "given": (written, given), "written": written}
    )
    assert apart(logits["given"], logits["source"]) == 0
    assert apart(logits["written"], logits["source"]) > CHANGED


@pytest.mark.parametrize("name", sample(MADE, 4, seed=1))
def test_an_architecture_reads_the_keys_and_tensors_that_the_table_says(
    name: str, tiny: Path, tmp_path: Path
) -> None:
    arch = arch_table().arch[name]
    spec = inspected(tiny).spec
    four = np.full(spec.rotary_dim // 2 * (2 if arch.halved else 1), 4, np.float32)
    linear = keys(name, rope__scaling__type=("str", "linear"), rope__scaling__factor=("float", 4.0))
    yarn = keys(name, rope__scaling__type=("str", "yarn"), rope__scaling__factor=("float", 4.0))
    none = keys(name, rope__scaling__type=("str", "none"), rope__scaling__factor=("float", 4.0))
    pair = rewritten(tiny, tmp_path / "pair.gguf", {LONG: four, SHORT: four})
    divided = rewritten(tiny, tmp_path / "freqs.gguf", {FREQS: four})
    variants = {
        "plain": tiny,
        "linear": (tiny, linear),
        "yarn": (tiny, yarn),
        "none": (tiny, none),
        "betas": (tiny, yarn | keys(name, rope__scaling__yarn_beta_fast=("float", 2.0))),
        "multiplier": (tiny, yarn | keys(name, rope__scaling__yarn_log_multiplier=("float", 0.5))),
        "attention": (tiny, keys(name, rope__scaling__attn_factor=("float", 1.5))),
        "dead": (tiny, keys(name, rope__scaling__yarn_attn_factor=("float", 1.5))),
        "off": (tiny, keys(name, rope__scaling__finetuned=("bool", False))),
        "alpha": (tiny, keys(name, rope__scaling__alpha=("float", 1000.0))),
        "freqs": divided,
        "pair": pair,
        "longrope": (pair, keys(name, rope__scaling__type=("str", "longrope"))),
    }
    logits = answers(name, tmp_path, variants)
    plain = logits["plain"]

    def changes(variant: str, against: str = "plain") -> bool:
        distance = apart(logits[variant], logits[against])
        assert not SAME < distance < CHANGED / 10, f"{variant}: {distance}"
        return distance > SAME

    extended = not arch.fixed and not (
        arch.window and arch.window.rotates == "window" and arch.window.scaling == "base"
    )
    assert plain.std() > 0
    assert changes("linear") is (extended or arch.softmax)
    assert changes("none") is (arch.window is not None and arch.window.own_factor)
    assert changes("betas", "yarn") is arch.betas
    assert changes("multiplier", "yarn") is arch.log_multiplier
    dead = arch.fixed or arch.no_attention_factor or arch.norm_after_rope
    assert changes("attention") is (arch.softmax or not dead)
    assert changes("dead") is arch.ext_factor
    assert changes("off") is arch.finetuned
    assert changes("alpha") is arch.alpha
    assert ("freqs" in logits) is bool(arch.freqs)
    if arch.freqs:
        assert changes("freqs") is (arch.freqs == "used")
    if arch.freqs == "used":
        assert apart(logits["freqs"], logits["linear"]) < CHANGED
    assert ("pair" in logits) is (arch.factors == "always")
    assert ("longrope" in logits) is (arch.factors in ("always", "longrope", "ignored"))
    for variant in {"pair", "longrope"} & logits.keys():
        assert changes(variant) is (arch.factors != "ignored")


ONE_KIND = {"dots3note", "gemma-embedding", "modern-bert"}
"""Architectures that llama.cpp does not run with windows in all layers."""
WINDOWS = [
    name for name in MADE if arch_table().arch[name].window is not None and name not in ONE_KIND
]


@pytest.mark.parametrize("name", sample(WINDOWS, 1))
def test_layers_with_a_window_read_what_the_table_says(name: str, tmp_path: Path) -> None:
    """A file in which every layer has a window shows what these read."""
    arch = arch_table().arch[name]
    window = arch.window
    assert window is not None
    count = keys_of(name)["block_count"]
    every = {"flags": [1] * count, "any": 0, "none": 2}[window.pattern]
    tiny = make(name, tmp_path / "tiny.gguf", attention__sliding_window_pattern=every)
    linear = keys(name, rope__scaling__type=("str", "linear"), rope__scaling__factor=("float", 4.0))
    attention = keys(name, rope__scaling__attn_factor=("float", 1.5))
    window_theta = keys(name, rope__freq_base_swa=("float", 500.0))
    theta = keys(name, rope__freq_base=("float", 500.0))
    given = {
        "linear": linear,
        "attention": attention,
        "own": window_theta,
        "theta": theta,
        "plain": {},
    }
    logits = answers(
        name, tmp_path, {variant: (tiny, settings) for variant, settings in given.items()}
    )

    def changes(variant: str) -> bool:
        return apart(logits[variant], logits["plain"]) > SAME

    present = window.present != "64"
    assert changes("linear") is (window.scaling == "same" or not present)
    assert changes("attention") is (window.scaling != "plain" and not arch.norm_after_rope)
    assert changes("own") is (window.own_theta and present)
    assert changes("theta") is (window.theta is None or not window.own_theta)


@pytest.mark.parametrize(
    "name", sample(["gemma4", "mimo2", "step35", "spark2_5", "maple", "granite_swa"], 1)
)
def test_flags_of_windows_are_required_by_both(name: str, tmp_path: Path) -> None:
    tiny = make(name, tmp_path / "tiny.gguf")
    bare = rewritten(
        tiny, tmp_path / "bare.gguf", left_out=f"{name}.attention.sliding_window_pattern"
    )
    with pytest.raises(BadSource, match="needs attention.sliding_window_pattern"):
        inspected(bare)
    assert set(answers(name, tmp_path, {"tiny": tiny, "bare": bare})) == {"tiny"}
