"""Training fits the named GPUs: the memory is that of torch, and the settings are the trainers'."""

import math
from dataclasses import replace
from typing import Any

import pytest

from ropeconv import RopeconvError
from ropeconv.errors import UsageError
from ropeconv.features.training.memory import (
    SEQUENCES,
    MemorySettings,
    TrainingTask,
    fit_gpus,
    layer_bytes,
    logits_bytes,
    parameter_count,
    training_memory,
)
from ropeconv.features.training.training import make_snippet, trainers
from ropeconv.inspection.inspection import inspect_config
from ropeconv.inspection.memory.shape import ModelShape
from ropeconv.models.open import open_source

from ...conftest import CONFIGS
from .test_snippets import baked, settings

GIB = 1 << 30
ALL = MemorySettings(source="", context_parallel=True, shards=True, offload=True)
ALONE = MemorySettings(source="")


def shape_of(name: str) -> ModelShape:
    shape = inspect_config(open_source(str(CONFIGS / f"{name}.json"))).shape
    assert shape is not None
    return shape


@pytest.fixture(scope="module")
def qwen() -> ModelShape:
    """Qwen3-8B: 36 layers of 4,096, with 151,936 tokens in its vocabulary."""
    return shape_of("Qwen--Qwen3-8B")


def test_the_parameters_are_those_of_the_class(qwen: ModelShape) -> None:
    torch = pytest.importorskip("torch")
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(CONFIGS / "Qwen--Qwen3-8B.json")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    exact = sum(weight.numel() for weight in model.parameters())
    assert parameter_count(qwen, tied=False) == pytest.approx(exact, rel=1e-3)
    assert parameter_count(replace(qwen, experts=8), tied=False) == 0


def test_one_layer_keeps_what_torch_keeps() -> None:
    torch = pytest.importorskip("torch")
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=256,
        intermediate_size=768,
        num_attention_heads=8,
        num_key_value_heads=2,
        num_hidden_layers=1,
        attn_implementation="sdpa",
    )
    tokens = 512
    layer = LlamaDecoderLayer(config, 0).to(torch.bfloat16)
    states = torch.randn(1, tokens, 256, dtype=torch.bfloat16, requires_grad=True)
    places = LlamaRotaryEmbedding(config)(states, torch.arange(tokens)[None])
    weights = {weight.untyped_storage().data_ptr() for weight in layer.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        layer(states, position_embeddings=places)

    shape = replace(
        shape_of("Qwen--Qwen3-8B"), hidden=256, queries=256, mlp=768, heads=8, head_dim=32
    )
    (group,) = shape.layers
    shape = replace(shape, layers=(replace(group, count=1, keys=64, values=64),))
    gradients = 2 * tokens * (2 * 768 + 256)
    assert layer_bytes(shape, tokens) - gradients == pytest.approx(sum(kept.values()), rel=0.2)


def test_all_logits_of_131072_tokens_are_80_gb_and_chunks_of_them_are_not(
    qwen: ModelShape,
) -> None:
    whole = logits_bytes(qwen, 131072, chunked=False)
    assert whole == 131072 * 151936 * (2 + 4 + 4)
    assert pytest.approx(80e9, rel=0.01) == 4 * 131072 * 151936
    # chunks of 4,096 tokens: 131,072 tokens in ceil(151,936 / 4,096) = 38 parts, up to a power of 2
    assert logits_bytes(qwen, 131072) == 4096 * 151936 * 10


def test_a_long_context_is_divided_until_it_fits(qwen: ModelShape) -> None:
    parameters = parameter_count(qwen, tied=False)
    alone = training_memory(qwen, parameters, 131072).total
    assert alone > 80 * GIB
    plan = fit_gpus(TrainingTask(qwen, parameters, 131072, ALL, 8, 80 * GIB))
    assert (plan.gpus, plan.offload) == (8, False)
    assert plan.memory.total <= 80 * GIB
    assert plan.accumulation * 8 // plan.context_parallel == SEQUENCES
    # with smaller GPUs, more of them share a sequence
    smaller = fit_gpus(TrainingTask(qwen, parameters, 131072, ALL, 8, 24 * GIB))
    assert smaller.context_parallel > plan.context_parallel
    assert smaller.memory.total <= 24 * GIB
    # the whole is there: what one GPU keeps grows with the tokens
    longer = fit_gpus(TrainingTask(qwen, parameters, 4 * 131072, ALL, 8, 80 * GIB))
    assert longer.context_parallel > plan.context_parallel


def test_states_go_to_the_host_only_where_that_is_needed(qwen: ModelShape) -> None:
    parameters = parameter_count(qwen, tied=False)
    alone = training_memory(qwen, parameters, 131072).total
    offloading = MemorySettings(source="", offload=True)
    assert fit_gpus(TrainingTask(qwen, parameters, 131072, offloading, 1, alone)).offload is False
    assert (
        fit_gpus(TrainingTask(qwen, parameters, 131072, offloading, 1, alone - 1)).offload is True
    )


def test_what_does_not_fit_is_refused_with_what_does(qwen: ModelShape) -> None:
    parameters = parameter_count(qwen, tied=False)
    with pytest.raises(RopeconvError, match=r"--memory gives 24.0 GiB; give --gpus \d+") as no:
        fit_gpus(TrainingTask(qwen, parameters, 131072, ALL, 1, 24 * GIB))
    gpus = int(str(no.value).rpartition(" ")[2])
    assert fit_gpus(TrainingTask(qwen, parameters, 131072, ALL, gpus, 24 * GIB))
    with pytest.raises(RopeconvError, match=r"give --context (\d+)") as no:
        fit_gpus(TrainingTask(qwen, parameters, 131072, ALONE, 1, 24 * GIB))
    context = int(str(no.value).split("--context ")[1].split(",")[0])
    assert fit_gpus(TrainingTask(qwen, parameters, context, ALONE, 1, 24 * GIB))
    with pytest.raises(RopeconvError, match="give GPUs with more memory"):
        fit_gpus(TrainingTask(qwen, parameters, 131072, ALONE, 1, 8 * GIB))


@pytest.mark.parametrize("name", ["axolotl", "trl", "llama-factory", "unsloth"])
def test_the_file_has_the_settings_of_its_plan(name: str, qwen: ModelShape) -> None:
    trainer = trainers()[name]
    assert trainer.memory is not None
    facts = baked(shape=qwen, parameters=parameter_count(qwen, tied=False))
    divides = trainer.memory.shards
    gpus = 8 if divides else 1
    memory = 24 * GIB if trainer.memory.context_parallel else 141 * GIB
    snippet = make_snippet(trainer, facts, gpus, memory)
    plan = snippet.gpus
    assert plan is not None
    given, _ = settings(trainer, snippet.text)
    assert given["gradient_accumulation_steps"] == plan.accumulation
    if trainer.memory.context_parallel:
        assert plan.context_parallel > 1
        said = given.get("context_parallel_size")
        assert said == plan.context_parallel or (
            f"--parallelism_config_cp_size {plan.context_parallel} " in snippet.command
        )
    assert any("in float32 at once" in note for note in snippet.notes)
    assert any("billion tokens (400 steps of 64 sequences)" in note for note in snippet.notes)
    assert snippet.to_dict()["gpus"]["bytes"] <= memory


def test_gpus_without_memory_and_where_they_are_not_used_are_refused(qwen: ModelShape) -> None:
    facts = baked(shape=qwen, parameters=8_000_000_000)
    known = trainers()
    for name, gpus, memory, words in (
        ("axolotl", 8, 0, "--gpus needs the memory"),
        ("unsloth", 2, 80 * GIB, "trains on one GPU"),
        ("megatron", 8, 80 * GIB, "sets RoPE only"),
    ):
        with pytest.raises(UsageError, match=words):
            make_snippet(known[name], facts, gpus, memory)
    with pytest.raises(RopeconvError, match="does not say what training it takes"):
        make_snippet(known["trl"], baked(), 8, 80 * GIB)


def test_the_tokens_are_those_of_the_steps(qwen: ModelShape) -> None:
    snippet = make_snippet(trainers()["trl"], baked(shape=qwen, parameters=8_000_000_000))
    billions = 400 * 64 * 131072 / 1e9
    assert any(f"trains on {billions:.2g} billion tokens" in note for note in snippet.notes)
    assert math.isclose(400 * 64 * 65536 / 1e9, 1.7, rel_tol=0.02)  # YaRN's, as the note has it
