"""Training fits the named GPUs: the memory is that of torch, and the settings are the trainers'."""

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ropeconv import RopeconvError, train_config
from ropeconv.errors import UsageError
from ropeconv.features.training.memory import (
    SEQUENCES,
    MemorySettings,
    TrainingTask,
    fit_gpus,
    is_counted,
    layer_bytes,
    logits_bytes,
    parameter_count,
    training_memory,
)
from ropeconv.features.training.training import make_snippet, trainers
from ropeconv.inspection.inspection import inspect_config
from ropeconv.inspection.memory.shape import ModelShape
from ropeconv.models.open import open_source
from ropeconv.rope.recipe import parse_recipe

from ...conftest import CONFIGS
from ...support.baking import apply, make_plan
from .test_snippets import baked, settings

GIB = 1 << 30
ALL = MemorySettings(source="", context_parallel=True, shards=True, offload=True)
ALONE = MemorySettings(source="")


def shape_of(name: str) -> ModelShape:
    shape = inspect_config(open_source(str(CONFIGS / f"{name}.json"))).shape
    assert shape is not None
    return shape


def most_allocated(profiled: Any) -> int:
    """The most bytes that were allocated at once while torch's profiler ran."""
    events = [event for event in profiled.profiler.kineto_results.events() if event.nbytes()]
    sizes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return max(itertools.accumulate(sizes))


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
    assert plan.memory.total <= 72 * GIB
    assert plan.accumulation * 8 // plan.context_parallel == SEQUENCES
    # with smaller GPUs, more of them share a sequence
    smaller = fit_gpus(TrainingTask(qwen, parameters, 131072, ALL, 8, 24 * GIB))
    assert smaller.context_parallel > plan.context_parallel
    assert smaller.memory.total <= 0.9 * 24 * GIB
    # the whole is there: what one GPU keeps grows with the tokens
    longer = fit_gpus(TrainingTask(qwen, parameters, 4 * 131072, ALL, 8, 80 * GIB))
    assert longer.context_parallel > plan.context_parallel


def test_states_go_to_the_host_only_where_that_is_needed(qwen: ModelShape) -> None:
    parameters = parameter_count(qwen, tied=False)
    alone = training_memory(qwen, parameters, 131072).total
    offloading = MemorySettings(source="", offload=True)
    limit = -(-10 * alone // 9)  # the smallest number of bytes of which nine tenths are enough
    for gpu, offload in ((limit, False), (limit - 1, True)):
        plan = fit_gpus(TrainingTask(qwen, parameters, 131072, offloading, 1, gpu))
        assert plan.offload is offload


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
    said = snippet.to_dict()["gpus"]
    assert said["bytes"] <= said["usable"] == memory * 9 // 10
    assert any("tenth" in note for note in snippet.notes)
    (comment,) = [line for line in snippet.text.splitlines() if line.startswith("# Memory:")]
    assert f"{said['bytes'] / GIB:.1f} GiB" in comment
    assert f"{memory / GIB:.1f} GiB" in comment


def test_gpus_without_memory_and_where_they_are_not_used_are_refused(qwen: ModelShape) -> None:
    facts = baked(shape=qwen, parameters=8_000_000_000)
    known = trainers()
    for name, gpus, memory, words in (
        ("axolotl", 8, 0, "--gpus needs the memory"),
        ("unsloth", 2, 80 * GIB, "trains on one GPU"),
        ("megatron", 8, 80 * GIB, "sets RoPE only"),
        ("axolotl", 100_000, 80 * GIB, "give --gpus 1024"),
        ("llama-factory", 65, 80 * GIB, "give --gpus 64"),
        ("trl", 1000, 80 * GIB, "give --gpus 512"),
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


def test_a_tenth_stays_free(qwen: ModelShape) -> None:
    parameters = parameter_count(qwen, tied=False)
    # on 8 GPUs of 80 GB, whole sequences take 80.4 GiB and halves 43.8: below 72 GiB are only these
    plan = fit_gpus(TrainingTask(qwen, parameters, 131072, ALL, 8, 80 * GIB))
    assert (plan.context_parallel, plan.usable) == (2, 72 * GIB)
    # where a trainer divides no sequence, the states go to the host
    sharding = MemorySettings(source="", shards=True, offload=True)
    plan = fit_gpus(TrainingTask(qwen, parameters, 131072, sharding, 8, 80 * GIB))
    assert (plan.context_parallel, plan.offload) == (1, True)
    sharding = MemorySettings(source="", shards=True)
    with pytest.raises(RopeconvError, match="tenth"):
        fit_gpus(TrainingTask(qwen, parameters, 131072, sharding, 8, 80 * GIB))


def test_embedding_head_and_two_layers_are_gathered(qwen: ModelShape) -> None:
    # each of 36 layers: queries and output, keys and values of 8 heads, and three matrices
    attention = 2 * 4096 * 4096 + 2 * 4096 * 1024
    layer = attention + 3 * 4096 * 12288
    table = 151936 * 4096
    parameters = 36 * layer + 2 * table
    shared = training_memory(qwen, parameters, 131072, shards=8)
    assert shared.gathered == 2 * (2 * table + 2 * layer) == 3_261_071_360
    assert shared.weights == 2 * parameters // 8
    assert training_memory(qwen, parameters, 131072).gathered == 0
    tied = training_memory(qwen, parameters - table, 131072, shards=8, tied=True)
    assert tied.gathered == 2 * (table + 2 * layer)
    # DeepSpeed has a limit on the parameters that stay, which a single module may exceed
    for live, most in ((1_550_000_000, 1_550_000_000), (1000, table)):
        zero = training_memory(qwen, parameters, 131072, shards=8, live=live)
        assert zero.gathered == 2 * most
    deepspeed = trainers()["llama-factory"].memory
    assert deepspeed is not None
    assert deepspeed.live_parameters == 10**9 + 5 * 10**7 + 5 * 10**8
    # the whole, with a sequence on each GPU
    states = 36 * 131072 * 4096 * 2
    saved = 4 * 4096 + 3 * 4096 + 2 * 1024 + 1024 + 4 * 12288 + 4 * 4096 + 2 * 12288 + 4096
    logits = 4096 * 151936 * 10
    reserved = 3 * GIB
    known = reserved + states + 2 * 131072 * saved + logits + shared.weights + shared.gathered
    assert shared.total - shared.adapter == known


def test_more_gpus_than_its_rank_do_not_divide_half_of_an_adapter(qwen: ModelShape) -> None:
    parameters = parameter_count(qwen, tied=False)
    # a matrix A has 16 rows of the inputs, and B has a row of 16 for each output
    inputs = 3 * 4096 + 4096 + 2 * 4096 + 12288
    outputs = 4096 + 1024 + 1024 + 4096 + 2 * 12288 + 4096
    for gpus, rows in ((1, 16), (8, 2), (64, 1), (1024, 1)):
        numbers = 36 * (rows * inputs + -(-outputs // gpus) * 16)
        assert training_memory(qwen, parameters, 131072, shards=gpus).adapter == 16 * numbers


def test_the_scores_of_eager_attention_are_counted() -> None:
    gemma = shape_of("google--gemma-2-9b")
    parameters = parameter_count(gemma, tied=True)
    memory = training_memory(gemma, parameters, 32768, tied=True)
    # 16 heads with 14 bytes for a score, and the masks of layers with and without a window
    assert memory.scores == 16 * 32768 * 32768 * 14 + 2 * 2 * 32768 * 32768
    assert memory.scores > 224 * GIB
    facts = baked(shape=gemma, parameters=parameters, tied=True, context=32768)
    for name in ("axolotl", "trl", "llama-factory"):
        with pytest.raises(RopeconvError, match=r"scores .* --context (\d+)") as no:
            make_snippet(trainers()[name], facts, 8, 80 * GIB)
        context = int(str(no.value).split("--context ")[1].split(",")[0])
        plan = make_snippet(trainers()[name], replace(facts, context=context), 8, 80 * GIB).gpus
        assert plan is not None
        # no trainer divides a sequence with eager attention
        assert plan.context_parallel == 1
        assert plan.memory.scores == (16 * 14 + 4) * context**2
    notes = make_snippet(trainers()["axolotl"], facts).notes
    assert any("scores" in note and "228.0 GiB" in note for note in notes)


def test_one_layer_with_eager_attention_keeps_what_torch_allocates() -> None:
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile
    from transformers import Gemma2Config
    from transformers.models.gemma2.modeling_gemma2 import Gemma2DecoderLayer

    tokens = 512
    config = Gemma2Config(
        hidden_size=32,
        intermediate_size=32,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=8,
        num_hidden_layers=1,
        attn_implementation="eager",
    )
    layer = Gemma2DecoderLayer(config, 0).to(torch.bfloat16)
    states = torch.randn(1, tokens, 32, dtype=torch.bfloat16, requires_grad=True)
    places = (torch.zeros(1, tokens, 8, dtype=torch.bfloat16),) * 2
    mask = torch.zeros(1, 1, tokens, tokens, dtype=torch.bfloat16)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        layer(states, position_embeddings=places, attention_mask=mask).sum().backward()
    gemma = replace(shape_of("google--gemma-2-9b"), heads=8)
    masks = 2 * 2 * tokens * tokens
    scores = training_memory(gemma, 10**9, tokens).scores - masks
    assert most_allocated(profiled) == pytest.approx(scores, rel=0.05)


def test_masks_of_windows_are_counted_without_flash_attention() -> None:
    gemma = shape_of("google--gemma-3-1b-it")
    parameters = parameter_count(gemma, tied=True)
    facts = baked(shape=gemma, parameters=parameters, tied=True, context=65536)
    plans = {}
    for name in ("axolotl", "trl"):
        plans[name] = make_snippet(trainers()[name], facts, 8, 80 * GIB).gpus
    assert plans["axolotl"] is not None
    assert plans["trl"] is not None
    assert (plans["axolotl"].memory.scores, plans["trl"].memory.scores) == (0, 3 * 65536 * 65536)
    # accelerate refuses to divide the sequences of a model with windows, and Axolotl does not
    divided = make_snippet(trainers()["axolotl"], replace(facts, context=262144), 8, 24 * GIB).gpus
    assert divided is not None
    assert divided.context_parallel > 1
    with pytest.raises(RopeconvError, match="masks"):
        make_snippet(trainers()["trl"], replace(facts, context=262144), 8, 80 * GIB)


@pytest.mark.parametrize(("gpus", "division"), [(1024, 16), (128, 2), (100, 2), (64, 1), (48, 1)])
def test_a_step_has_no_more_than_its_sequences(gpus: int, division: int, qwen: ModelShape) -> None:
    facts = baked(shape=qwen, parameters=8_000_000_000, context=32768)
    snippet = make_snippet(trainers()["axolotl"], facts, gpus, 80 * GIB)
    plan = snippet.gpus
    assert plan is not None
    assert plan.context_parallel == division
    assert plan.sequences == gpus // division <= SEQUENCES
    assert any(f"steps of {gpus // division} sequences" in note for note in snippet.notes)


@pytest.mark.parametrize("number", [{"gpus": 0}, {"gpus": -1}, {"memory": 0}, {"memory": -1}])
def test_python_refuses_no_gpus_and_no_memory(number: dict[str, Any], tmp_path: Path) -> None:
    model = CONFIGS / "Qwen--Qwen3-8B.json"
    out = apply(make_plan(model, parse_recipe("yarn:4"), out=tmp_path / "out"))
    numbers: dict[str, Any] = {"gpus": 8, "memory": "80GB"} | number
    (name,) = number
    with pytest.raises(UsageError, match=f"{name}={number[name]}"):
        train_config(str(out), "axolotl", **numbers)


@pytest.mark.parametrize(
    ("name", "attention", "experts", "width", "vocabulary", "layers", "total"),
    [
        (
            "Qwen--Qwen3-30B-A3B",
            2 * 2048 * 4096 + 2 * 2048 * 512,
            128,
            768,
            151936,
            48,
            30_532_122_624,
        ),
        (
            "mistralai--Mixtral-8x7B-v0.1",
            2 * 4096 * 4096 + 2 * 4096 * 1024,
            8,
            14336,
            32000,
            32,
            46_702_792_704,
        ),
    ],
)
def test_all_experts_are_loaded(
    name: str,
    attention: int,
    experts: int,
    width: int,
    vocabulary: int,
    layers: int,
    total: int,
) -> None:
    """total: the parameters of the class in transformers."""
    shape = shape_of(name)
    hidden = shape.hidden
    layer = attention + experts * (3 * hidden * width + hidden)
    parameters = parameter_count(shape, tied=False)
    assert parameters == layers * layer + 2 * vocabulary * hidden
    assert parameters == pytest.approx(total, rel=1e-3)
    memory = training_memory(shape, parameters, 8192, shards=8)
    assert memory.gathered == 2 * (2 * vocabulary * hidden + 2 * layer)
    facts = baked(shape=shape, parameters=parameters, context=32768)
    for trainer in ("axolotl", "trl", "llama-factory"):
        assert make_snippet(trainers()[trainer], facts, 16, 141 * GIB).gpus
    # Unsloth puts adapters on experts
    with pytest.raises(RopeconvError, match="Unsloth"):
        make_snippet(trainers()["unsloth"], facts, 1, 141 * GIB)


@pytest.mark.parametrize("name", ["deepseek-ai--DeepSeek-V3", "openai--gpt-oss-20b"])
def test_other_experts_are_not_counted(name: str) -> None:
    assert not is_counted(shape_of(name))
    assert parameter_count(shape_of(name), tied=False) == 0


def test_a_layer_of_experts_keeps_what_torch_allocates() -> None:
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile
    from transformers import Qwen3MoeConfig
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeDecoderLayer

    tokens = 512
    config = Qwen3MoeConfig(
        hidden_size=256,
        moe_intermediate_size=96,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=32,
        num_hidden_layers=1,
        num_experts=16,
        num_experts_per_tok=8,
        attn_implementation="sdpa",
        experts_implementation="grouped_mm",
    )
    layer = Qwen3MoeDecoderLayer(config, 0).to(torch.bfloat16)
    for weight in layer.parameters():
        torch.nn.init.normal_(weight, std=0.02)
        weight.requires_grad_(False)
    states = torch.randn(1, tokens, 256, dtype=torch.bfloat16, requires_grad=True)
    places = (torch.ones(1, tokens, 32, dtype=torch.bfloat16),) * 2
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        layer(states, position_embeddings=places).sum().backward()
    assert most_allocated(profiled) == pytest.approx(
        layer_bytes(
            replace(
                shape_of("Qwen--Qwen3-30B-A3B"),
                hidden=256,
                queries=256,
                experts=8,
                expert_width=96,
                layers=(replace(shape_of("Qwen--Qwen3-30B-A3B").layers[0], keys=64, values=64),),
            ),
            tokens,
        ),
        rel=0.05,
    )
