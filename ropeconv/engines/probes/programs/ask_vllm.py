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
    """A name in torchvision where that is not installed. Every name in it is such a one too."""

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
    """Import torchvision, also where it is not installed or its compiled part does not load.

    pip brings a torchvision for CUDA beside a torch for CPUs, and its import then ends with
    "operator torchvision::nms does not exist". The operators get names here, and no code. People
    also uninstall it for that reason. The files of vLLM's vision models import it
    (vllm/model_executor/models/qwen3_vl.py:38, 0.32.0), and use it for images only.

    Returns what has to stay alive; None where nothing was done.
    """
    try:
        importlib.import_module("torchvision")
    except ModuleNotFoundError:
        # transformers, which looks once, goes on as without it
        importlib.import_module("transformers").utils.is_torchvision_available()
        sys.meta_path.append(NoTorchvision())
    except ImportError:
        return None
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for name in VISION_OPERATORS:
            library.define(f"{name}(Tensor x) -> Tensor")
        return library
    return None


KEPT = import_torchvision()

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
else:  # a program has only this folder on its path
    import probe_protocol
    import transformers_backend

VERSION = str(vllm.__version__).partition("+")[0]
ROWS = 2**18
"""The most rows of a table of cosines: those of a million tokens and more take gigabytes."""
TOWERS = re.compile(r"vision|visual|audio|mtp")
"""Parts of the names of modules beside the language model."""
LAYER = re.compile(r"^(.*\b(?:layers|h|blocks))\.(\d+)$")
"""The name of a layer: that of its list, and its number."""
KERNELS = ("Attention", "AttentionLayer", "MLAAttention", "Indexer")
"""How the names of classes end that attend, without rotating."""
NO_CONFIG = "does not recognize this architecture"
"""Part of the message of transformers on a config that it has no class for."""
OF_CPU = (
    "not supported on CPU",  # vllm/platforms/cpu.py:150 (0.32.0)
    "Tried to instantiate dummy base class",  # an event of CUDA, in DeepSeek V4
    "topk_indices_buffer is not",  # without MLA, which CPUs do not have for DeepSeek V3.2
    "no valid sparse MLA backend",
    "module 'triton' has no attribute",
)
"""Parts of messages about kernels that the build for CPUs lacks."""
NOT_OF_CONFIG = (
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
IMAGES = {
    "do_rescale": True,
    "do_normalize": True,
    "rescale_factor": 1 / 255,
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
}
"""The preprocessor_config.json that is beside the config of every published vision model."""


def prepare() -> None:
    """Patch vLLM so that it builds models on meta, in this process, with rotary tables on the CPU.

    Each step replaces one function of vLLM for the life of this process.
    """
    # the registry inspects a class in another process, which takes ten seconds, and keeps the
    # result in the user's cache
    registry._run_in_subprocess = lambda call: call()

    make_short_tables_on_cpu()
    compute_without_kernels()
    keep_on_cpu("vllm.model_executor.layers.activation", "XIELU")  # reads numbers of its tensors

    let_latent_attention_build()
    let_towers_stay_on_meta()

    # constructors look up kernels and parts of Triton by name, and nothing here calls them
    torch.ops._C = Kernels(torch.ops._C)
    for name in ("TritonPlaceholder", "TritonLanguagePlaceholder"):
        getattr(triton, name).__getattr__ = any_part


def make_short_tables_on_cpu() -> None:
    """Patch get_rope, which gives a layer its rotary embedding, before files of models import it.

    An embedding makes a table with a row for each position of the context, by torch.arange(length).
    The tables are made on the CPU, and with at most ROWS rows: those of a context of millions take
    gigabytes.
    """
    build = rotary_embedding.get_rope
    arange = torch.arange

    def short_arange(*args: Any, **kwargs: Any) -> torch.Tensor:
        if len(args) == 1:  # only the length
            return arange(min(args[0], ROWS), **kwargs)
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


NO_LATENT = ("MLA is not supported", "Sparse Attention is not supported")
"""Parts of messages of the platform on latent attention (vllm/platforms/cpu.py:150, 0.32.0)."""


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
            if not any(words in str(refusal) for words in NO_LATENT):
                raise
            return f"{LatentBackend.__module__}.{LatentBackend.__name__}"

    platform.get_attn_backend_cls = staticmethod(get_attn_backend_cls)


def let_towers_stay_on_meta() -> None:
    """Let constructors move a module to their device, which has no data on meta to copy.

    Kimi K2.5 does that with its vision tower (vllm/model_executor/models/kimi_k25.py:359, 0.32.0).
    """
    move = torch.nn.Module.to

    def to(self: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        first = next(self.parameters(), None)
        if first is not None and first.is_meta:
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


class Kernels:
    """The namespace of vLLM's compiled operators, in which every name exists."""

    def __init__(self, compiled: Any) -> None:
        self.compiled = compiled

    def __getattr__(self, name: str) -> Any:
        return getattr(self.compiled, name, name)


def any_part(module: Any, name: str) -> Any:
    """Return something in place of a part of Triton where that is not installed."""
    if name.startswith("__"):
        raise AttributeError(name)
    return lambda *args, **kwargs: None


def let_sparse_attention_build() -> None:
    """Let the attention of Qwen4Exp project, normalise and rotate, and choose no key.

    Its constructor asks for FlashAttention, which only its kernel needs
    (vllm/models/qwen4_exp/nvidia/qsa.py:252, 0.33.0).
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


def ask(config: Answer, question: Answer) -> Answer:
    """Return the frequencies and factors that vLLM computes from a config, for every layer.

    The docstring of `probe_protocol` explains the keys of a question and of an answer.

    Args:
        config: The whole config.json.
        question: The trained length and the context, in tokens, and options of `vllm serve`.
    """
    # a class of vLLM's own, or that of transformers, which it can run too
    architectures = config.get("architectures") or [""]
    architecture = architectures[0]
    has_own = architecture in ModelRegistry.get_supported_archs()
    if not has_own and not transformers_backend.takes(architecture):
        raise probe_protocol.NoModel(why_absent(architecture))

    if architecture.startswith("Qwen4Exp"):
        let_sparse_attention_build()
    forget_tables()
    # its backend for classes of transformers sets VLLM_MLA_DISABLE, which would change the next
    # answer (vllm/model_executor/models/transformers/base.py:732, 0.33.0)
    kept_environment = unittest.mock.patch.dict(os.environ)
    with kept_environment, tempfile.TemporaryDirectory(prefix="vllm-probe-") as folder:
        Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
        if "vision_config" in config:
            images = Path(folder, "preprocessor_config.json")
            images.write_text(json.dumps(IMAGES), encoding="utf-8")

        # the window that vLLM would choose itself, where it can; the question is about `context`
        options = question.get("options") or {}
        window = None
        with suppress(Exception):
            window = int(model_config(folder, None, options).max_model_len)

        try:
            answer = read_folder(folder, question, has_own, "float32")
        except probe_protocol.Refused as refused:
            # some attentions refuse float32 (vllm/models/qwen4_exp/nvidia/qsa.py, 0.33.0)
            if not any(words in str(refused) for words in ("BF16", "dtype")):
                raise
            answer = read_folder(folder, question, has_own, "bfloat16")
        return {**answer, "window": window}


def read_folder(folder: str, question: Answer, has_own: bool, dtype: str) -> Answer:
    """Return what vLLM computes from the config in a folder, with weights of a dtype.

    Args:
        folder: The folder of config.json.
        question: The trained length, the context, and options of `vllm serve`.
        has_own: Whether vLLM has a class of its own for the model.
        dtype: float32 or bfloat16.

    Raises as `build_and_read`.
    """
    options = {**(question.get("options") or {}), "dtype": dtype}
    try:
        vllm_config = VllmConfig(model_config=model_config(folder, question["context"], options))
    except Exception as error:
        raise describe_config_error(error, has_own) from error
    return build_and_read(vllm_config, question, has_own)


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


def describe_config_error(error: Exception, has_own: bool) -> Exception:
    """Return the exception to raise for a config on which vLLM fails.

    It is Unseen where the reason is this machine or a missing file, NoModel where transformers has
    no class for the config, and Refused otherwise.

    Args:
        error: The exception that vLLM raised.
        has_own: Whether it has a class of its own for the model.
    """
    if any(words in str(error) for words in NOT_OF_CONFIG):
        return probe_protocol.Unseen(
            f"it needs more than a config: {probe_protocol.message(error)}"
        )
    if NO_CONFIG in str(error):
        missing = f"transformers {transformers.__version__} beside it has no class for the config"
        if has_own:  # the config class of MiMo is in its repository, and auto_map names it
            missing += (
                "; give it the checkpoint with the model's own code (auto_map), and start vLLM with"
                " --trust-remote-code"
            )
        return probe_protocol.NoModel(missing)
    return probe_protocol.Refused("config", error)


def build_and_read(vllm_config: VllmConfig, question: Answer, has_own: bool) -> Answer:
    """Build the model of a config, and return what it computes, in the form of an answer.

    Args:
        vllm_config: vLLM's reading of the config.
        question: The trained length and the context, in tokens.
        has_own: Whether vLLM has a class of its own for the model, and not that of transformers.

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
            raise describe_load_error(error, has_own) from error

        name = type(model).__name__
        layers = layers_of(model)
        assert layers, f"{name} has no layers"
        if name.startswith("Transformers"):  # its backend for classes of transformers
            rotation = transformers_backend.read(model, layers, question)
        else:
            rotation = read_model(layers, config, question)
        return {**rotation, "class": name}


def describe_load_error(error: Exception, has_own: bool) -> Exception:
    """Return the exception to raise where vLLM fails to build a model.

    It is Unseen where the reason is this machine or a missing file, NoModel where vLLM has no class
    for the model and cannot run that of transformers, and Refused otherwise.

    Args:
        error: The exception that vLLM raised.
        has_own: Whether it has a class of its own for the model.
    """
    if any(words in str(error) for words in OF_CPU):
        return probe_protocol.Unseen(
            f"its kernels are not in the build for CPUs: {probe_protocol.message(error)}"
        )
    if any(words in str(error) for words in NOT_OF_CONFIG):
        return describe_config_error(error, has_own)
    if not has_own:
        return probe_protocol.NoModel(
            "it has no file for it, and cannot run that of transformers:"
            f" {probe_protocol.message(error)}"
        )
    return probe_protocol.Refused("load", error)


def has_experts(config: ModelConfig) -> bool:
    """Whether a model has experts, for which vLLM wants a group of processes."""
    if hasattr(config, "is_moe"):
        return bool(config.is_moe)
    return bool(hasattr(config, "get_num_experts") and config.get_num_experts() > 0)


def start_world(experts: bool) -> None:
    """Make vLLM's groups of processes for one device, without which it builds no layer.

    They are made again for the first model with experts, for which they need one more group.
    """
    exists = parallel_state.model_parallel_is_initialized()
    has_expert_group = exists and parallel_state._EP is not None  # EP: expert parallelism
    if has_expert_group or (exists and not experts):
        return

    if exists:
        parallel_state.destroy_model_parallel()
    else:
        folder = tempfile.mkdtemp(prefix="vllm-probe-")
        meeting = f"file://{folder}/rendezvous"
        parallel_state.init_distributed_environment(1, 0, meeting, 0, "gloo")
    parallel_state.initialize_model_parallel(1, 1)


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
        match = LAYER.match(name)
        if match and not TOWERS.search(name):
            stack_name, number = match.groups()
            stacks.setdefault(stack_name, {})[int(number)] = module
    if not stacks:
        return []

    # a list with a longer name is inside of a layer, as that of experts
    outermost = min(stacks, key=len)
    stack = stacks[outermost]
    return [stack[number] for number in sorted(stack)]


def read_model(layers: list[torch.nn.Module], config: ModelConfig, question: Answer) -> Answer:
    """Return the frequencies and factors of the layers of one of vLLM's own models, as an answer.

    Args:
        layers: The layers of the language model.
        config: vLLM's reading of the config.
        question: The trained length and the context, in tokens.
    """
    rope_by_module: dict[int, Answer] = {}  # layers share rotary embeddings
    ropes: list[Answer | None] = []
    facts: Answer = {}
    mrope = bool(config.uses_mrope)
    with torch.inference_mode():
        for layer in layers:
            attention = attention_of(layer)
            if attention is None:
                ropes.append(None)
                continue

            # the factors on logits and on queries; in Llama 4 only some layers scale their queries
            on_logits = logit_scale(attention)
            if on_logits is not None:
                facts.setdefault("scaling", on_logits)
            on_queries = query_scale(attention, question["context"])
            if on_queries is not None:
                largest = facts.get("query_scale", on_queries)
                facts["query_scale"] = max(on_queries, largest)

            # the rotary embedding, as the attention calls it: with a query of 2 or 3 axes
            calls = calls_of(attention)
            if not calls:  # the layer does not rotate
                ropes.append(None)
                continue
            query_axes = calls[0]
            rotary = CalledRotary(attention.rotary_emb, query_axes, mrope)
            module = id(rotary.module)
            if module not in rope_by_module:
                rope_by_module[module] = rotary.read(question)
                facts["interleaved"] = not rotary.turns_halves  # as in all layers of a model
            ropes.append(rope_by_module[module])
    # chunked prefill, on by default, computes a long prompt in several passes
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

    Nothing is computed: the tensors are on torch's device "meta", and have only shapes. Two kinds
    of modules do not run: the rotary embedding, whose calls are noted, and the kernels, which need
    a GPU.

    Args:
        attention: A module of vLLM with a rotary embedding, such as LlamaAttention.

    Returns:
        For each call the number of axes of the query tensor: 3 for [tokens, heads, head_dim], 2
        for [tokens, heads * head_dim]. Empty for a layer that does not rotate.
    """
    calls: list[int] = []

    def record_call(positions: Any, query: Any, key: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Take the place of the rotary embedding's forward."""
        calls.append(query.dim())
        return query, key

    replacements: dict[Any, Any] = {attention.rotary_emb: record_call}
    for kernel in kernels_in(attention):
        replacements[kernel] = functools.partial(return_shape_of_kernel, kernel)
    with replaced_forwards(replacements):
        attention.forward(**attention_arguments(attention))
    return calls


def kernels_in(attention: Any) -> list[Any]:
    """Return the modules in an attention that compute its scores, on a GPU.

    They are known by the ends of their class names: vLLM's Attention and MLAAttention, for example.
    LlamaAttention ends so too, but has the rotary embedding.
    """
    kernels = []
    for module in attention.modules():
        has_name_of_kernel = type(module).__name__.endswith(KERNELS)
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
        dimensions: Those of the query in the call: 2 where heads are not apart.
        mrope: Whether vLLM's model runner gives it three sections of positions.
    """

    def __init__(self, module: Any, dimensions: int, mrope: bool) -> None:
        self.module = module
        self.dimensions = dimensions
        self.mrope = mrope
        self.size = int(module.head_size)
        self.pairs = int(module.rotary_dim) // 2

    @functools.cached_property
    def turns_halves(self) -> bool:
        """Whether it pairs a dimension with that half a head further, not with its neighbour."""
        query = torch.zeros(2, 1, self.size)
        query[..., 0] = 1.0
        return bool(self.run([1, 1], query)[0, 1] == 0)

    def read(self, question: Answer) -> Answer:
        """Return the frequencies that it rotates by, in a short and in a long prompt.

        LongRoPE, for example, has other frequencies beyond the trained length. Such an embedding
        chooses them by the last position of the prompt. So it is given two positions: the last one,
        and position 1, at which the angle of a pair is its frequency.

        Args:
            question: {"trained": 4096, "context": 131072}, say: the lengths of the short and of the
                long prompt, in tokens.
        """
        short_end = min(question["trained"], ROWS) - 1
        long_end = min(question["context"], ROWS) - 1
        try:
            short = self.tables([1, short_end])
            long = self.tables([1, long_end])
        except Exception as error:
            raise probe_protocol.Refused("forward", error) from error
        self.check(short, short_end)
        self.check(long, long_end)

        # the cosines and sines at position 1
        long_at_one, _ = long
        short_at_one, _ = short
        inv_freq, factor = probe_protocol.from_cos_sin(*long_at_one)
        short_inv_freq, short_factor = probe_protocol.from_cos_sin(*short_at_one)
        return probe_protocol.rope(inv_freq, factor, short_inv_freq, short_factor)

    def check(self, tables: list[tuple[list[float], list[float]]], end: int) -> None:
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
        """Return cosines and sines, with the attention factor, one per pair, at positions.

        A query with 1 in the first dimension of each pair and 0 in the second is turned to the
        cosine and the sine of the pair.
        """
        width = 2 * self.pairs
        if self.turns_halves:  # pair i has the dimensions i and i + pairs
            first = slice(0, self.pairs)
            second = slice(self.pairs, width)
        else:  # pair i has the dimensions 2 i and 2 i + 1
            first = slice(0, width, 2)
            second = slice(1, width, 2)

        query = torch.zeros(len(positions), 1, self.size)
        query[..., first] = 1.0
        turned = self.run(positions, query)
        return [(row[first].tolist(), row[second].tolist()) for row in turned]

    def run(self, positions: list[int], query: torch.Tensor) -> torch.Tensor:
        """Return what it makes of a query for each position."""
        places = torch.tensor(positions)
        if self.mrope:
            places = places.expand(3, -1).contiguous()
        if self.dimensions == 2:
            query = query.flatten(1)
        forward = getattr(self.module, "forward_native", None) or self.module.forward
        turned: torch.Tensor = forward(places, query.clone(), query.clone())[0]
        return turned.reshape(len(positions), -1).double()


def logit_scale(attention: Any) -> float | None:
    """Return the factor on logits that the kernel of the attention gets; None where unknown."""
    # the module inside that calls the kernel has it, or its `impl`, which is the kernel
    for module in attention.modules():
        is_kernel = type(module).__name__.endswith(KERNELS)
        if module is attention or not is_kernel:
            continue
        for holder in (module, getattr(module, "impl", None)):
            scale = getattr(holder, "scale", None)
            if isinstance(scale, float):
                return scale

    own_scale = getattr(attention, "scaling", None)
    if isinstance(own_scale, float):
        return own_scale
    return None


def query_scale(attention: Any, context: int) -> float | None:
    """Return the factor on queries at the last position; None for attentions without one."""
    positions = torch.tensor([context - 1])
    if getattr(attention, "attn_temperature_tuning", False) and getattr(attention, "nope", False):
        return float(attention._get_attn_scale(positions))
    if getattr(attention, "do_llama_4_scaling", False):
        return float(attention._get_llama_4_attn_scale(positions))
    return None


prepare()
