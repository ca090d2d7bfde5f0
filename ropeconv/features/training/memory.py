"""The memory of training at a long context, and the settings with which it fits some GPUs.

`fit_gpus` is the function to read first. It counts what training a LoRA adapter keeps on each GPU,
with one sequence at a time and gradient checkpointing: the weights, the adapter with its gradients
and optimizer, the states between layers, one layer with its gradients, and the logits.
"""

import math
from dataclasses import dataclass, replace

import msgspec

from ropeconv.inspection.memory.machine import size
from ropeconv.inspection.memory.shape import ModelShape
from ropeconv.rope.errors import RopeconvError

RANK = 16
"""The rank of the adapter in the printed files."""
SEQUENCES = 64
"""Sequences of a step in the printed files, those of YaRN (Peng et al. 2023)."""
STEPS = 400
"""Steps in the printed files, as many as YaRN's."""
BYTES_PER_TRAINED_PARAMETER = 16
"""Bytes of a parameter that Adam trains: weight, gradient and two moments, all in float32."""
RESERVED_BYTES = 3 << 30
"""Bytes of each GPU that CUDA, NCCL and the gaps of the allocator take."""
MOST_GPUS = 1024
"""GPUs up to which a number that would be enough is looked for."""


@dataclass(frozen=True)
class TrainingMemory:
    """The memory of training on one GPU, in bytes."""

    weights: int
    """The frozen weights in bfloat16, or the part of them on this GPU."""

    adapter: int
    """The adapter with gradients and optimizer."""

    states: int
    """The states between layers that gradient checkpointing keeps."""

    layer: int
    """One layer that is computed again, with its gradients."""

    logits: int
    """The logits with their gradients: of a part of the tokens where the loss is chunked."""

    @property
    def total(self) -> int:
        """All of it, with what CUDA takes."""
        return self.weights + self.adapter + self.states + self.layer + self.logits + RESERVED_BYTES

    @property
    def sentence(self) -> str:
        """The parts in words."""
        parts = (
            ("weights", self.weights),
            ("adapter", self.adapter),
            ("states between layers", self.states),
            ("one layer", self.layer),
            ("logits", self.logits),
        )
        words = [f"{name} {size(number)}" for name, number in parts if number]
        return f"{size(self.total)} ({', '.join(words)})"


def parameter_count(shape: ModelShape, tied: bool) -> int:
    """Return the parameters of a dense model; 0 where its shape does not say all.

    Norms and biases are left out, below 0.1 %.

    Args:
        shape: The sizes of the model, such as its hidden size and its layers.
        tied: Whether embedding and head are one matrix.
    """
    # mixtures of experts, latent attention (MLA) and state-space layers
    if shape.experts or shape.latent or shape.states:
        return 0

    tables = 1 if tied else 2  # the embedding, and the head
    count = tables * shape.vocabulary * shape.hidden
    matrices = 2 if shape.mlp_kind == "plain" else 3  # up and down, and mostly a gate
    mlp = matrices * shape.hidden * shape.mlp
    for group in shape.layers:
        # q_proj and o_proj have the same size, k_proj and v_proj that of their heads
        attention = shape.hidden * (2 * shape.queries + group.keys + group.values)
        count += group.count * (attention + mlp)
    return count


def adapter_parameters(shape: ModelShape) -> int:
    """Return the number of parameters of a LoRA adapter of rank RANK on all linear layers.

    A linear layer with m inputs and n outputs gets RANK (m + n) parameters, so m + n is summed up
    over the layers. Only the experts that a token passes through count.
    """
    # m + n of the MLP: two matrices (up and down), or three with a gate; an expert has three
    hidden = shape.hidden
    matrices = 2 if shape.mlp_kind == "plain" else 3
    mlp = matrices * (hidden + shape.mlp)
    experts = shape.experts * 3 * (hidden + shape.expert_width)

    parameters = 0
    for group in shape.layers:
        # m + n of the projections of attention
        queries_and_output = 2 * (hidden + shape.queries)
        keys_and_values = (hidden + group.keys) + (hidden + group.values)
        inputs_and_outputs = queries_and_output + keys_and_values + mlp + experts
        parameters += group.count * RANK * inputs_and_outputs
    return parameters


def layer_bytes(shape: ModelShape, tokens: int) -> int:
    """Return the bytes of one layer that is computed again, and of the gradients in it.

    Flash attention keeps no scores. In bfloat16, the layer keeps the input and output of both norms
    and of their residuals, queries before and after the rotation, keys and values, the output of
    attention, and the MLP: gate, up, the activation, and their product. The norms compute in
    float32. The gradients of the MLP, the widest ones, exist at a time.
    """
    width = max(shape.mlp, shape.experts * shape.expert_width)
    saved = 4 * shape.hidden + 3 * shape.queries + 2 * shape.keys + shape.values + 4 * width
    norms = 2 * 2 * shape.hidden  # float32 numbers are two of bfloat16
    gradients = 2 * width + shape.hidden
    return 2 * tokens * (saved + norms + gradients)


def logits_bytes(shape: ModelShape, tokens: int, chunked: bool = True) -> int:
    """Return the bytes of the logits: bfloat16, float32, and the gradient in float32.

    Args:
        shape: The sizes of the model, such as its hidden size and its layers.
        tokens: The tokens on one GPU.
        chunked: Whether the loss is computed for a part of the tokens at a time.
    """
    tokens_at_a_time = tokens
    if chunked:
        # As liger-kernel 0.8 does (ops/fused_linear_cross_entropy.py). The logits of all tokens are
        # vocabulary / hidden times as large as their hidden states. With as many chunks, the logits
        # of a chunk are about as large as all hidden states.
        chunks = math.ceil(shape.vocabulary / shape.hidden)
        tokens_of_chunk = math.ceil(tokens / chunks)
        next_power_of_two = 1 << (tokens_of_chunk - 1).bit_length()
        tokens_at_a_time = min(next_power_of_two, tokens)
    bytes_per_logit = 2 + 4 + 4
    return tokens_at_a_time * shape.vocabulary * bytes_per_logit


def training_memory(
    shape: ModelShape,
    parameters: int,
    tokens: int,
    shards: int = 1,
    offload: bool = False,
    chunked: bool = True,
) -> TrainingMemory:
    """Return the bytes that training a LoRA adapter keeps on one GPU, part by part.

    Args:
        shape: The sizes of the model, such as its hidden size and its layers.
        parameters: The number of parameters of the model.
        tokens: The number of tokens of a sequence on this GPU.
        shards: The number of GPUs that share the weights.
        offload: Whether the inputs of layers are kept in the memory of the host.
        chunked: Whether the logits and the loss are computed for a part of the tokens at a time.
    """
    # The input of each layer is kept for the backward pass. With `offload` only two inputs are on
    # the GPU: one on its way to the host, and one on its way back.
    attention_layers = sum(group.count for group in shape.layers)
    state_space_layers = shape.states  # Mamba layers, say
    kept_inputs = attention_layers + state_space_layers
    if offload:
        kept_inputs = 2
    bytes_per_number = 2  # bfloat16
    return TrainingMemory(
        weights=bytes_per_number * parameters // shards,
        adapter=BYTES_PER_TRAINED_PARAMETER * adapter_parameters(shape) // shards,
        states=kept_inputs * tokens * shape.hidden * bytes_per_number,
        layer=layer_bytes(shape, tokens),  # while one layer is computed
        logits=logits_bytes(shape, tokens, chunked),
    )


class MemorySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a trainer saves memory."""

    source: str
    """File and line in the release that computes the loss in chunks."""

    context_parallel: bool = False
    """Whether it divides a sequence over GPUs."""

    shards: bool = False
    """Whether it divides the weights over GPUs."""

    offload: bool = False
    """Whether it moves the states between layers to the memory of the host."""


@dataclass(frozen=True)
class GpuPlan:
    """Settings with which training fits some GPUs."""

    memory: TrainingMemory
    """The memory of one GPU."""

    limit: int
    """The memory of one GPU in bytes."""

    gpus: int = 1
    """The GPUs."""

    context_parallel: int = 1
    """How many GPUs share one sequence."""

    offload: bool = False
    """Whether the states between layers are kept in the memory of the host."""

    @property
    def accumulation(self) -> int:
        """Sequences that one GPU reads before a step, for SEQUENCES in all."""
        return accumulation(self.gpus, self.context_parallel)


def accumulation(gpus: int = 1, context_parallel: int = 1) -> int:
    """Return the sequences that one GPU reads before a step, for SEQUENCES in all."""
    return max(1, SEQUENCES * context_parallel // gpus)


@dataclass(frozen=True)
class TrainingTask:
    """A model, a length and the GPUs for its training."""

    shape: ModelShape
    """The model."""

    parameters: int
    """The parameters of the model."""

    context: int
    """The length of the sequences in tokens."""

    abilities: MemorySettings
    """How the trainer saves memory."""

    gpus: int
    """The GPUs."""

    limit: int
    """The memory of one, in bytes."""

    @property
    def fits(self) -> bool:
        """Whether some settings fit."""
        return any(plan.memory.total <= self.limit for plan in self.plans())

    def plans(self) -> list[GpuPlan]:
        """Return all ways to divide the training over the GPUs, the fastest first.

        A sequence may be divided over several GPUs (context parallelism), and the states between
        layers may be kept in the memory of the host (offload), which is slower.
        """
        # over how many GPUs one sequence may be divided: 1, 2, 4, ...
        divisions = [1]
        if self.abilities.context_parallel:
            next_division = 2
            while self.gpus % next_division == 0:
                divisions.append(next_division)
                next_division *= 2
        offloads = [False, True] if self.abilities.offload else [False]

        plans = []
        shards = self.gpus if self.abilities.shards else 1
        for offload in offloads:
            for division in divisions:
                tokens = math.ceil(self.context / division)
                memory = training_memory(self.shape, self.parameters, tokens, shards, offload)
                plans.append(GpuPlan(memory, self.limit, self.gpus, division, offload))
        return plans

    def what_fits(self) -> str:
        """Return the option with which training fits, such as "give --gpus 8": else what to do.

        More GPUs are tried first, then a shorter context.
        """
        can_use_more = self.abilities.context_parallel or self.abilities.shards
        if can_use_more:
            gpus = 2 * self.gpus
            while gpus <= MOST_GPUS:
                if replace(self, gpus=gpus).fits:
                    return f"give --gpus {gpus}"
                gpus *= 2

        context = self.context // 2
        while context >= 1024:
            if replace(self, context=context).fits:
                return f"give --context {context}, or another --for"
            context //= 2
        return "give GPUs with more memory"


def fit_gpus(task: TrainingTask) -> GpuPlan:
    """Return the fastest way to divide the training with which it fits into the GPUs.

    As few GPUs as possible share a sequence. If it does not fit with all GPUs sharing a sequence,
    the states between layers are kept in the memory of the host.

    Raises:
        RopeconvError: It does not fit; the message says what is needed, and how many GPUs fit.
    """
    plans_fastest_first = task.plans()
    for plan in plans_fastest_first:
        if plan.memory.total <= task.limit:
            return plan

    # the slowest plan takes the least memory
    least = plans_fastest_first[-1].memory
    raise RopeconvError(
        f"training on {task.context:,} tokens takes {least.sentence} on each GPU, and --memory"
        f" gives {size(task.limit)}; {task.what_fits()}"
    )


def logits_note(shape: ModelShape, context: int) -> str:
    """Return the reason for a chunked loss: the size of all logits, in words."""
    whole = 4 * context * shape.vocabulary
    return (
        f"the logits of {context:,} tokens take {size(whole)} in float32 at once, so the loss is"
        " computed in chunks"
    )


def tokens_note(context: int) -> str:
    """Return how many tokens the file trains on, beside what publications did."""
    billions = STEPS * SEQUENCES * context / 1e9
    return (
        f"the file trains on {billions:.2g} billion tokens ({STEPS} steps of {SEQUENCES}"
        " sequences). YaRN used 1.7 for Llama 2 at 64k (Peng et al. 2023), 0.5 to 5 were enough to"
        " retrieve at 128k (Fu et al. 2024), and up to 20 at 64k improved tasks (Gao et al. 2024)"
    )
