"""Whether models fit: published models by hand, and the boundary at which they stop fitting."""

from dataclasses import replace

import pytest

from ropeconv.errors import UsageError
from ropeconv.inspection.memory.fit import check_machine, find_fit, needed
from ropeconv.inspection.memory.machine import Machine, given_memory
from ropeconv.inspection.memory.runtime import MEMORY
from ropeconv.inspection.memory.runtimes.vllm import group_layers
from ropeconv.inspection.memory.shape import ModelShape
from ropeconv.models.config import CachedLayers
from ropeconv.options import MachineOptions

from ...conftest import CONFIGS
from ...support.baking import inspected

GIB = 1 << 30
CARD = given_memory("24GB")


def shape_of(name: str, weights: int | None = None) -> ModelShape:
    shape = inspected(CONFIGS / f"{name}.json").shape
    assert shape is not None
    return shape.with_weights(weights)


LLAMA = shape_of("meta-llama--Meta-Llama-3.1-8B", 8_030_261_248 * 2)
"""8.03 billion weights in bfloat16: https://huggingface.co/meta-llama/Llama-3.1-8B."""


def test_llama_in_llamacpp_by_hand() -> None:
    """32 layers with K and V of 8 heads of 128, in float16, and 34 bytes for 32 numbers in q8_0."""
    need = needed(MEMORY["llama-cpp"], LLAMA, 131072, CARD)
    assert need.cache == 16 * GIB
    quantised = needed(MEMORY["llama-cpp"], LLAMA, 131072, CARD, "q8_0")
    assert quantised.cache == 16 * GIB * 34 // 64
    # 512 tokens: the logits of 128,256 tokens and two hidden states of 4,096, in float32
    short = needed(MEMORY["llama-cpp"], LLAMA, 8192, CARD)
    assert short.activations == 512 * 4 * (128256 + 2 * 4096)
    # cells come in steps of 256
    assert needed(MEMORY["llama-cpp"], LLAMA, 1, CARD).cache == 256 * (16 * GIB // 131072)


def test_gemma_in_llamacpp_keeps_four_windows() -> None:
    """Gemma 3 27B: 10 layers see everything, 52 see 1,024 tokens; 16 heads of 128."""
    gemma = shape_of("google--gemma-3-27b-it")
    need = needed(MEMORY["llama-cpp"], gemma, 131072, CARD)
    cells = 10 * 131072 + 52 * (4 * 1024 + 512)
    assert need.cache == cells * 2 * 16 * 128 * 2


def test_vllm_groups_layers_by_the_rarest_kind() -> None:
    def groups(full: int, windowed: int) -> list[tuple[int | None, int]]:
        layers = (CachedLayers(full, 64, 64, None), CachedLayers(windowed, 64, 64, 512))
        return [
            (group.window, group.layers) for group in group_layers(replace(LLAMA, layers=layers))
        ]

    # the examples in kv_cache_utils.py
    assert groups(10, 20) == [(None, 10), (512, 10), (512, 10)]
    assert groups(13, 12) == [(None, 13), (512, 13)]
    # the 52 layers of Gemma 3 27B with a window become 6 groups of 10
    assert groups(10, 52) == [(None, 10)] + 6 * [(512, 10)]


def test_sglang_keeps_eight_tenths_for_windows() -> None:
    gemma = shape_of("google--gemma-3-27b-it")
    need = needed(MEMORY["sglang"], gemma, 100_000, CARD)
    assert need.cache == (10 * 100_000 + 52 * 80_000) * 2 * 16 * 128 * 2


def test_float32_weights_are_halved_in_vllm_alone() -> None:
    shape = replace(LLAMA, dtype="float32", weights=4 * GIB)
    assert needed(MEMORY["vllm"], shape, 1024, CARD).weights == 2 * GIB
    assert needed(MEMORY["transformers"], shape, 1024, CARD).weights == 4 * GIB


@pytest.mark.parametrize("runtime", list(MEMORY))
def test_the_longest_context_is_the_last_that_fits(runtime: str) -> None:
    if runtime == "sglang":  # it reserves 7 GiB of such a card
        machine = given_memory("32GB")
    else:
        machine = CARD
    fit = find_fit(runtime, LLAMA, 8192, machine)
    assert fit.fits
    assert fit.longest >= 8192
    usable = MEMORY[runtime].usable(machine)
    assert needed(MEMORY[runtime], LLAMA, fit.longest, machine).total <= usable
    assert needed(MEMORY[runtime], LLAMA, fit.longest + 256, machine).total > usable


def test_a_context_that_does_not_fit_names_the_option_with_which_more_does() -> None:
    fit = find_fit("llama-cpp", LLAMA, 131072, CARD)
    assert not fit.fits
    assert fit.thrift is not None
    assert fit.thrift.option == "--cache-type-k q8_0 --cache-type-v q8_0"
    assert fit.thrift.longest > 1.7 * fit.longest
    assert fit.sentence.startswith("no, ")
    # who has chosen a type is told no other
    assert find_fit("llama-cpp", LLAMA, 131072, CARD, "f16").thrift is None
    # one that fits needs none
    assert find_fit("llama-cpp", LLAMA, 8192, CARD).thrift is None


def test_weights_that_are_too_large_have_no_length() -> None:
    fit = find_fit("llama-cpp", LLAMA, 8192, given_memory("8GB"))
    assert (fit.fits, fit.longest, fit.short) == (False, 0, "no")
    assert "the weights are too large" in fit.sentence


def test_weights_that_leave_too_little_are_not_called_too_large() -> None:
    # 15.0 GiB of weights, and the logits and hidden states of 256 tokens are 0.1 GiB
    machine = Machine(kind="gpu", name="GPU", bytes=(LLAMA.weights or 0) + (1 << 20))
    fit = find_fit("llama-cpp", LLAMA, 8192, machine)
    assert (fit.fits, fit.longest) == (False, 0)
    assert "weights" not in fit.sentence
    assert "256 tokens" in fit.sentence

    # the system keeps 2 GiB of the RAM
    tiny = replace(LLAMA, weights=1 << 20)
    fit = find_fit("llama-cpp", tiny, 8192, Machine(kind="ram", name="RAM", bytes=2 * GIB))
    assert "weights" not in fit.sentence
    assert "0.0 KiB of that" in fit.sentence


def test_sizes_below_a_gib_are_in_mib() -> None:
    tiny = replace(LLAMA, weights=1 << 20)
    fit = find_fit("llama-cpp", tiny, 256, given_memory("1MB"))
    assert " of 1.0 MiB in llama.cpp" in fit.sentence
    assert "GiB" not in fit.sentence
    assert given_memory("1023MB").sentence == "1023.0 MiB"
    assert given_memory("10KB").sentence == "10.0 KiB"
    assert given_memory("1GB").sentence == "1.0 GiB"


def test_a_source_without_weights_is_not_judged() -> None:
    fit = find_fit("vllm", LLAMA.with_weights(None), 8192, CARD)
    assert (fit.need.weights, fit.short) == (None, "?")
    assert fit.sentence.startswith("unknown without weights; ")


def test_a_source_without_weights_is_judged_where_the_rest_is_too_large() -> None:
    fit = find_fit("llama-cpp", LLAMA.with_weights(None), 1048576, CARD)
    assert not fit.fits
    # 32 layers with K and V of 8 heads of 128 in float16: 128 KiB for each token
    assert 0 < fit.longest <= 24 * GIB // (128 << 10)
    assert fit.short == f"{fit.longest:,}"
    assert fit.thrift is not None
    assert fit.thrift.longest > 1.7 * fit.longest
    assert fit.sentence.startswith("no, ")
    assert f"{fit.longest:,} tokens" in fit.sentence


def test_a_model_is_divided_over_several_gpus() -> None:
    def devices(count: int) -> int:
        machine = Machine(kind="gpu", name="GPU", bytes=12 * GIB, count=count)
        return find_fit("llama-cpp", LLAMA, 8192, machine).devices

    assert (devices(1), devices(2), devices(4)) == (0, 2, 2)


@pytest.mark.parametrize(
    ("runtime", "name"), [("vllm", "q8_0"), ("llama-cpp", "fp8"), ("transformers", "fp8")]
)
def test_a_type_that_a_runtime_does_not_have_is_refused(runtime: str, name: str) -> None:
    with pytest.raises(UsageError, match="--cache-type"):
        find_fit(runtime, LLAMA, 8192, CARD, name)


@pytest.mark.parametrize("runtime", list(MEMORY))
def test_each_type_of_a_runtime_is_accepted(runtime: str) -> None:
    for name in MEMORY[runtime].cache_types(LLAMA):
        check_machine(MachineOptions(cache_type=name))
    with pytest.raises(UsageError, match="fp8"):
        check_machine(MachineOptions(cache_type="q9_0"))


def test_blocks_that_do_not_divide_a_layer_are_refused() -> None:
    odd = replace(LLAMA, layers=(CachedLayers(32, 80, 80, None),))
    with pytest.raises(UsageError, match="blocks of 32"):
        find_fit("llama-cpp", odd, 8192, CARD, "q8_0")


def test_every_runtime_states_where_its_formulas_were_read() -> None:
    for runtime in MEMORY.values():
        assert ".py" in runtime.source or ".cpp" in runtime.source
