"""What stands in for the compiled parts of vLLM, for `vllm_program.py`.

Nothing that computes frequencies is replaced; tables of cosines are made no longer than `ROWS`.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import sys
import tempfile
import types
import unittest.mock
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

VARIABLES = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_PLUGINS": "",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "0",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
}
STUBBED = ("cv2", "xgrammar", "numba", "model_hosting_container_standards")
"""Modules that vLLM imports on its way to the models, and that do not take part in building one."""
TORCHVISION = (
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


ACTIVATIONS = (
    "silu_and_mul",
    "gelu_and_mul",
    "gelu_tanh_and_mul",
    "gelu_quick",
    "gelu_new",
    "gelu_fast",
    "mul_and_silu",
    "fatrelu_and_mul",
    "relu_squared",
    "relu2_no_mul",
    "silu_and_mul_with_clamp",
    "situ_and_mul",
    "swigluoai_and_mul",
)
"""Kernels that constructors look up; nothing calls them here."""
IMAGES = {
    "do_rescale": True,
    "do_normalize": True,
    "rescale_factor": 1 / 255,
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
}
"""The file that every published vision model has beside its config; some versions read it to build
the model.
"""
LIBRARIES: list[Any] = []
ROWS = 2**18
"""The most rows of a table of cosines: those of a million tokens and more take gigabytes."""


class Anything(types.ModuleType):
    """A module that has every name; what one gets from it can be called, subclassed and asked for
    more.
    """

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda self, *args, **kwargs: None})


class Missing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of STUBBED, unless they are installed: it is the last finder that is
    asked.
    """

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[0] not in STUBBED:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return Anything(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def prepare() -> None:
    """Makes `import vllm` work without its compiled modules. To be called before anything of vLLM
    is imported.
    """
    os.environ.update(VARIABLES)
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for name in TORCHVISION:
        library.define(f"{name}(Tensor x) -> Tensor")
    kernels = torch.library.Library("_C", "FRAGMENT")
    for name in ACTIVATIONS:
        kernels.define(f"{name}(Tensor x) -> Tensor")
    LIBRARIES.extend([library, kernels])
    _platform()
    sys.meta_path.append(Missing())


def _platform() -> None:
    """Runs on a CPU, also where a version would look for its own package to be a build for CPUs."""
    import vllm.platforms as platforms
    from vllm.platforms.cpu import CpuPlatform

    update = CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        """As it is, but that some versions ask for a kernel (ipex), or take a text part for a whole
        model.
        """
        with contextlib.suppress(RuntimeError, IndexError):
            update(cls, vllm_config)
        vllm_config.cache_config.block_size = vllm_config.cache_config.block_size or 16

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)
    platforms._current_platform = CpuPlatform()
    import vllm.triton_utils.importing as importing

    for name in ("TritonPlaceholder", "TritonLanguagePlaceholder"):
        getattr(importing, name).__getattr__ = _triton_name


def _triton_name(module: Any, name: str) -> Any:
    """A name of Triton, which kernels look up at import."""
    if name.startswith("__"):
        raise AttributeError(name)
    return lambda *args, **kwargs: None


def offline() -> None:
    """Nothing of a model is on the Hub; asking for it would take two seconds per model."""
    import vllm.config
    import vllm.transformers_utils.config as config

    for module in (config, vllm.config, getattr(vllm.config, "model", None)):
        if hasattr(module, "try_get_safetensors_metadata"):
            module.try_get_safetensors_metadata = lambda *args, **kwargs: None


def in_process() -> None:
    """vLLM inspects model classes in a process of its own, which would have no stand-ins: here it
    is this one.
    """
    import vllm.model_executor.models.registry as registry

    registry._run_in_subprocess = lambda call: call()
    for name in ("_load_modelinfo_from_cache", "_save_modelinfo_to_cache"):
        if hasattr(registry._LazyRegisteredModel, name):
            setattr(registry._LazyRegisteredModel, name, lambda self, *args: None)


def ropes_on_cpu() -> dict[Any, Any]:
    """Lets rotary embeddings compute their tables on the CPU, while everything else of a model is
    built on `meta`.

    To be called before the files of models are imported. Returns vLLM's cache of rotary embeddings,
    to be emptied between models: the tables are as long as the context.
    """
    import torch
    import vllm.model_executor.layers.rotary_embedding as package

    build, arange = package.get_rope, torch.arange

    def short_arange(*args: Any, **kwargs: Any) -> torch.Tensor:
        return arange(min(args[0], ROWS), **kwargs) if len(args) == 1 else arange(*args, **kwargs)

    def get_rope(*args: Any, **kwargs: Any) -> Any:
        with torch.device("cpu"), unittest.mock.patch.object(torch, "arange", short_arange):
            return build(*args, **kwargs)

    package.get_rope = get_rope
    return package._ROPE_DICT


def scalars_on_cpu() -> None:
    """An activation of Apertus reads numbers from tensors that it makes: on `meta` they would have
    none.
    """
    import torch
    import vllm.model_executor.layers.activation as activation

    if not hasattr(activation, "XIELU"):
        return
    make = activation.XIELU.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        with torch.device("cpu"):
            make(self, *args, **kwargs)

    activation.XIELU.__init__ = init


def plain_operations() -> None:
    """Layers compute with torch, whatever kernel the platform would take: vLLM's own second way of
    every layer.
    """
    import torch
    import vllm.model_executor.custom_op as custom_op

    if not hasattr(
        torch._C._cpu, "_is_avx512_supported"
    ):  # 0.17 asks for it, under the name in its own torch
        torch._C._cpu._is_avx512_supported = lambda: False  # type: ignore[attr-defined]
    import vllm.model_executor.layers.linear as linear

    custom_op.CustomOp.dispatch_forward = lambda self, *args, **kwargs: self.forward_native

    def apply(
        self: Any, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        return torch.nn.functional.linear(x, layer.weight, bias)

    linear.UnquantizedLinearMethod.apply = apply


def plain_attention() -> None:
    """A kernel of attention that takes every setting, for the versions whose kernels for CPUs do
    not.
    """
    from vllm import __version__
    from vllm.platforms import current_platform

    choose = current_platform.get_attn_backend_cls
    backend = f"{__name__}.Backend"
    always = tuple(map(int, __version__.split(".")[:2])) < (0, 20)

    def get_attn_backend_cls(cls: Any, *args: Any, **kwargs: Any) -> str:
        try:
            return backend if always else str(choose(*args, **kwargs))
        except NotImplementedError:
            return backend

    type(current_platform).get_attn_backend_cls = classmethod(get_attn_backend_cls)


def sparse_attention() -> None:
    """The attention of Qwen4Exp, up to its kernel: it projects, normalises and rotates, and no key
    is chosen.

    To be called after `ropes_on_cpu`. It says that FlashAttention is there, which only its kernel
    needs (vllm/models/qwen4_exp/nvidia/qsa.py:252, 0.33.0).
    """
    try:
        importlib.import_module("vllm.models.qwen4_exp.nvidia.model")
    except ModuleNotFoundError:  # before 0.33
        return
    qsa = importlib.import_module("vllm.models.qwen4_exp.nvidia.qsa")
    qsa.is_flash_attn_varlen_func_available = lambda: True
    qsa.Qwen4ExpQSAAttention._run_qsa = lambda self, *args: None


class Implementation:
    """What `Backend` computes with: nothing."""

    def __init__(
        self, num_heads: int, head_size: int, scale: float, *args: Any, **kwargs: Any
    ) -> None:
        self.num_heads = num_heads
        self.head_size = head_size
        self.scale = scale
        self.num_kv_heads = args[0] if args else kwargs.get("num_kv_heads")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return False


class Silent(type):
    """The type of a class whose every other method returns None."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None


class Backend(metaclass=Silent):
    """A backend of attention without a kernel; it goes by the name of one that vLLM knows."""

    accept_output_buffer = True
    supports_quant_query_input = False
    supported_kv_cache_dtypes = ["auto"]

    @staticmethod
    def get_name() -> str:
        return "TORCH_SDPA"

    @staticmethod
    def get_impl_cls() -> type:
        return Implementation

    @classmethod
    def full_cls_name(cls) -> tuple[str, str]:
        return cls.__module__, cls.__qualname__

    @staticmethod
    def get_builder_cls() -> type:
        """What some versions derive a class from, for Llama 4's chunks."""
        for place in ("vllm.v1.attention.backend", "vllm.v1.attention.backends.utils"):
            with contextlib.suppress(ImportError, AttributeError):
                return cast(type, importlib.import_module(place).AttentionMetadataBuilder)
        return type("Builder", (), {})

    @classmethod
    def is_mla(cls) -> bool:
        return False

    @classmethod
    def supports_sink(cls) -> bool:
        return True


def one_process(experts: bool) -> None:
    """The groups of a run on one device, made once, and again for the first model with experts.

    Needs a current config of vLLM, which makes the group of experts for such models only.
    """
    import vllm.distributed.parallel_state as state

    if state.model_parallel_is_initialized() and (not experts or state._EP is not None):
        return
    if not state.model_parallel_is_initialized():
        folder = tempfile.mkdtemp(prefix="vllm-lab-")
        state.init_distributed_environment(1, 0, f"file://{folder}/rendezvous", 0, "gloo")
    else:
        state.destroy_model_parallel()
    state.initialize_model_parallel(1, 1)


@contextlib.contextmanager
def folder_of(config: dict[str, Any]) -> Iterator[str]:
    """A folder with a config.json, of its own: vLLM and transformers keep what they read by
    path.
    """
    with tempfile.TemporaryDirectory(prefix="vllm-lab-") as folder:
        Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
        if "vision_config" in config:
            Path(folder, "preprocessor_config.json").write_text(
                json.dumps(IMAGES), encoding="utf-8"
            )
        yield folder
