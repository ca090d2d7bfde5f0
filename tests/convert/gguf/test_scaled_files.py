"""Files of every architecture that have a scaling already: kept as they are, and extended further,
in llama.cpp.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropeconv.convert.gguf_encoding import GgufModel
from ropeconv.engines.llamacpp import overrides
from ropeconv.engines.llamacpp_program import Override
from ropeconv.formats.gguf.edit import Edit, write_new
from ropeconv.formats.gguf.file import GgufFile
from ropeconv.formats.gguf.header import GgufValue, boolean, f32, string, u32
from ropeconv.inspection.inspection import Inspection
from ropeconv.rope.errors import RopeconvError
from ropeconv.rope.forms import Yarn
from ropeconv.runtimes.llamacpp.archs import Arch, arch_table
from ropeconv.runtimes.llamacpp.read_header import FREQS, LONG, SHORT, rope_tensors

from ...support.baking import AS_IS, apply, inspected, make_plan, recipe_of
from ...support.extent import sample
from ...support.optional import MISSING, skip
from ...support.tiny_gguf import NAMES, answers, make

if "llama_cpp" in MISSING:
    skip("llama_cpp")

MADE = tuple(
    name for name in NAMES if name != "graniteswitch"
)  # its adapters need a tokenizer with their tokens
CHANGED, SAME = 0.02, 1e-4
"""Largest difference over the standard deviation of the answers: another rotation is above,
rounding below.
"""
FURTHER = recipe_of("yarn", 2.0, on_top=True)

Keys = dict[str, GgufValue]

SCALED: Keys = {"rope.scaling.factor": f32(4.0), "rope.scaling.original_context_length": u32(16)}
LINEAR: Keys = {**SCALED, "rope.scaling.type": string("linear")}
YARN: Keys = {**SCALED, "rope.scaling.type": string("yarn")}
LONGROPE: Keys = {
    "rope.scaling.type": string("longrope"),
    "rope.scaling.original_context_length": u32(16),
}
LOUD: Keys = {"rope.scaling.attn_factor": f32(1.2)}
UNDONE: Keys = {"rope.scaling.attn_factor": f32(1 / (1 + 0.1 * math.log(4)))}
TENTH: Keys = {"rope.scaling.yarn_log_multiplier": f32(0.1)}
WARMER: Keys = {"attention.temperature_scale": f32(0.2), "attention.temperature_length": u32(16)}
WINDOW_BASE: Keys = {"rope.freq_base_swa": f32(5000.0)}

BY_KEYS: dict[str, Keys] = {
    "plain": {},
    "linear": LINEAR,
    "linear without a type": {"rope.scaling.factor": f32(4.0)},
    "linear by the old key": {"rope.scale_linear": f32(4.0)},
    "linear and an attention factor": {**LINEAR, **LOUD},
    "linear and a multiplier": {**LINEAR, **TENTH},
    "linear and alpha": {**LINEAR, "rope.scaling.alpha": f32(1000.0)},
    "none with a factor": {**SCALED, "rope.scaling.type": string("none")},
    "longrope without tensors": {**SCALED, "rope.scaling.type": string("longrope")},
    "only an attention factor": LOUD,
    "yarn": YARN,
    "yarn by 1": {**YARN, "rope.scaling.factor": f32(1.0)},
    "yarn and an attention factor": {**YARN, **LOUD},
    "yarn without temperature": {**YARN, **UNDONE},
    "yarn and a multiplier": {**YARN, **TENTH},
    "yarn and another multiplier": {**YARN, "rope.scaling.yarn_log_multiplier": f32(0.0707)},
    "yarn, a multiplier and an attention factor": {**YARN, **TENTH, **LOUD},
    "yarn and betas": {
        **YARN,
        "rope.scaling.yarn_beta_fast": f32(16.0),
        "rope.scaling.yarn_beta_slow": f32(2.0),
    },
    "yarn without its ramp": {**YARN, "rope.scaling.yarn_ext_factor": f32(0.0)},
    "yarn and a dead attention factor": {**YARN, "rope.scaling.yarn_attn_factor": f32(1.3)},
    "yarn that says finetuned": {**YARN, "rope.scaling.finetuned": boolean(True)},
    "query scaling": WARMER,
    "query scaling and yarn": {**YARN, **WARMER},
    "query scaling, yarn and a multiplier": {**YARN, **WARMER, **TENTH},
    "a base of windows": WINDOW_BASE,
    "a base of windows and linear": {**LINEAR, **WINDOW_BASE},
    "a base of windows and yarn": {**YARN, **WINDOW_BASE},
    "a base of windows and yarn without temperature": {**YARN, **UNDONE, **WINDOW_BASE},
}
"""Scalings by keys, without the name of the architecture in front of each."""
BY_TENSORS: dict[str, tuple[Keys, tuple[str, ...]]] = {
    "divisors": ({}, (FREQS,)),
    "divisors and linear": (LINEAR, (FREQS,)),
    "divisors and yarn": (YARN, (FREQS,)),
    "divisors and an attention factor": (LOUD, (FREQS,)),
    "two lists": (LONGROPE, (SHORT, LONG)),
    "two lists and an attention factor": ({**LONGROPE, **LOUD}, (SHORT, LONG)),
}
LISTS = {FREQS: 4.0, LONG: 4.0, SHORT: 1.5}
"""The largest divisor of each tensor."""


def variant(tiny: Path, name: str, out: Path) -> Path | None:
    """Writes a scaled copy of a tiny file.

    None where llama.cpp loads no such tensors for it, or computes something that is refused.
    """
    file = GgufFile.open(tiny)
    arch = arch_table().arch[tiny.stem]
    keys, tensors = (BY_KEYS[name], ()) if name in BY_KEYS else BY_TENSORS[name]
    if (FREQS in tensors and arch.freqs != "used") or (LONG in tensors and not arch.factors):
        return None
    if tensors and FREQS in file.tensors:
        return None
    if name == "none with a factor" and arch.window is not None and arch.window.own_factor:
        return None  # such a file is refused
    pairs = inspected(tiny).spec.rotary_dim // (1 if arch.halved else 2)
    added = {name: np.geomspace(1, LISTS[name], pairs).astype("<f4").tobytes() for name in tensors}
    write_new(
        file,
        0,
        Edit({f"{arch.name}.{key}": value for key, value in keys.items()}, added=added),
        out,
    )
    return out


def apart(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> float:
    return float(np.abs(left - right).max() / right.std())


def why_not(source: Inspection, arch: Arch) -> str:
    """Why yarn on top of a scaling has no place in any key or tensor; empty where it has one."""
    spec = source.spec
    reach = spec.form.factor * spec.form.original_context if isinstance(spec.form, Yarn) else 0
    if reach > spec.context:
        return "declare that first"
    if (
        arch.window is not None
        and arch.window.rotates == "window"
        and arch.window.scaling == "base"
    ):
        return "only another base fits"
    composed = spec.form.scaled and not isinstance(spec.form, Yarn)
    carried = arch.freqs == "used" or arch.factors == "always" or arch.name == "qwen2"
    if composed and not carried:
        return "nothing names an arbitrary frequency vector"
    shared = arch.window is not None and arch.window.scaling == "same"
    return "it changes the window layers" if shared and "local" in spec.layers else ""


@pytest.mark.parametrize("name", sample(MADE, 3))
def test_every_scaled_file_can_be_kept_and_extended(name: str, tmp_path: Path) -> None:
    tiny = make(name, tmp_path / f"{name}.gguf")
    arch = arch_table().arch[name]
    extended = 0
    for number, scaling in enumerate((*BY_KEYS, *BY_TENSORS)):
        path = variant(tiny, scaling, tmp_path / f"{number}.gguf")
        if path is None:
            continue
        source = inspected(path)
        out = tmp_path / "out.gguf"
        if any(problem.code == "refused-tensor" for problem in source.problems):
            continue
        kept = make_plan(path, AS_IS, out)
        assert kept.result.verdicts[0].status == "exact", scaling
        assert kept.schedule.digest == source.spec.current().digest
        if not source.spec.scaled:
            continue
        reason = why_not(source, arch)
        if reason:
            with pytest.raises(RopeconvError, match=reason):
                make_plan(path, FURTHER, out)
            continue
        plan = make_plan(path, FURTHER, out)
        assert plan.result.verdicts[0].status == "exact", scaling
        assert plan.schedule.context == 2 * source.spec.context
        extended += 1
    assert extended or arch.fixed or why_not(inspected(tiny), arch)


LOGITS = (
    "yarn and a multiplier",
    "yarn, a multiplier and an attention factor",
    "yarn without temperature",
)


@pytest.mark.parametrize("name", sample(MADE, 2, seed=1))
def test_llama_cpp_computes_the_same_from_a_kept_file_and_its_own_law_from_an_extended_one(
    name: str, tmp_path: Path
) -> None:
    """On top of yarn is the source with the factor doubled, by llama.cpp's own rule for the
    attention factor.
    """
    tiny = make(name, tmp_path / f"{name}.gguf")
    arch = arch_table().arch[name]
    variants: dict[str, Any] = {}
    pairs: list[tuple[str, str]] = []
    for number, scaling in enumerate((*sample(list(BY_KEYS), 3), *BY_TENSORS, *LOGITS)):
        path = variant(tiny, scaling, tmp_path / f"{number}.gguf")
        if path is None:
            continue
        source = inspected(path)
        kept = tmp_path / f"{number}-kept.gguf"
        further = tmp_path / f"{number}-further.gguf"
        apply(make_plan(path, AS_IS, kept))
        variants |= {f"{scaling}": path, f"{scaling}, kept": kept}
        pairs.append((scaling, f"{scaling}, kept"))
        steady = arch.no_attention_factor or arch.norm_after_rope
        if scaling not in LOGITS or not source.spec.scaled or steady or why_not(source, arch):
            continue
        doubled: dict[str, Override] = {f"{name}.rope.scaling.factor": ("float", 8.0)}
        apply(make_plan(path, FURTHER, further))
        variants |= {f"{scaling}, doubled": (path, doubled), f"{scaling}, further": further}
        pairs.append((f"{scaling}, doubled", f"{scaling}, further"))
    found = answers(name, tmp_path, variants)
    assert pairs
    for left, right in pairs:
        if left in found:
            assert apart(found[left], found[right]) < SAME, right


# DeepSeek V2, V3 and R1, and Kimi K2, as everybody publishes them

PUBLISHED: dict[str, Any] = {
    "context_length": 131072,
    "rope.freq_base": 50000.0,
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 32.0,
    "rope.scaling.original_context_length": 4096,
    "rope.scaling.yarn_log_multiplier": 0.1,
}
PREFIX = "deepseek2.rope.scaling."


def published(path: Path, arch: str = "deepseek2") -> Path:
    return make(arch, path, **PUBLISHED)


@pytest.mark.parametrize(
    ("recipe", "options", "factor", "context"),
    [
        (AS_IS, {}, 32.0, 131072),
        (recipe_of("yarn", "256k"), {"replace": True}, 64.0, 262144),
        (FURTHER, {}, 64.0, 262144),
    ],
    ids=["as it is", "replaced", "on top"],
)
def test_the_multiplier_of_published_deepseek_files_stays(
    recipe: Any, options: dict[str, Any], factor: float, context: int, tmp_path: Path
) -> None:
    source = published(tmp_path / "kimi.gguf")
    out = tmp_path / "out.gguf"
    plan = make_plan(source, recipe, out, **options)
    apply(plan)
    header = GgufFile.open(out).header
    assert header.get("deepseek2.context_length") == context
    assert header.get(f"{PREFIX}factor") == factor
    assert header.get(f"{PREFIX}original_context_length") == 4096
    assert header.get(f"{PREFIX}yarn_log_multiplier") == np.float32(0.1)
    assert header.get(f"{PREFIX}attn_factor", 1.0) == 1.0
    # mscale_all_dim = 1: (1 + 0.1 ln s)^2 on every logit, and nothing on cos and sin
    assert plan.schedule.softmax_scale == pytest.approx((1 + 0.1 * math.log(factor)) ** 2, rel=1e-6)
    assert plan.schedule.attention_factor == pytest.approx(1.0)


def test_llama_cpp_computes_published_deepseek_files_further_by_its_own_law(tmp_path: Path) -> None:
    source = published(tmp_path / "kimi.gguf")
    out = tmp_path / "out.gguf"
    plan = make_plan(source, recipe_of("yarn", "256k"), out, replace=True)
    apply(plan)
    without = tmp_path / "without.gguf"
    write_new(
        GgufFile.open(out), 0, Edit(dropped=frozenset({f"{PREFIX}yarn_log_multiplier"})), without
    )
    found = answers(
        "deepseek2",
        tmp_path,
        {
            "doubled": (source, {f"{PREFIX}factor": ("float", 64.0)}),
            "written": out,
            "source": source,
            "without": without,
        },
    )
    assert apart(found["written"], found["doubled"]) == 0
    for wrong in ("source", "without"):
        assert apart(found[wrong], found["doubled"]) > CHANGED


@pytest.mark.parametrize("arch", ["deepseek2", "deepseek32", "mistral4", "mistral3"])
def test_the_reference_of_validate_is_the_schedule_whatever_multiplier_the_source_has(
    arch: str, tmp_path: Path
) -> None:
    keys = (
        PUBLISHED if arch != "mistral3" else {**PUBLISHED, "rope.scaling.yarn_log_multiplier": 1.0}
    )
    source = make(arch, tmp_path / "source.gguf", **keys)
    out = tmp_path / "out.gguf"
    plan = make_plan(source, recipe_of("yarn", 64.0, attention_factor=1.3), out, replace=True)
    apply(plan)
    given = overrides(plan.schedule, arch, plan.before)
    assert given is not None
    found = answers(arch, tmp_path, {"given": (source, given), "written": out, "source": source})
    assert apart(found["written"], found["given"]) < SAME
    assert apart(found["source"], found["given"]) > CHANGED


def test_divisors_are_as_many_as_the_layers_that_rotate_most(tmp_path: Path) -> None:
    """Step 3.5: layers with a window rotate the whole head, and the others use the first half of
    the divisors.
    """
    tiny = make("step35", tmp_path / "step35.gguf")
    out = tmp_path / "out.gguf"
    rotary_dim = inspected(tiny).spec.rotary_dim
    recipe = recipe_of("yarn", 4.0, attention_factor=1.0)
    apply(make_plan(tiny, recipe, out, encoding="tensor"))
    apply(make_plan(tiny, recipe, tmp_path / "keys.gguf", encoding="keys"))
    assert GgufFile.open(out).tensors[FREQS].shape == (rotary_dim,)
    found = answers(
        "step35", tmp_path, {"tensor": out, "keys": tmp_path / "keys.gguf", "source": tiny}
    )
    assert apart(found["tensor"], found["keys"]) < SAME
    assert apart(found["source"], found["keys"]) > CHANGED


def test_a_scaled_file_that_changes_window_layers_keeps_them_as_they_are(tmp_path: Path) -> None:
    """An attention factor that reaches window layers stays with --as-is and goes with --replace."""
    tiny = make("mimo2", tmp_path / "mimo2.gguf")
    loud = variant(tiny, "only an attention factor", tmp_path / "loud.gguf")
    assert loud is not None
    plan = make_plan(loud, AS_IS, tmp_path / "kept.gguf")
    assert plan.result.edit.changes == {}
    replaced = make_plan(
        loud, recipe_of("theta", 1e6, context=64), tmp_path / "replaced.gguf", replace=True
    )
    file = GgufFile.open(loud)
    after = GgufModel(file.header, file.tensors, rope_tensors(file)).after(replaced.result.edit)
    assert after.get("mimo2.rope.scaling.attn_factor") is None


def test_a_scaling_of_another_method_names_the_method_that_fits(tmp_path: Path) -> None:
    """Gemma 3 as published: yarn on top of linear has no key in llama.cpp, and linear on top of it
    has.
    """
    tiny = make("gemma3", tmp_path / "gemma3.gguf")
    linear = variant(tiny, "linear", tmp_path / "linear.gguf")
    assert linear is not None
    with pytest.raises(RopeconvError, match="pass --linear 2 --on-top"):
        make_plan(linear, FURTHER, tmp_path / "out.gguf")
    plan = make_plan(linear, recipe_of("linear", 2.0, on_top=True), tmp_path / "out.gguf")
    assert plan.schedule.form is not None
    assert plan.schedule.context == 128
