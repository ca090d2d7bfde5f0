"""Ask vLLM what it computes from a config.

The config goes through vLLM's ModelConfig, as in `vllm serve FOLDER --max-model-len CONTEXT`, and
the class of its registry is built on the meta device, with the tables of its rotary embeddings on a
CPU. Each attention runs once on meta, which shows whether it calls its rotary embedding; and that
runs on the positions that vLLM's model runner would give it, which shows frequencies and factor.

No weights are made, and no kernel runs: layers compute by the PyTorch code that vLLM has beside
each kernel (`forward_native`).
"""

from __future__ import annotations

import functools
import gc
import importlib
import importlib.abc
import importlib.machinery
import inspect
import json
import math
import os
import re
import sys
import tempfile
import types
import unittest.mock
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

os.environ.update(
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_PLUGINS="",
    VLLM_NO_USAGE_STATS="1",
    VLLM_LOGGING_LEVEL="ERROR",
    VLLM_ALLOW_LONG_MAX_MODEL_LEN="0",
)

import torch

VISION_OPERATORS = (
    "nms",
    "qnms",
    "qroi_align",
    "roi_align",
    "_roi_align_backward",
    "ps_roi_align",
    "_ps_roi_align_backward",
    "roi_pool",
    "_roi_pool_backward",
    "ps_roi_pool",
    "_ps_roi_pool_backward",
    "deform_conv2d",
    "_deform_conv2d_backward",
)
"""Operators whose names torchvision looks up when it is imported."""


class ImagePart(type):
    """A name in torchvision where that is not installed. Each attribute is another `ImagePart`."""

    def __getattr__(cls, name: str) -> ImagePart:
        if name.startswith("__"):
            raise AttributeError(name)
        return ImagePart(name, (), {})


class NoTorchvision(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of torchvision where it is not installed. Nothing in them can be called."""

    def find_spec(self, name: str, *args: Any) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] != "torchvision":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Leave it to Python to make the module."""

    def exec_module(self, module: types.ModuleType) -> None:
        module.__dict__["__getattr__"] = functools.partial(getattr, ImagePart("names", (), {}))


def import_torchvision() -> Any:
    """Make `import torchvision` succeed, also where torchvision is missing or broken.

    vLLM's vision models import torchvision (vllm/model_executor/models/qwen3_vl.py:38, 0.32.0), and
    use it for images only, which are never computed here.

    Returns:
        The torch library that declares missing operators; None where all exist. The operators exist
        as long as this object, so the caller must keep a reference to it.
    """
    try:
        importlib.import_module("torchvision")
        return None

    # torchvision is not installed: importing it now gives modules without content
    except ModuleNotFoundError:
        # transformers remembers the first answer of this function. So it is called before the
        # empty modules exist, while the answer is still no.
        importlib.import_module("transformers").utils.is_torchvision_available()
        sys.meta_path.append(NoTorchvision())
        return None

    # torchvision is broken in a way that vLLM reports for the models that need it
    except ImportError:
        return None

    # pip has installed a torchvision for CUDA beside a torch for CPUs. Its import ends with
    # "operator torchvision::nms does not exist", unless the operators are declared before.
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for name in VISION_OPERATORS:
            library.define(f"{name}(Tensor x) -> Tensor")
        return library


TORCHVISION_LIBRARY = import_torchvision()

import transformers
import vllm
import vllm.platforms as platforms

# no GPU is touched: it may be busy, and nothing is computed on it. Modules of vLLM keep the
# platform that there is when they are imported
if not platforms.current_platform.is_cpu():
    from vllm.platforms.cpu import CpuPlatform

    platforms._current_platform = CpuPlatform()

import vllm.distributed.parallel_state as parallel_state
import vllm.model_executor.custom_op as custom_op
import vllm.model_executor.layers.linear as linear
import vllm.model_executor.layers.rotary_embedding as rotary_embedding
import vllm.model_executor.models.registry as registry
import vllm.triton_utils.importing as triton
from vllm.config import ModelConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.model_executor.models import ModelRegistry

if TYPE_CHECKING:
    from typing import Any

    from . import probe_protocol, transformers_backend

    Answer = dict[str, Any]
    Question = dict[str, Any]
else:  # a program has only this folder on its path
    import probe_protocol
    import transformers_backend

VERSION = str(vllm.__version__).partition("+")[0]
MOST_TABLE_ROWS = 2**18
"""The most rows of a table of cosines, one for each position: a million rows take gigabytes."""
NAMES_BESIDE_LANGUAGE_MODEL = re.compile(r"vision|visual|audio|mtp")
"""Parts of the names of modules beside the language model."""
NAME_OF_LAYER = re.compile(r"^(.*\b(?:layers|h|blocks))\.(\d+)$")
"""The name of a layer: that of its list, and its number."""
KERNEL_CLASSES = ("Attention", "AttentionLayer", "MLAAttention", "Indexer")
"""How the names of classes end that attend, without rotating."""
WORDS_OF_UNKNOWN_CONFIG = "does not recognize this architecture"
"""Part of the message of transformers on a config that it has no class for."""
WORDS_OF_MISSING_KERNEL = (
    "not supported on CPU",  # vllm/platforms/cpu.py:150 (0.32.0)
    "Tried to instantiate dummy base class",  # an event of CUDA, in DeepSeek V4
    "topk_indices_buffer is not",  # without MLA, which CPUs do not have for DeepSeek V3.2
    "no valid sparse MLA backend",
    "module 'triton' has no attribute",
)
"""Parts of messages about kernels that the build for CPUs lacks."""
WORDS_OF_MACHINE_OR_FILES = (
    "failed to be inspected",  # its class cannot be imported here, as with a broken torchvision
    "Failed to load the processor",  # of images, for a class of transformers
    "image processor for",
    "for argument tokenizer",
    "HuggingFace processor",
    "'convert_tokens_to_ids'",
    "Model Runner V1",  # which is the one for CPUs
    "requires the validated ModelConfig quantization",
)
"""Parts of messages about this machine, and about files beside config.json that are not made."""
IMAGE_SETTINGS = {
    "do_rescale": True,
    "do_normalize": True,
    "rescale_factor": 1 / 255,
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
}
"""The preprocessor_config.json that is beside the config of every published vision model."""


def prepare() -> None:
    """Patch vLLM to build models without memory for weights: on torch's device "meta".

    Only the rotary tables have numbers, on the CPU. Each step replaces functions of vLLM or torch
    for the life of this process.
    """
    # vLLM's registry inspects a class in another process, which takes ten seconds, and writes the
    # result into the user's cache. Here it inspects the class in this process.
    registry._run_in_subprocess = lambda call: call()

    make_short_tables_on_cpu()
    compute_without_kernels()
    # the constructor of this activation function reads numbers of its tensors
    keep_on_cpu("vllm.model_executor.layers.activation", "XIELU")

    let_latent_attention_build()
    let_vision_towers_stay_on_meta()

    # Constructors look up compiled operators in torch.ops._C, and functions in Triton. The build
    # for CPUs lacks many of them. No operator is called here, so each missing one is replaced by a
    # placeholder.
    torch.ops._C = UncalledKernels(torch.ops._C)
    for name in ("TritonPlaceholder", "TritonLanguagePlaceholder"):
        getattr(triton, name).__getattr__ = return_uncalled_function


def make_short_tables_on_cpu() -> None:
    """Patch get_rope, which gives a layer its rotary embedding, before files of models import it.

    An embedding makes a table with a row for each position of the context, by torch.arange(length).
    A table for a million positions takes gigabytes. So tables are made on the CPU, with at most
    MOST_TABLE_ROWS rows.
    """
    build = rotary_embedding.get_rope
    arange = torch.arange

    def short_arange(*args: Any, **kwargs: Any) -> torch.Tensor:
        if len(args) == 1:  # only the length
            return arange(min(args[0], MOST_TABLE_ROWS), **kwargs)
        return arange(*args, **kwargs)

    @functools.wraps(build)
    def get_rope(*args: Any, **kwargs: Any) -> Any:
        with torch.device("cpu"), unittest.mock.patch.object(torch, "arange", short_arange):
            return build(*args, **kwargs)

    rotary_embedding.get_rope = get_rope


def compute_without_kernels() -> None:
    """Let layers compute by their PyTorch code and not by kernels, which take no meta tensors."""

    def dispatch_forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.forward_native

    def apply(
        self: Any, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        return torch.nn.functional.linear(x, layer.weight, bias)

    custom_op.CustomOp.dispatch_forward = dispatch_forward
    linear.UnquantizedLinearMethod.apply = apply


WORDS_OF_MISSING_MLA = ("MLA is not supported", "Sparse Attention is not supported")
"""Parts of the platform's messages on latent attention (vllm/platforms/cpu.py:150, 0.32.0)."""


def let_latent_attention_build() -> None:
    """Let models with latent attention (MLA) be built where the build for CPUs lacks its kernel.

    Up to 0.20 the platform refuses it (vllm/platforms/cpu.py:84, 0.20.2). Their rotary embedding is
    that of every platform, and `NoKernel` replaces the kernel.
    """
    platform = type(platforms.current_platform)
    choose = platform.get_attn_backend_cls

    def get_attn_backend_cls(*args: Any, **kwargs: Any) -> str:
        try:
            return str(choose(*args, **kwargs))
        except NotImplementedError as refusal:
            if not any(words in str(refusal) for words in WORDS_OF_MISSING_MLA):
                raise
            return f"{LatentBackend.__module__}.{LatentBackend.__name__}"

    platform.get_attn_backend_cls = staticmethod(get_attn_backend_cls)


def let_vision_towers_stay_on_meta() -> None:
    """Let constructors move a module to their device, which has no data on meta to copy.

    Kimi K2.5 does that with its vision tower (vllm/model_executor/models/kimi_k25.py:359, 0.32.0).
    """
    move = torch.nn.Module.to

    def to(self: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        parameter = next(self.parameters(), None)
        if parameter is not None and parameter.is_meta:
            return self
        return move(self, *args, **kwargs)

    torch.nn.Module.to = to


class NoKernel:
    """The kernel of an attention, which is never called. It keeps the factor on logits."""

    dcp_world_size = 1
    is_sparse = False

    def __init__(self, scale: float, **settings: Any) -> None:
        self.scale = scale

    def record_logical_topk_ready(self) -> None:
        """Do nothing, where sparse attention has chosen the tokens for its kernel."""


class LatentBackend:
    """A backend for latent attention, as far as its constructor asks for one."""

    @staticmethod
    def get_name() -> str:
        return "TRITON_MLA"

    @staticmethod
    def get_impl_cls() -> type[NoKernel]:
        return NoKernel

    @staticmethod
    def get_required_kv_cache_layout() -> None:
        """Ask for no layout of the cache, which is not made."""


class UncalledKernels:
    """The namespace of vLLM's compiled operators, in which every name exists."""

    def __init__(self, compiled: Any) -> None:
        self.compiled = compiled

    def __getattr__(self, name: str) -> Any:
        return getattr(self.compiled, name, name)


def return_uncalled_function(module: Any, name: str) -> Any:
    """Return a function in place of a name in Triton where that is not installed."""
    if name.startswith("__"):
        raise AttributeError(name)
    return lambda *args, **kwargs: None


def let_sparse_attention_build() -> None:
    """Let the sparse attention of Qwen4Exp be built, and run without its kernel.

    Its constructor asks for FlashAttention, which only its kernel needs
    (vllm/models/qwen4_exp/nvidia/qsa.py:252, 0.33.0). The kernel chooses keys and attends to them,
    after queries and keys are rotated.
    """
    with suppress(ImportError):
        importlib.import_module("vllm.models.qwen4_exp.nvidia.model")  # which imports it
        qsa: Any = importlib.import_module("vllm.models.qwen4_exp.nvidia.qsa")
        qsa.is_flash_attn_varlen_func_available = lambda: True
        qsa.Qwen4ExpQSAAttention._run_qsa = lambda self, *args: None


def keep_on_cpu(place: str, name: str) -> None:
    """Let a class make its tensors on the CPU, also inside the meta device."""
    kind = getattr(importlib.import_module(place), name, None)
    if kind is None:
        return
    original = kind.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        with torch.device("cpu"):
            original(self, *args, **kwargs)

    kind.__init__ = init


def ask(config: Answer, question: Question) -> Answer:
    """Return the RoPE frequencies and attention factors that vLLM computes from a config.

    Args:
        config: The whole config.json.
        question: {"trained": 4096, "context": 131072, "options": {"model-impl": "transformers"}},
            say: the trained length and the context in tokens, and options of `vllm serve`.

    Returns:
        The keys of an answer, which the docstring of `probe_protocol` explains, and "window": the
        longest prompt that vLLM accepts without --max-model-len; None where vLLM chooses none.
    """
    # vLLM has a class of its own for most models, and runs the class of transformers for others
    architectures = config.get("architectures") or [""]
    architecture = architectures[0]
    has_own_class = architecture in ModelRegistry.get_supported_archs()
    if not has_own_class and not transformers_backend.takes(architecture):
        raise probe_protocol.NoModel(why_absent(architecture))

    # vLLM keeps the rotary tables of the models that it built for earlier questions
    forget_tables()
    if architecture.startswith("Qwen4Exp"):
        let_sparse_attention_build()

    # vLLM's backend for classes of transformers sets VLLM_MLA_DISABLE, which would change the next
    # answer (vllm/model_executor/models/transformers/base.py:732, 0.33.0)
    restored_environment = unittest.mock.patch.dict(os.environ)
    with restored_environment, tempfile.TemporaryDirectory(prefix="vllm-probe-") as folder:
        Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
        if "vision_config" in config:
            images = Path(folder, "preprocessor_config.json")
            images.write_text(json.dumps(IMAGE_SETTINGS), encoding="utf-8")

        # vLLM chooses a length where --max-model-len is left out (None), and fails on some configs.
        # Such an error is ignored here: `read_folder` states the length, and raises any other one.
        options = question.get("options") or {}
        window = None
        with suppress(Exception):
            window = int(model_config(folder, context=None, options=options).max_model_len)

        try:
            answer = read_folder(folder, question, has_own_class, dtype="float32")
        except probe_protocol.Refused as refused:
            # some attentions refuse float32 (vllm/models/qwen4_exp/nvidia/qsa.py, 0.33.0)
            refuses_dtype = any(words in str(refused) for words in ("BF16", "dtype"))
            if not refuses_dtype:
                raise
            answer = read_folder(folder, question, has_own_class, dtype="bfloat16")
        return {**answer, "window": window}


def read_folder(folder: str, question: Question, has_own_class: bool, dtype: str) -> Answer:
    """Return the frequencies and factors that vLLM computes from the config in a folder.

    Args:
        folder: The folder of config.json.
        question: The trained length and the context in tokens, and options of `vllm serve`.
        has_own_class: Whether vLLM has a class of its own for the model.
        dtype: The dtype of the weights, "float32" or "bfloat16".

    Raises:
        probe_protocol.Unseen: This machine cannot run the model, or a file is missing.
        probe_protocol.NoModel: vLLM does not have the model.
        probe_protocol.Refused: vLLM has the model, and fails on this config.
    """
    options = {**(question.get("options") or {}), "dtype": dtype}
    try:
        vllm_config = VllmConfig(model_config=model_config(folder, question["context"], options))
    except Exception as error:
        raise exception_for_config(error, has_own_class) from error
    # this call builds the model, and can raise the same three exceptions
    return build_and_read(vllm_config, question, has_own_class)


def model_config(folder: str, context: int | None, options: Answer) -> ModelConfig:
    """Return vLLM's reading of the config in a folder.

    Args:
        folder: The folder.
        context: The value of --max-model-len; None where the option is left out.
        options: Other options of `vllm serve`, such as {"model-impl": "transformers"}.
    """
    settings = {name.replace("-", "_"): value for name, value in options.items()}
    settings |= {"skip_tokenizer_init": True, "enforce_eager": True, "max_model_len": context}
    return ModelConfig(model=folder, tokenizer=folder, **settings)


def exception_for_config(error: Exception, has_own_class: bool) -> Exception:
    """Return the exception of the probe for an error of vLLM while it reads a config.

    Args:
        error: The exception that vLLM raised.
        has_own_class: Whether vLLM has a class of its own for the model.

    Returns:
        Unseen: the reason is this machine or a missing file, such as a tokenizer.
        NoModel: transformers has no class for the config.
        Refused: all other errors, which a user would see too.
    """
    if any(words in str(error) for words in WORDS_OF_MACHINE_OR_FILES):
        return probe_protocol.Unseen(
            f"it needs more than a config: {probe_protocol.message(error)}"
        )
    if WORDS_OF_UNKNOWN_CONFIG in str(error):
        missing = f"transformers {transformers.__version__} beside it has no class for the config"
        # vLLM has a class for the model of MiMo, whose config class is in the checkpoint (auto_map)
        if has_own_class:
            missing += (
                "; give it the checkpoint with the model's own code (auto_map), and start vLLM with"
                " --trust-remote-code"
            )
        return probe_protocol.NoModel(missing)
    return probe_protocol.Refused(stage="config", error=error)


def build_and_read(vllm_config: VllmConfig, question: Question, has_own_class: bool) -> Answer:
    """Build the model of a config, and return what it computes, in the form of an answer.

    Args:
        vllm_config: vLLM's reading of the config.
        question: The trained length and the context, in tokens.
        has_own_class: Whether vLLM has a class of its own for the model.

    Raises Unseen where the reason is this machine or a missing file, NoModel where vLLM does not
    have the model, and Refused where it has the model and fails on this config.
    """
    config = vllm_config.model_config
    with set_current_vllm_config(vllm_config):
        start_world(has_experts(config))
        try:
            with torch.device("meta"):
                model = initialize_model(vllm_config=vllm_config, model_config=config)
        except Exception as error:
            raise exception_for_build(error, has_own_class) from error

        name = type(model).__name__
        layers = layers_of(model)
        assert layers, f"{name} has no layers"
        if name.startswith("Transformers"):  # its backend for classes of transformers
            rotation = transformers_backend.read(model, layers, question)
        else:
            rotation = read_model(layers, config, question)
        return {**rotation, "class": name}


def exception_for_build(error: Exception, has_own_class: bool) -> Exception:
    """Return the exception of the probe for an error of vLLM while it builds a model.

    Args:
        error: The exception that vLLM raised.
        has_own_class: Whether vLLM has a class of its own for the model.

    Returns:
        Unseen: the reason is this machine or a missing file, so nothing is known about the model.
        NoModel: vLLM has no class of its own for the model, and cannot run that of transformers.
        Refused: all other errors, which a user would see too.
    """
    if any(words in str(error) for words in WORDS_OF_MISSING_KERNEL):
        return probe_protocol.Unseen(
            f"its kernels are not in the build for CPUs: {probe_protocol.message(error)}"
        )
    if any(words in str(error) for words in WORDS_OF_MACHINE_OR_FILES):
        return probe_protocol.Unseen(
            f"it needs more than a config: {probe_protocol.message(error)}"
        )
    if not has_own_class:
        return probe_protocol.NoModel(
            "it has no file for it, and cannot run that of transformers:"
            f" {probe_protocol.message(error)}"
        )
    return probe_protocol.Refused(stage="load", error=error)


def has_experts(config: ModelConfig) -> bool:
    """Whether a model has experts, for which vLLM wants a group of processes."""
    if hasattr(config, "is_moe"):
        return bool(config.is_moe)
    return bool(hasattr(config, "get_num_experts") and config.get_num_experts() > 0)


def start_world(experts: bool) -> None:
    """Make the process groups of torch.distributed that vLLM needs to build a layer.

    Each group has only this process. The groups are made once, and made again for the first model
    with experts, which needs one more group.

    Args:
        experts: Whether the model has experts.
    """
    groups_exist = parallel_state.model_parallel_is_initialized()
    if groups_exist:
        has_expert_group = parallel_state._EP is not None  # EP: expert parallelism
        if has_expert_group or not experts:
            return
        parallel_state.destroy_model_parallel()
    else:
        # torch's processes find each other by a file, also where there is only one process
        folder = tempfile.mkdtemp(prefix="vllm-probe-")
        parallel_state.init_distributed_environment(
            world_size=1,
            rank=0,
            distributed_init_method=f"file://{folder}/rendezvous",
            local_rank=0,
            backend="gloo",
        )
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=1, pipeline_model_parallel_size=1
    )


def forget_tables() -> None:
    """Free the tables of the last model, which are as long as its context."""
    for rotary in rotary_embedding._ROPE_DICT.values():
        for name in list(rotary._buffers):
            rotary._buffers[name] = torch.empty(0)
    rotary_embedding._ROPE_DICT.clear()
    gc.collect()


def why_absent(architecture: str) -> str:
    """Return why vLLM has no model for an architecture."""
    if not architecture:
        return "config.json has no architectures"
    if hasattr(transformers, architecture):
        return (
            f"{architecture} is not in its registry, and its class in transformers cannot change"
            " its attention"
        )
    return (
        f"{architecture} is neither in its registry nor in transformers {transformers.__version__}"
    )


def layers_of(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the layers of the language model, by number."""
    # by the name of each list, such as "model.layers", its layers by number
    stacks: dict[str, dict[int, torch.nn.Module]] = {}
    for name, module in model.named_modules():
        match = NAME_OF_LAYER.match(name)
        if match and not NAMES_BESIDE_LANGUAGE_MODEL.search(name):
            stack_name, number = match.groups()
            stacks.setdefault(stack_name, {})[int(number)] = module
    if not stacks:
        return []

    # a list with a longer name is inside of a layer, as that of experts
    outermost = min(stacks, key=len)
    stack = stacks[outermost]
    return [stack[number] for number in sorted(stack)]


def read_model(layers: list[torch.nn.Module], config: ModelConfig, question: Question) -> Answer:
    """Return the RoPE frequencies and attention factors of the layers of a model class of vLLM.

    Args:
        layers: The layers of the language model.
        config: vLLM's reading of the config.
        question: {"trained": 4096, "context": 131072}, say: the two lengths in tokens.

    Returns:
        {"ropes": [{"inv_freq": [...], "attention_factor": 1.0}], "layers": [0, 0, None], ...}, say:
        each set of frequencies once, and the number of its set for each layer, None for a layer
        that does not rotate. The docstring of `probe_protocol` explains the other keys.
    """
    rope_by_module: dict[int, Answer] = {}  # by id, since layers share rotary embeddings
    ropes: list[Answer | None] = []  # one for each layer; None where the layer does not rotate
    facts: Answer = {}  # what holds for the whole model, such as {"scaling": 0.125}
    uses_mrope = bool(config.uses_mrope)
    with torch.inference_mode():
        for layer in layers:
            attention = attention_of(layer)
            if attention is None:
                ropes.append(None)
                continue

            # the factor on the logits is the same in all layers: take the first one
            logit_factor = logit_scale(attention)
            if logit_factor is not None and "scaling" not in facts:
                facts["scaling"] = logit_factor

            # Llama 4: only some layers scale their queries, so take the largest factor
            query_factor = query_scale(attention, question["context"])
            if query_factor is not None:
                largest = facts.get("query_scale", query_factor)
                facts["query_scale"] = max(query_factor, largest)

            # The number of axes of the queries in each call of the rotary embedding: 2 for [tokens,
            # heads * head_dim], 3 for [tokens, heads, head_dim]. Without a call there is no RoPE.
            axes_of_calls = calls_of(attention)
            if not axes_of_calls:
                ropes.append(None)
                continue

            rotary = CalledRotary(attention.rotary_emb, axes_of_calls[0], uses_mrope)
            module_id = id(rotary.module)
            if module_id not in rope_by_module:
                rope_by_module[module_id] = rotary.read(question)
                # whether dimensions 2 i and 2 i + 1 are a pair; it is the same in all layers
                facts["interleaved"] = not rotary.rotates_halves
            ropes.append(rope_by_module[module_id])

    # `mixed`: vLLM computes a long prompt in several passes (chunked prefill). LongRoPE chooses its
    # frequencies for each pass, so one prompt is computed with both lists.
    return probe_protocol.answer(ropes, mixed=True, **facts)


def attention_of(layer: torch.nn.Module) -> Any:
    """Return the outermost module of a layer that has a rotary embedding; None without one."""
    outermost = None
    fewest_dots = 0
    for name, module in layer.named_modules():
        if getattr(module, "rotary_emb", None) is None:
            continue
        dots = name.count(".")  # a module inside another one has a longer name: self_attn.attn
        if outermost is None or dots < fewest_dots:
            outermost = module
            fewest_dots = dots
    return outermost


def calls_of(attention: Any) -> list[int]:
    """Run an attention once on two tokens, and return how it calls its rotary embedding.

    Nothing is computed: the tensors are on torch's device "meta", and have only shapes. Other
    functions run in place of two kinds of modules: one notes each call of the rotary embedding, and
    the others stand for the kernels of attention, which need a GPU.

    Args:
        attention: A module of vLLM with a rotary embedding, such as LlamaAttention.

    Returns:
        For each call the number of axes of the query tensor: 3 for [tokens, heads, head_dim], 2
        for [tokens, heads * head_dim]. Empty for a layer that does not rotate.
    """
    axes_of_calls: list[int] = []

    def record_call(positions: Any, query: Any, key: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Take the place of the rotary embedding's forward: note the call, and rotate nothing."""
        axes_of_calls.append(query.dim())
        return query, key

    replacements: dict[Any, Any] = {attention.rotary_emb: record_call}
    for kernel in kernels_in(attention):
        replacements[kernel] = functools.partial(return_shape_of_kernel, kernel)
    with replaced_forwards(replacements):
        attention.forward(**attention_arguments(attention))
    return axes_of_calls


def kernels_in(attention: Any) -> list[Any]:
    """Return the modules in an attention that compute its scores, on a GPU.

    They are found by the ends of their class names, such as vLLM's Attention and MLAAttention. The
    name LlamaAttention ends in the same way, but that module has the rotary embedding.
    """
    kernels = []
    for module in attention.modules():
        has_name_of_kernel = type(module).__name__.endswith(KERNEL_CLASSES)
        rotates = hasattr(module, "rotary_emb")
        if has_name_of_kernel and not rotates:
            kernels.append(module)
    return kernels


def return_shape_of_kernel(
    kernel: Any, query: Any, *args: Any, output_shape: Any = None, **kwargs: Any
) -> Any:
    """Take the place of a kernel's forward: return a tensor of the shape of its result.

    Args:
        kernel: The module.
        query: The queries, [tokens, heads * head_size].
        args: Keys and values, which do not matter for the shape.
        output_shape: The shape, where the caller names it.
        kwargs: Further arguments of kernels.
    """
    if output_shape is not None:
        return query.new_empty(output_shape)
    width = getattr(kernel, "head_size", 0)
    value_width = getattr(kernel, "head_size_v", width)
    if value_width == width:
        return query
    # in MiMo V2 the heads of values have another width than those of queries
    *outer_sizes, query_size = query.shape
    heads = query_size // width
    return query.new_empty(*outer_sizes, heads * value_width)


@contextmanager
def replaced_forwards(replacements: dict[Any, Any]) -> Iterator[None]:
    """Replace the `forward` of some modules by other functions inside this block.

    Args:
        replacements: The function for each module.
    """
    # a module may have a `forward` of its own, which goes before that of its class
    own_forwards = {module: module.__dict__.get("forward") for module in replacements}
    try:
        for module, replacement in replacements.items():
            module.forward = replacement
        yield
    finally:
        for module, own_forward in own_forwards.items():
            module.__dict__.pop("forward", None)
            if own_forward is not None:
                module.__dict__["forward"] = own_forward


def attention_arguments(attention: Any) -> dict[str, Any]:
    """Return arguments for the `forward` of an attention: two tokens, as tensors on meta.

    The attentions of vLLM differ in their parameters. A parameter that is not known here is left to
    its default, and is None without one.
    """
    states = torch.empty(2, hidden_size(attention), device="meta")
    known = {
        "positions": torch.zeros(2, dtype=torch.long, device="meta"),
        "hidden_states": states,
        "output": torch.empty_like(states),
    }
    arguments = {}
    for name, parameter in inspect.signature(attention.forward).parameters.items():
        has_default = parameter.default is not parameter.empty
        is_further_keywords = parameter.kind is parameter.VAR_KEYWORD  # **kwargs
        if name in known:
            arguments[name] = known[name]
        elif not has_default and not is_further_keywords:
            arguments[name] = None
    return arguments


def hidden_size(attention: Any) -> int:
    """Return the width of the states that an attention takes."""
    for name in ("hidden_size", "embed_dim", "hidden_dim"):
        if isinstance(getattr(attention, name, None), int):
            return int(getattr(attention, name))
    for module in attention.modules():
        if hasattr(module, "input_size"):
            return int(module.input_size)
    raise AssertionError(f"unknown width of {type(attention).__name__}")


class CalledRotary:
    """A rotary embedding, and how its attention calls it.

    Args:
        module: The embedding.
        query_axes: The axes of the query in the call: 2 for [tokens, heads * head_dim], 3 for
            [tokens, heads, head_dim].
        uses_mrope: Whether vLLM's model runner gives it three rows of positions (M-RoPE).
    """

    def __init__(self, module: Any, query_axes: int, uses_mrope: bool) -> None:
        self.module = module
        self.query_axes = query_axes
        self.uses_mrope = uses_mrope
        self.head_size = int(module.head_size)
        self.pairs = int(module.rotary_dim) // 2

    @functools.cached_property
    def rotates_halves(self) -> bool:
        """Whether dimensions i and i + pairs are rotated together, and not 2 i and 2 i + 1."""
        # of a query with 1 in dimension 0 only, dimension 1 stays 0 unless both are a pair
        query = torch.zeros(2, 1, self.head_size)
        query[..., 0] = 1.0
        rotated = self.rotate([1, 1], query)
        return bool(rotated[0, 1] == 0)

    def read(self, question: Question) -> Answer:
        """Return the RoPE frequencies of the embedding in a short and in a long prompt.

        Each prompt is run with two positions only. At position 1 the angle of a pair is its
        frequency. The last position decides which frequencies LongRoPE uses.

        Args:
            question: {"trained": 4096, "context": 131072}, say: the lengths of the short and of the
                long prompt, in tokens.

        Returns:
            {"inv_freq": [...], "attention_factor": 1.0} for the long prompt, with other keys where
            the short prompt gets other values, as `probe_protocol.rope` returns it.
        """
        # tables have at most MOST_TABLE_ROWS positions, so a longer prompt ends there
        short_end = min(question["trained"], MOST_TABLE_ROWS) - 1
        long_end = min(question["context"], MOST_TABLE_ROWS) - 1
        try:
            short_tables = self.tables([1, short_end])
            long_tables = self.tables([1, long_end])
        except Exception as error:
            raise probe_protocol.Refused(stage="forward", error=error) from error
        # the angles at the last position must be multiples of those at position 1
        self.check_last_position(short_tables, short_end)
        self.check_last_position(long_tables, long_end)

        # each table begins with the cosines and sines of position 1
        cosines, sines = long_tables[0]
        short_cosines, short_sines = short_tables[0]
        inv_freq, factor = probe_protocol.from_cos_sin(cosines, sines)
        short_inv_freq, short_factor = probe_protocol.from_cos_sin(short_cosines, short_sines)
        return probe_protocol.rope(inv_freq, factor, short_inv_freq, short_factor)

    def check_last_position(self, tables: list[tuple[list[float], list[float]]], end: int) -> None:
        """Check that the last position is rotated by the same frequencies as position 1.

        Raises AssertionError otherwise.

        Args:
            tables: The cosines and sines of position 1, and those of the last position.
            end: The last position.
        """
        at_one, at_end = tables
        inv_freq, factor = probe_protocol.from_cos_sin(*at_one)
        cosines, sines = at_end
        name = type(self.module).__name__
        for pair, frequency in enumerate(inv_freq):
            angle = frequency * end
            tolerance = 2e-3 + 4e-7 * angle  # float32 has seven digits of the angle
            cos_error = abs(cosines[pair] - factor * math.cos(angle))
            sin_error = abs(sines[pair] - factor * math.sin(angle))
            fits = cos_error <= tolerance and sin_error <= tolerance
            assert fits, f"{name} turns position {end} by other frequencies than 1"

    def tables(self, positions: list[int]) -> list[tuple[list[float], list[float]]]:
        """Return the cosines and sines by which the embedding rotates a head at some positions.

        A query whose pairs of dimensions are all (1, 0) is rotated: each pair becomes (cosine,
        sine), times the attention factor.

        Args:
            positions: The positions of a prompt, such as [1, 4095].

        Returns:
            For each position a list of cosines and a list of sines, with one value per pair.
        """
        rotary_width = 2 * self.pairs  # the first dimensions of a head; the others do not rotate
        if self.rotates_halves:  # pair i has the dimensions i and i + pairs
            first_dimensions = slice(0, self.pairs)
            second_dimensions = slice(self.pairs, rotary_width)
        else:  # pair i has the dimensions 2 i and 2 i + 1
            first_dimensions = slice(0, rotary_width, 2)
            second_dimensions = slice(1, rotary_width, 2)

        query = torch.zeros(len(positions), 1, self.head_size)
        query[..., first_dimensions] = 1.0
        tables = []
        rotated_query = self.rotate(positions, query)  # [positions, head_size]
        for rotated_head in rotated_query:
            cosines = rotated_head[first_dimensions].tolist()
            sines = rotated_head[second_dimensions].tolist()
            tables.append((cosines, sines))
        return tables

    def rotate(self, positions: list[int], query: torch.Tensor) -> torch.Tensor:
        """Rotate a query with the embedding, and return the rotated query.

        Args:
            positions: The position of each token.
            query: A query with one head for each token, [positions, 1, head_size].

        Returns:
            float64 [positions, head_size].
        """
        position_ids = torch.tensor(positions)
        if self.uses_mrope:  # time, height and width of an image, which are equal for text
            position_ids = position_ids.expand(3, -1).contiguous()
        if self.query_axes == 2:  # this embedding takes queries as [tokens, heads * head_dim]
            query = query.flatten(1)

        # forward_native is the PyTorch code beside a kernel; a few embeddings have no such method
        forward = getattr(self.module, "forward_native", None) or self.module.forward
        key = query.clone()
        rotated_query: torch.Tensor = forward(position_ids, query.clone(), key)[0]
        return rotated_query.reshape(len(positions), -1).double()


def logit_scale(attention: Any) -> float | None:
    """Return the factor on the logits of an attention, such as 1 / sqrt(head_dim).

    None where it is unknown.

    Args:
        attention: A module of vLLM, such as LlamaAttention.
    """
    # vLLM's module Attention is inside it. That, or the kernel in its `impl`, has the factor.
    for module in attention.modules():
        has_name_of_kernel = type(module).__name__.endswith(KERNEL_CLASSES)
        if module is attention or not has_name_of_kernel:
            continue
        for holder in (module, getattr(module, "impl", None)):
            scale = getattr(holder, "scale", None)
            if isinstance(scale, float):
                return scale

    # else the attention has it
    own_scale = getattr(attention, "scaling", None)
    if isinstance(own_scale, float):
        return own_scale
    return None


def query_scale(attention: Any, context: int) -> float | None:
    """Return the factor on queries at the last position; None for attentions without one."""
    positions = torch.tensor([context - 1])
    # Llama 4 scales the queries of layers without RoPE
    has_tuning = getattr(attention, "attn_temperature_tuning", False)
    if has_tuning and getattr(attention, "nope", False):
        return float(attention._get_attn_scale(positions))
    if getattr(attention, "do_llama_4_scaling", False):
        return float(attention._get_llama_4_attn_scale(positions))
    return None


prepare()
