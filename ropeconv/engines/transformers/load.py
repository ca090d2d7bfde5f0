"""Loads checkpoints with the installed transformers, as `from_pretrained` does."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ...environment import installed, require
from ...errors import BadSource, UsageError
from ...formats.disk import human
from ...formats.files import scratch
from ...formats.jsontext import JsonObject
from ...loader import load_config, load_model, load_skeleton, make_config, read_json
from ...models.folder import ConvertedSource, FolderSource
from ...models.schema import text_config
from ...models.source import Source
from ...rope.errors import RopeconvError
from .layers import change_weights, read_by_layer
from .memory import free_bytes, gpu_bytes, release

T = TypeVar("T")

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

DTYPES = ("auto", "float32", "bfloat16", "float16")
ALLOCATOR = dict.fromkeys(
    ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"), "expandable_segments:True"
)
"""Settings of torch's allocator on GPUs, unless the user has made others: chunks of other sizes
leave no gaps.
"""


@dataclass(frozen=True)
class DeviceSpec:
    """Where models run, and in which precision.

    device: as torch names it, or "auto". dtype: "float32", "bfloat16", "float16" or "auto".
    device_map: of accelerate, to use several devices; empty for one. stands_for: the model type of
    checkpoints whose own transformers does not have. pickles: the user trusts pickled weights,
    kernels of the Hub and code of tokenizers. layer_by_layer: read the weights of each layer from
    the disk when it runs.
    """

    device: str
    dtype: str
    device_map: str = ""
    stands_for: str = ""
    pickles: bool = False
    layer_by_layer: bool = False

    def available(self, stored: str = "float32") -> DeviceSpec:
        """The same with an available device, and with a precision.

        stored: the precision of the checkpoint. The device "auto" is the first available of cuda,
        mps and cpu; the dtype "auto" is float32 on a CPU, and elsewhere `stored`. Raises UsageError
        for a device that is not available and an unknown dtype.
        """
        if not os.environ.keys() & ALLOCATOR.keys():
            os.environ.update(ALLOCATOR)
        os.environ.setdefault(
            "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
        )  # the same numbers again, which `tune` promises
        import torch

        device, dtype = self.device, self.dtype
        there = {
            "cuda": torch.cuda.is_available(),
            "mps": torch.backends.mps.is_available(),
            "cpu": True,
        }
        available = [name for name, present in there.items() if present]
        if device == "auto":
            device = available[0]
        if device.split(":")[0] not in available:
            raise UsageError(f"unknown device {device!r}; available: {', '.join(available)}")
        if dtype not in DTYPES:
            raise UsageError(f"unknown dtype {dtype!r}; choose {', '.join(DTYPES)}")
        if dtype == "auto":
            dtype = "float32" if device == "cpu" or stored not in DTYPES else stored
        return replace(self, device=device, dtype=dtype)


WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a weight by its dtype."""
SHARDED = 0.9
"""The share of the free memory of several GPUs that weights may take, since no layer is divided
between two.
"""


def weight_bytes(source: Source, dtype: str) -> int:
    """Size of the weights of a checkpoint in a precision, in bytes; 0 without safetensors."""
    return WIDTHS[dtype] * sum(math.prod(tensor.shape) for tensor in source.tensors.values())


def fits(source: Source, at: DeviceSpec) -> bool:
    """Whether the weights of a checkpoint fit into the free memory of the device; True where they
    are divided.
    """
    divided = at.layer_by_layer or bool(at.device_map)
    return divided or weight_bytes(source, at.dtype) <= free_bytes(at.device)


def placed(source: Source, at: DeviceSpec) -> DeviceSpec:
    """A place where the weights of a checkpoint fit: the device, another GPU, several GPUs, or
    layer by layer.

    Other GPUs are used for the device "cuda" only, which names none of them.
    """
    release()
    if fits(source, at):
        return at
    if at.device == "cuda":
        free = gpu_bytes()
        size = weight_bytes(source, at.dtype)
        if size <= max(free):
            return replace(at, device=f"cuda:{free.index(max(free))}")
        if size <= SHARDED * sum(free) and installed("accelerate"):
            return replace(at, device_map="auto")
    return replace(at, layer_by_layer=True)


def _check_fits(folder: Path, at: DeviceSpec) -> None:
    """Raises RopeconvError, with what to change, where a checkpoint does not fit into the memory of
    the device.
    """
    source = FolderSource(folder, follow=True)
    release()
    if not fits(source, at):
        size = human(weight_bytes(source, at.dtype))
        free = human(free_bytes(at.device))
        narrower = "--dtype bfloat16, " if at.dtype == "float32" else ""
        raise RopeconvError(
            f"the weights of {folder} take {size} as {at.dtype}, and {free} are free on"
            f" {at.device}; use {narrower}another --device, or --device-map auto for several"
            " devices"
        )


def out_of_memory(work: Callable[[], T]) -> T:
    """Runs `work` and returns its result. Raises RopeconvError, with what to change, where it runs
    out of memory.
    """
    try:
        return work()
    except (MemoryError, RuntimeError) as problem:
        words = ("out of memory", "can't allocate memory", "cannot allocate memory")
        if not isinstance(problem, MemoryError) and not any(
            word in str(problem).lower() for word in words
        ):
            raise
        raise RopeconvError(
            "the memory of this device is not enough; pass a smaller --chunk or --length, --dtype"
            " bfloat16, or --device-map auto to use several devices"
        ) from None


SMALL = 64 << 20
"""Bytes of the largest file that a tokenizer is read from."""


def load_stock(folder: Path, where: str | DeviceSpec, trust: bool = False) -> PreTrainedModel:
    """A language model as the installed transformers loads it, with its weights in the wanted
    precision.

    Models without a class that gives logits of the next token, which are encoders, are loaded
    without any head.

    folder: the checkpoint. where: device and precision, or a device for float32. trust: run the
    modelling file of the checkpoint.
    """
    import torch
    import transformers
    from transformers.utils import logging

    at = DeviceSpec(where, "float32") if isinstance(where, str) else where
    logging.disable_progress_bar()
    settings = read_json(folder / "config.json") if at.stands_for else {}
    assumed = at.stands_for and settings.get("model_type") not in transformers.CONFIG_MAPPING
    config = make_config(settings, at.stands_for) if assumed else load_config(folder, trust)
    _check_fits(folder, at)
    if at.layer_by_layer:
        model = load_skeleton(_class_for(config), folder, trust, at.pickles, config, at.dtype)
        report = read_by_layer(model, folder, at.device, getattr(torch, at.dtype))
    else:
        # dtype at loading, never a cast: .to(bfloat16) would cast inv_freq as well
        given: dict[str, object] = {"dtype": getattr(torch, at.dtype), "config": config}
        if at.device_map or (at.device != "cpu" and installed("accelerate")):
            require("accelerate", f"--device-map {at.device_map}")
            given["device_map"] = at.device_map or at.device
        model, report = load_model(_class_for(config), folder, trust, at.pickles, **given)
        if "device_map" not in given:
            model = model.to(at.device)
    if at.stands_for:
        _check_complete(report, folder, at.stands_for)
    return model.eval()


def _class_for(config: PretrainedConfig) -> type[PreTrainedModel]:
    """The class that loads a model with its logits, else one without a head; Evolla's by its
    `architectures`.
    """
    import transformers

    named = getattr(config, "auto_map", None) or {}
    with_head = tuple(
        getattr(transformers, f"AutoModelFor{task}")
        for task in ("CausalLM", "ImageTextToText", "Seq2SeqLM")
    )
    fitting = [
        auto for auto in with_head if type(config) in auto._model_mapping or auto.__name__ in named
    ]
    if not named and type(config) not in transformers.AutoModel._model_mapping:
        fitting += [
            getattr(transformers, name)
            for name in config.architectures or ()
            if hasattr(transformers, name)
        ]
    model_class: type[PreTrainedModel] = next(iter(fitting), transformers.AutoModel)
    return model_class


def _check_complete(report: JsonObject, folder: Path, stands_for: str) -> None:
    """Raises BadSource where the weights of a checkpoint are not those of the class that it was
    loaded with.
    """
    for kind, words in (
        ("missing_keys", "lacks"),
        ("unexpected_keys", "has"),
        ("mismatched_keys", "has"),
    ):
        names = sorted(map(str, report.get(kind) or ()))
        if names:
            raise BadSource(
                f"{folder} {words} {names[0]}, unlike a {stands_for} model, so it is not of the"
                " family that it was treated as; apply again with another --family"
            )


def load_widened(folder: Path, at: DeviceSpec) -> PreTrainedModel:
    """A model that computes in float32, with weights rounded to the precision of `at`. folder: the
    checkpoint.
    """
    import torch

    model = load_stock(folder, replace(at, dtype="float32"))
    narrow = getattr(torch, at.dtype)
    change_weights(model, lambda name, weight: weight.to(narrow).to(weight.dtype))
    return model


def stored_dtype(config: JsonObject) -> str:
    """The dtype that a config.json declares, "float32" where it declares none."""
    text = text_config(config)
    part = config if text is None else text
    return str(
        part.get("dtype") or part.get("torch_dtype") or config.get("torch_dtype") or "float32"
    )


@contextmanager
def folder_of(source: Source, dtype: str = "auto", weights: bool = True) -> Iterator[Path]:
    """The local folder of a checkpoint, whose files are fetched; a temporary one where some must be
    made.

    dtype: of weights that are dequantised, as torch names it; auto for that of `source`. weights:
    whether they are needed, and not only config and tokenizer. Raises BadSource for a config
    without weights, UnsupportedBake for a GGUF file that cannot be converted, RopeconvError where
    the disk is too small.
    """
    if source.kind == "config" and weights:
        raise BadSource(
            f"{source.reference} is a config.json without weights; give the folder of the model"
        )
    if dtype != "auto" and isinstance(source, ConvertedSource):
        source = source.in_dtype(dtype)
    left_out = set() if weights else set(source.weights())
    files = (file for file in source.files_to_copy()[0] if file.name not in left_out)
    names = {file.name for file in files if weights or file.size < SMALL}
    if not source.is_generated("config.json"):
        if source.kind == "hub":
            for name in names:
                source.path(name)
        yield source.path("config.json").parent
        return
    generated = {
        file.name: file.size
        for file in source.files()
        if file.name in names and source.is_generated(file.name)
    }
    with scratch() as folder:
        _refuse_small_disk(source, sum(generated.values()), folder)
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            if name in generated:
                source.copy(name, folder / name)
            else:
                (folder / name).symlink_to(source.path(name).resolve())
        yield folder


def _refuse_small_disk(source: Source, needed: int, folder: Path) -> None:
    """Raises RopeconvError where so many bytes of generated files do not fit on the disk of a
    temporary folder.
    """
    free = shutil.disk_usage(folder).free
    if needed <= free:
        return
    stored = stored_dtype(source.config())
    narrows = isinstance(source, ConvertedSource) and source.in_dtype("bfloat16").dtype != stored
    smaller = ", or give --dtype bfloat16" if narrows else ""
    raise RopeconvError(
        f"the weights of {source.reference} take {human(needed)} as {stored}, and {human(free)} are"
        f" free in {folder.parent.parent}; set TMPDIR to a larger disk{smaller}"
    )
