"""The memory of training at a long context, and the settings with which it fits some GPUs.

`fit_gpus` is the function to read first. It counts what training a LoRA adapter keeps on each GPU,
with one sequence at a time and gradient checkpointing: the weights and those that are gathered from
other GPUs, the adapter with its gradients and optimizer, the states between layers, one layer with
its gradients, the attention scores where they are kept, and the logits.
"""

import math
from dataclasses import dataclass, replace

import msgspec

from ropeconv.errors import UsageError
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
FREE_TENTHS = 1
"""Tenths of the memory of a GPU that stay free, since the formulas are within 20 % for a layer."""
EXPERT_FAMILIES = frozenset(("mixtral", "qwen3_moe"))
"""Families whose layers all have experts, none of them shared, as three-dimensional parameters.

PEFT's "all-linear" finds no linear layer in such experts (modeling_mixtral.py and
modeling_qwen3_moe.py of transformers 5.23), so the adapter is that of attention.
"""
MOST_GPUS = 1024
"""GPUs for which a file is written at most."""
BYTES_PER_SCORE = 14
"""Bytes of an attention score in the backward pass of eager attention.

Gemma 2 keeps the capped scores in bfloat16 and the softmax in float32 and bfloat16
(eager_attention_forward in modeling_gemma2.py of transformers 5.23). With their gradients, 14 bytes
exist at once: measured with torch 2.13 on a CPU.
"""
BYTES_PER_SCORE_WITH_SINKS = 8
"""The same for classes with learned sinks, whose softmax is in bfloat16 (modeling_gpt_oss.py)."""
BYTES_PER_MASKED_PAIR = 3
"""Bytes of a pair of tokens in the mask of a window for scaled_dot_product_attention.

transformers makes a mask of booleans (masking_utils.py), which torch copies to bfloat16
(convert_boolean_attn_mask in aten/src/ATen/native/transformers/attention.cpp).
"""


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

    gathered: int = 0
    """The weights of other GPUs that are on this one while a layer is computed."""

    scores: int = 0
    """The attention scores of a layer and their masks; 0 where the attention keeps none."""

    @property
    def total(self) -> int:
        """All of it, with what CUDA takes."""
        weights = self.weights + self.gathered + self.adapter
        activations = self.states + self.layer + self.scores + self.logits
        return weights + activations + RESERVED_BYTES

    @property
    def sentence(self) -> str:
        """The parts in words."""
        parts = (
            ("weights", self.weights),
            ("gathered weights", self.gathered),
            ("adapter", self.adapter),
            ("states between layers", self.states),
            ("one layer", self.layer),
            ("attention scores and masks", self.scores),
            ("logits", self.logits),
        )
        words = [f"{name} {size(number)}" for name, number in parts if number]
        return f"{size(self.total)} ({', '.join(words)})"


def is_counted(shape: ModelShape) -> bool:
    """Return whether the formulas here hold for the layers of a model.

    They do not for latent attention (MLA), state-space layers, and most mixtures of experts.

    Args:
        shape: The sizes of the model, such as its hidden size and its layers.
    """
    if shape.latent or shape.states:
        return False
    if not shape.experts:
        return True
    all_layers_have_experts = shape.mlp == 0
    return shape.family in EXPERT_FAMILIES and all_layers_have_experts


def parameter_count(shape: ModelShape, tied: bool) -> int:
    """Return the parameters of a model; 0 where its shape does not say all.

    Norms and biases are left out, below 0.1 %.

    Args:
        shape: The sizes of the model, such as its hidden size and its layers.
        tied: Whether embedding and head are one matrix.
    """
    if not is_counted(shape) or bool(shape.experts) != bool(shape.all_experts):
        return 0

    tables = 1 if tied else 2  # the embedding, and the head
    count = tables * shape.vocabulary * shape.hidden
    matrices = 2 if shape.mlp_kind == "plain" else 3  # up and down, and mostly a gate
    mlp = matrices * shape.hidden * shape.mlp
    router = shape.hidden * shape.all_experts
    mlp += shape.all_experts * 3 * shape.hidden * shape.expert_width + router
    for group in shape.layers:
        # q_proj and o_proj have the same size, k_proj and v_proj that of their heads
        attention = shape.hidden * (2 * shape.queries + group.keys + group.values)
        count += group.count * (attention + mlp)
    return count


def adapter_parameters(shape: ModelShape, shards: int = 1) -> int:
    """Return the parameters of a LoRA adapter of rank RANK on all linear layers, on one GPU.

    A linear layer with m inputs and n outputs gets a matrix A of RANK rows with m numbers, and a
    matrix B of n rows with RANK numbers. FSDP divides the rows of each matrix (dimension 0, in
    torch/distributed/fsdp/_fully_shard/_fsdp_param.py), so more than RANK GPUs do not divide A any
    further. Experts have no adapter (EXPERT_FAMILIES).

    Args:
        shape: The sizes of the model, such as its hidden size and its layers.
        shards: The number of GPUs that share the adapter.
    """
    # inputs and outputs of the MLP: up and down, or three matrices with a gate
    hidden = shape.hidden
    widening = 1 if shape.mlp_kind == "plain" else 2
    mlp_inputs = widening * hidden + shape.mlp
    mlp_outputs = widening * shape.mlp + hidden
    if shape.experts:
        mlp_inputs = 0
        mlp_outputs = 0

    parameters = 0
    rows_of_a = math.ceil(RANK / shards)
    for group in shape.layers:
        # q_proj, k_proj and v_proj read the hidden states, and o_proj writes them
        inputs = 3 * hidden + shape.queries + mlp_inputs
        outputs = shape.queries + group.keys + group.values + hidden + mlp_outputs
        rows_of_b = math.ceil(outputs / shards)
        parameters += group.count * (rows_of_a * inputs + rows_of_b * RANK)
    return parameters


def layer_bytes(shape: ModelShape, tokens: int) -> int:
    """Return the bytes of one layer that is computed again, and of the gradients in it.

    Flash attention keeps no scores. In bfloat16, the layer keeps the input and output of both norms
    and of their residuals, queries before and after the rotation, keys and values, the output of
    attention, and the MLP: gate, up, the activation, and their product. The norms compute in
    float32. The gradients of the MLP, the widest ones, exist at a time. Each chosen expert has a
    copy of its input, and an output before and after its weight (grouped_mm_experts_forward in
    integrations/moe.py of transformers 5.23).
    """
    width = max(shape.mlp, shape.experts * shape.expert_width)
    saved = 4 * shape.hidden + 3 * shape.queries + 2 * shape.keys + shape.values + 4 * width
    norms = 2 * 2 * shape.hidden  # float32 numbers are two of bfloat16
    gradients = 2 * width + shape.hidden
    copies = 3 * shape.experts * shape.hidden
    return 2 * tokens * (saved + norms + gradients + copies)


def score_bytes(shape: ModelShape, tokens: int, flash: bool) -> int:
    """Return the bytes of the attention scores of one layer, and of the masks of all layers.

    Args:
        shape: The sizes of the model, such as its hidden size and its layers.
        tokens: The tokens of a sequence.
        flash: Whether the file of the trainer asks for flash attention, where the model has it.
    """
    pairs = tokens * tokens
    if shape.eager:
        bytes_per_score = BYTES_PER_SCORE_WITH_SINKS if shape.sinks else BYTES_PER_SCORE
        kinds_of_mask = len({group.window is None for group in shape.layers})
        masks = 2 * kinds_of_mask * pairs  # in bfloat16, for layers with and without a window
        return bytes_per_score * shape.heads * pairs + masks
    is_cut = shape.window is not None and shape.window < tokens
    if is_cut and not flash:
        return BYTES_PER_MASKED_PAIR * pairs
    return 0


def gathered_bytes(shape: ModelShape, parameters: int, tied: bool, live: int) -> int:
    """Return the bytes of weights that a GPU gathers from the others, in bfloat16.

    FSDP 2 wraps each layer (`_no_split_modules` of its class). The embedding and the head are in
    units that stay gathered: in the root (accelerate before 1.15), or the head in a unit with
    `reshard_after_forward=False` (fsdp2_prepare_model in accelerate/utils/fsdp_utils.py). While a
    layer is computed, the next one is gathered already: forward, the buffer of a layer is freed
    after the next one is copied out, and backward, the previous layer is fetched ahead
    (wait_for_unshard and _backward_prefetch in torch/distributed/fsdp/_fully_shard/
    _fsdp_param_group.py, torch 2.13). The units are gathered in `param_dtype`, bfloat16. The
    adapter of two layers is left out, below 10 MB.

    Args:
        shape: The sizes of the model, such as its hidden size and its layers.
        parameters: The number of parameters of the model.
        tied: Whether embedding and head are one matrix.
        live: The parameters that DeepSpeed keeps gathered; 0 for FSDP.
    """
    table = shape.vocabulary * shape.hidden
    tables = table if tied else 2 * table
    number_of_layers = sum(group.count for group in shape.layers) + shape.states
    layer = math.ceil(max(0, parameters - tables) / number_of_layers)
    gathered = tables + 2 * layer
    if live:
        # a module that is larger than the limit is gathered as a whole
        gathered = max(live, table, layer)
    return 2 * gathered


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
    *,
    tied: bool = False,
    flash: bool = True,
    live: int = 0,
) -> TrainingMemory:
    """Return the bytes that training a LoRA adapter keeps on one GPU, part by part.

    Args:
        shape: The sizes of the model, such as its hidden size and its layers.
        parameters: The number of parameters of the model.
        tokens: The number of tokens of a sequence on this GPU.
        shards: The number of GPUs that share the weights.
        offload: Whether the inputs of layers are kept in the memory of the host.
        chunked: Whether the logits and the loss are computed for a part of the tokens at a time.
        tied: Whether embedding and head are one matrix.
        flash: Whether the file of the trainer asks for flash attention, where the model has it.
        live: The parameters that DeepSpeed keeps gathered; 0 for FSDP.
    """
    # The input of each layer is kept for the backward pass. With `offload` only two inputs are on
    # the GPU: one on its way to the host, and one on its way back.
    attention_layers = sum(group.count for group in shape.layers)
    state_space_layers = shape.states  # Mamba layers, say
    kept_inputs = attention_layers + state_space_layers
    if offload:
        kept_inputs = 2
    bytes_per_number = 2  # bfloat16
    gathered = gathered_bytes(shape, parameters, tied, live) if shards > 1 else 0
    return TrainingMemory(
        weights=math.ceil(bytes_per_number * parameters / shards),
        gathered=gathered,
        adapter=BYTES_PER_TRAINED_PARAMETER * adapter_parameters(shape, shards),
        states=kept_inputs * tokens * shape.hidden * bytes_per_number,
        layer=layer_bytes(shape, tokens),  # while one layer is computed
        scores=score_bytes(shape, tokens, flash),
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

    flash: bool = False
    """Whether its file asks for flash attention, where the model has it."""

    divides_windows: bool = False
    """Whether it divides a sequence over GPUs for models with attention windows too."""

    experts: bool = False
    """Whether its adapter has no part in experts, which transformers computes."""

    live_parameters: int = 0
    """Parameters that DeepSpeed keeps gathered on each GPU; 0 for FSDP."""


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
    def usable(self) -> int:
        """The bytes of one GPU that the training may take, so that a tenth stays free."""
        return usable_bytes(self.limit)

    @property
    def fits(self) -> bool:
        """Whether the training fits with a tenth of the memory free."""
        return self.memory.total <= self.usable

    @property
    def sequences(self) -> int:
        """Sequences of a step: SEQUENCES, or fewer where the GPUs do not divide them."""
        return self.accumulation * self.gpus // self.context_parallel

    @property
    def sentence(self) -> str:
        """The memory in words, for the file of a trainer."""
        gpus = "the GPU" if self.gpus == 1 else f"each of {self.gpus} GPUs"
        return (
            f"about {size(self.memory.total)} of the {size(self.limit)} of {gpus}; at least a tenth"
            " stays free"
        )

    @property
    def accumulation(self) -> int:
        """Sequences that one GPU reads before a step, for SEQUENCES in all."""
        return accumulation(self.gpus, self.context_parallel)


def usable_bytes(limit: int) -> int:
    """Return the bytes of a GPU that training may take; a tenth stays free.

    Args:
        limit: The memory of the GPU in bytes.
    """
    return limit * (10 - FREE_TENTHS) // 10


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

    tied: bool = False
    """Whether embedding and head are one matrix."""

    @property
    def fits(self) -> bool:
        """Whether some settings fit."""
        return any(plan.fits for plan in self.plans())

    @property
    def divides_sequences(self) -> bool:
        """Whether the trainer divides a sequence of this model over GPUs."""
        # Eager attention cannot: Axolotl's schema asks for flash attention, and the Trainer of
        # transformers 5.23 for SDPA (_prepare_context_parallel_inputs). For TRL, accelerate 1.15
        # refuses layers with a window (_attach_context_parallel_hooks in big_modeling.py).
        if not self.abilities.context_parallel or self.shape.eager:
            return False
        return self.shape.window is None or self.abilities.divides_windows

    def plans(self) -> list[GpuPlan]:
        """Return all ways to divide the training over the GPUs, the fastest first.

        A sequence may be divided over several GPUs (context parallelism), and the states between
        layers may be kept in the memory of the host (offload), which is slower. A group of
        GPUs reads a sequence, so there are at most as many groups as a step has sequences.
        """
        # over how many GPUs one sequence may be divided: 1, 2, 4, ...
        divisions = []
        division = 1
        while self.gpus % division == 0:
            if self.gpus // division <= SEQUENCES:
                divisions.append(division)
            if not self.divides_sequences:
                break
            division *= 2
        offloads = [False, True] if self.abilities.offload else [False]

        plans = []
        shards = self.gpus if self.abilities.shards else 1
        for offload in offloads:
            for division in divisions:
                memory = training_memory(
                    self.shape,
                    self.parameters,
                    math.ceil(self.context / division),
                    shards,
                    offload,
                    tied=self.tied,
                    flash=self.abilities.flash,
                    live=self.abilities.live_parameters,
                )
                plans.append(GpuPlan(memory, self.limit, self.gpus, division, offload))
        return plans

    def why_too_many_gpus(self) -> str:
        """Return why the training cannot be divided over so many GPUs; empty where it can."""
        if not self.divides_sequences and self.gpus > SEQUENCES:
            return (
                f"--gpus {self.gpus}: a step has {SEQUENCES} sequences, and each is trained on one"
                f" GPU; give --gpus {SEQUENCES} or fewer"
            )
        if self.gpus > MOST_GPUS:
            return (
                f"--gpus {self.gpus}: a step has {SEQUENCES} sequences, and a file is for at most"
                f" {MOST_GPUS // SEQUENCES} GPUs for each of them; give --gpus {MOST_GPUS} or fewer"
            )
        if not self.plans():
            power_of_two = 1 << (self.gpus.bit_length() - 1)
            return (
                f"--gpus {self.gpus}: a step has {SEQUENCES} sequences, each of which 1, 2, 4 or"
                f" more GPUs share; {self.gpus} GPUs cannot be divided so; give --gpus"
                f" {power_of_two}"
            )
        return ""

    def what_fits(self) -> str:
        """Return the option with which training fits, such as "give --gpus 8": else what to do.

        More GPUs are tried first, then a shorter context.
        """
        can_use_more = self.divides_sequences or self.abilities.shards
        if can_use_more:
            gpus = 2 * self.gpus
            while gpus <= MOST_GPUS:
                if replace(self, gpus=gpus).fits:
                    return f"give --gpus {gpus}"
                gpus *= 2

        # every trainer computes the scores of these models
        or_another_trainer = "" if self.shape.eager else ", or another --for"
        context = self.context // 2
        while context >= 1024:
            if replace(self, context=context).fits:
                return f"give --context {context}{or_another_trainer}"
            context //= 2
        return "give GPUs with more memory"


def fit_gpus(task: TrainingTask) -> GpuPlan:
    """Return the fastest way to divide the training with which it fits into the GPUs.

    As few GPUs as possible share a sequence. If it does not fit with all GPUs sharing a sequence,
    the states between layers are kept in the memory of the host.

    A tenth of the memory stays free.

    Raises:
        UsageError: There are more GPUs than the training can be divided over.
        RopeconvError: It does not fit; the message says what is needed, and how many GPUs fit.
    """
    problem = task.why_too_many_gpus()
    if problem:
        raise UsageError(problem)
    plans_fastest_first = task.plans()
    for plan in plans_fastest_first:
        if plan.fits:
            return plan

    # the slowest plan takes the least memory
    least = plans_fastest_first[-1].memory
    with_a_tenth_free = math.ceil(least.total * 10 / (10 - FREE_TENTHS))
    raise RopeconvError(
        f"training on {task.context:,} tokens takes {least.sentence} on each GPU, so that"
        f" {size(with_a_tenth_free)} are needed for a tenth to stay free, and --memory gives"
        f" {size(task.limit)}; {task.what_fits()}"
    )


def logits_note(shape: ModelShape, context: int) -> str:
    """Return the reason for a chunked loss: the size of all logits, in words."""
    whole = 4 * context * shape.vocabulary
    return (
        f"the logits of {context:,} tokens take {size(whole)} in float32 at once, so the loss is"
        " computed in chunks"
    )


def tokens_note(context: int, sequences: int = SEQUENCES) -> str:
    """Return how many tokens the file trains on, beside what publications did.

    Args:
        context: The length of the sequences in tokens.
        sequences: The sequences of a step.
    """
    billions = STEPS * sequences * context / 1e9
    return (
        f"the file trains on {billions:.2g} billion tokens ({STEPS} steps of {sequences}"
        " sequences). YaRN used 1.7 for Llama 2 at 64k (Peng et al. 2023), 0.5 to 5 were enough to"
        " retrieve at 128k (Fu et al. 2024), and up to 20 at 64k improved tasks (Gao et al. 2024)"
    )
