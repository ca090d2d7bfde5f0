"""Stands in for what SGLang imports and a CPU does not have: compiled kernels, triton, CUDA and
servers' packages.

Nothing here takes part in rotary embeddings: names of a stubbed package are empty classes, which
serve as functions, decorators, base classes and annotations, so that SGLang's own Python files can
be imported unchanged. CUDA is declared present, because that is the branch of SGLang's code that
users run (with fp32 cos/sin caches, among other things).
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

STUBBED = (
    "sgl_kernel",
    "triton",
    "flashinfer",
    "deep_gemm",
    "deep_ep",
    "flash_attn",
    "flash_mla",
    "vllm",
    "cuda",
    "cutlass",
    "tvm_ffi",
    "tilelang",
    "torchao",
    "setproctitle",
    "uvloop",
    "uvicorn",
    "fastapi",
    "starlette",
    "aiohttp",
    "xgrammar",
    "llguidance",
    "outlines",
    "openai",
    "openai_harmony",
    "modelscope",
    "IPython",
    "decord",
    "soundfile",
    "torchvision",
    "torchaudio",
    "av",
    "timm",
    "torch_memory_saver",
    "prometheus_client",
    "mistral_common",
    "blobfile",
    "datasets",
    "easydict",
    "gguf",
    "scipy",
    "numba",
    "quack",
    "pynvml",
    "blake3",
    "multipart",
    "watchfiles",
    "anthropic",
    "nvidia",
    "distro",
    "sglang_router",
    "smg_grpc_servicer",
    "grpc",
    "nvtx",
    "humming",
    "sgl_deep_gemm",
    "fla",
    "causal_conv1d",
    "mamba_ssm",
    "tml_renderers",
    "librosa",
    "mooncake",
    "loguru",
)


class StubType(type):
    """The type of stubs: their attributes, items and results are stubs again."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        stub = make_stub(name)
        setattr(cls, name, stub)
        return stub

    def __call__(cls, *arguments: Any, **keywords: Any) -> Any:
        if "stub" not in cls.__dict__:
            return super().__call__(*arguments, **keywords)
        if (
            len(arguments) == 1
            and not keywords
            and callable(arguments[0])
            and not isinstance(arguments[0], StubType)
        ):
            return arguments[0]
        return make_stub(cls.__name__)

    def __get_pydantic_core_schema__(cls, *_: Any) -> Any:
        return {"type": "any"}

    def __getitem__(cls, key: Any) -> Any:
        return cls

    def __or__(cls, other: Any) -> Any:
        return Any

    __ror__ = __or__

    def __iter__(cls) -> Any:
        return iter(())

    def __bool__(cls) -> bool:
        return "stub" not in cls.__dict__

    def __int__(cls) -> int:
        return 0

    def __mul__(cls, other: Any) -> Any:
        return cls

    __add__ = __sub__ = __floordiv__ = __truediv__ = __rmul__ = __radd__ = __mul__

    def __enter__(cls) -> Any:
        return cls

    def __exit__(cls, *error: object) -> None:
        return None


def make_stub(name: str) -> StubType:
    return StubType(
        name, (), {"stub": True, "__init_subclass__": classmethod(lambda cls, **_: None)}
    )


class StubModule(ModuleType):
    """A package whose every name is a stub."""

    __version__ = "99.0.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        stub = make_stub(name)
        setattr(self, name, stub)
        return stub


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the packages of STUBBED, before any that is installed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> Any:
        if name.partition(".")[0] not in STUBBED:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return StubModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        return None


def install() -> None:
    """Put the stubs in place, and declare a GPU.

    transformers must be imported before, and sees neither.
    """
    import torch

    sys.meta_path.insert(0, Finder())
    driver = importlib.import_module("triton.runtime").driver
    driver.active.get_current_target = lambda: SimpleNamespace(
        backend="cuda", arch=90, warp_size=32
    )
    torch._C._cuda_getCurrentRawStream = lambda *_: 0  # type: ignore[attr-defined]
    torch.library.register_fake = lambda *_, **__: lambda f: f  # type: ignore[assignment] # of kernels that are stubs
    torch.cuda.is_available = lambda: True  # type: ignore[method-assign]
    torch.version.cuda = "13.0"
    torch.cuda.get_device_capability = lambda *_: (9, 0)  # type: ignore[method-assign]
    torch.cuda.get_device_name = lambda *_: "NVIDIA H100"  # type: ignore[method-assign]
    torch.cuda.Stream = torch.cuda.Event = SimpleNamespace  # type: ignore[misc, assignment]
    torch.cuda.device_count = lambda: 1  # type: ignore[method-assign]
    torch.cuda.current_device = lambda: 0  # type: ignore[method-assign]
    torch.compile = lambda *arguments, **_: arguments[0] if arguments else (lambda f: f)  # type: ignore[assignment]
