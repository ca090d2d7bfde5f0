"""The keys by which the reference of a check computes a method, against the header that an output
gets: ropeconv's reader of headers finds the same RoPE in both, for every architecture. No file is
read.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from ropeconv.convert.gguf_encoding import GgufModel
from ropeconv.convert.gguf_selection import select_gguf
from ropeconv.convert.target import Target
from ropeconv.engines.llamacpp import overrides
from ropeconv.engines.llamacpp_program import Override
from ropeconv.errors import UnsupportedBake
from ropeconv.formats.gguf.edit import Edit
from ropeconv.formats.gguf.header import BOOL, INT32, UINT32, GgufHeader, array, f32, string, u32
from ropeconv.rope.recipe import parse_recipe
from ropeconv.rope.schedule import Schedule
from ropeconv.rope.spec import RopeSpec
from ropeconv.runtimes.llamacpp.archs import Arch, arch_table
from ropeconv.runtimes.llamacpp.read_header import Reading
from ropeconv.runtimes.verdict import difference

ARCHS: dict[str, Arch] = {**arch_table().arch, **arch_table().draft_arch}
METHODS = ("ntk:2", "linear:4", "yarn:4", "yarn:4:attention_factor=1", "yarn:4:beta_fast=16")
THETA, CONTEXT, LAYERS = 500000.0, 8192, 64
ORIGINAL = "rope.scaling.original_context_length"
QUERIES = {"attention.temperature_scale": f32(0.1)}
SCALED = {"rope.scaling.factor": f32(8.0), "rope.scaling.attn_factor": f32(1.2)}
SOURCES: dict[str, dict[str, Any]] = {
    "plain": {},
    "linear": {**SCALED, "rope.scaling.type": string("linear")},
    "linear by the old key": {"rope.scale_linear": f32(8.0)},
    "yarn": {**SCALED, "rope.scaling.type": string("yarn"), ORIGINAL: u32(1024)},
    "factor of the base": {"rope.scaling.alpha": f32(1000.0)},
    "ramp without a type": {
        "rope.scaling.yarn_ext_factor": f32(1.0),
        "rope.scaling.yarn_attn_factor": f32(1.3),
    },
    "betas": {"rope.scaling.yarn_beta_fast": f32(8.0), "rope.scaling.yarn_beta_slow": f32(2.0)},
    "multiplier": {"rope.scaling.yarn_log_multiplier": f32(0.1)},
    "windows with the same base": {"rope.freq_base_swa": f32(THETA)},
    "windows with another base": {"rope.freq_base_swa": f32(20000.0)},
    "query scaling over the context": QUERIES,
    "query scaling over a length": {**QUERIES, ORIGINAL: u32(CONTEXT // 2)},
}
"""Keys of sources, some of which a method removes from the header or sets anew."""


def source(name: str, arch: Arch, more: dict[str, Any]) -> GgufModel:
    """A model with the keys that every architecture has, and with those of a source."""
    count = arch.only_layers or LAYERS
    keys = {
        "context_length": u32(CONTEXT),
        "embedding_length": u32(4096),
        "block_count": u32(count),
        "attention.head_count": u32(32),
        "attention.head_count_kv": u32(8),
        "rope.dimension_count": u32(128),
        "rope.freq_base": f32(THETA),
        arch.theta_key: f32(THETA),
    }
    if arch.window is not None:
        has_window = [(layer + 1) % 4 != 0 for layer in range(count)]
        keys["attention.sliding_window"] = u32(1024)
        keys["attention.sliding_window_pattern"] = array(BOOL, has_window)
    if arch.sections == "required":
        keys["rope.dimension_sections"] = array(INT32, [16, 24, 24, 0])
    if name == "deepseek4":
        keys["attention.compress_ratios"] = array(UINT32, [4] * count)
    values = {f"{name}.{key}": value for key, value in {**keys, **more}.items()}
    values["general.architecture"] = string(name)
    return GgufModel(GgufHeader(3, values, {}, 32, 0, 0), {}, {})


def given(model: GgufModel, keys: dict[str, Override]) -> Reading:
    """What llama.cpp computes from a model under keys that it gets when it loads it."""
    kinds: dict[str, Any] = {"float": f32, "int": u32, "str": string}
    return model.after(
        Edit({key: kinds[kind](value) for key, (kind, value) in keys.items()})
    ).reading()


def cases(name: str) -> Iterator[tuple[str, GgufModel, RopeSpec, Schedule, GgufModel]]:
    """(words, source, its RoPE, the method's, output) for what keys of an architecture can hold."""
    for words, more in SOURCES.items():
        model = source(name, ARCHS[name], more)
        start = model.from_unscaled()
        before = start.before.spec
        for method in METHODS:
            schedule = parse_recipe(method).schedule(before)
            try:
                result = select_gguf(schedule, start, Target(encoding="keys"))
            except UnsupportedBake:
                continue
            yield f"{method} of {words}", model, before, schedule, model.after(result.edit)


@pytest.mark.parametrize("name", ARCHS)
def test_the_reference_computes_what_the_keys_of_an_output_say(name: str) -> None:
    compared = 0
    for words, model, before, schedule, output in cases(name):
        keys = overrides(schedule, name, before)
        assert keys is not None, words
        expected = output.reading()
        assert difference(schedule, before, expected.spec) == "", words
        for file in (model, output):
            reference = given(file, keys)
            assert difference(schedule, before, reference.spec) == "", words
            assert reference.spec.layers == expected.spec.layers, words
            assert reference.local_attention_factor == pytest.approx(
                expected.local_attention_factor
            ), words
        compared += 1
    assert compared > 0 or ARCHS[name].fixed


@pytest.mark.parametrize("name", ARCHS)
def test_the_control_computes_the_unscaled_source_from_an_output(name: str) -> None:
    for words, _, before, _, output in cases(name):
        unscaled = before.current()
        keys = overrides(unscaled, name, before)
        assert keys is not None, words
        control = given(output, keys).spec
        assert difference(unscaled, before, control) == "", words
        assert control.layers == before.layers, words
