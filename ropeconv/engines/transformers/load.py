"""Load checkpoints with the installed transformers, as `from_pretrained` does.

`load_stock` loads one, and `folder_of` gives the folder of any source.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...environment import installed, require
from ...errors import BadSource, UsageError
from ...formats.disk import human
from ...formats.files import scratch
from ...formats.jsontext import JsonObject
from ...inspection.contradictions import fewer_heads_of_keys
from ...loader import load_config, load_model, load_skeleton, make_config, read_json
from ...models.config import reads_both_directions
from ...models.folder import ConvertedSource, FolderSource
from ...models.registry import by_model_type
from ...models.schema import text_config
from ...models.source import Source
from ...rope.errors import RopeconvError
from .layers import change_weights, read_by_layer
from .memory import free_bytes, gpu_bytes, release

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

DTYPES = ("auto", "float32", "bfloat16", "float16")
ALLOCATOR_SETTINGS = dict.fromkeys(
    ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"), "expandable_segments:True"
)
"""Settings of torch's allocator on GPUs, with which chunks of other sizes leave no gaps.

They are used unless the user has made others.
"""


@dataclass(frozen=True)
class DeviceSpec:
    """Where models run, and in which precision."""

    device: str
    """The device as torch names it, or "auto"."""

    dtype: str
    """The precision: float32, bfloat16, float16 or auto."""

    device_map: str = ""
    """The device map of accelerate, to use several devices; empty for one."""

    loaded_as: str = ""
    """The model type of checkpoints whose own transformers does not have."""

    pickles: bool = False
    """Whether the user trusts pickled weights, kernels of the Hub and code of tokenizers."""

    layer_by_layer: bool = False
    """Whether to read the weights of each layer from the disk when it runs."""

    def resolve(self, stored: str = "float32") -> DeviceSpec:
        """Return the same with an available device and a known precision.

        The device "auto" is the first available of cuda, mps and cpu; the dtype "auto" is float32
        on a CPU, and elsewhere `stored`.

        Args:
            stored: The precision of the checkpoint.

        Raises:
            UsageError: The device is not available, or the dtype is unknown.
        """
        # torch reads these variables when it first uses a GPU
        if not os.environ.keys() & ALLOCATOR_SETTINGS.keys():
            os.environ.update(ALLOCATOR_SETTINGS)
        # cuBLAS gives the same numbers again only with this, and `tune` promises that
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        import torch

        available = []
        if torch.cuda.is_available():
            available.append("cuda")
        if torch.backends.mps.is_available():
            available.append("mps")
        available.append("cpu")
        device = self.device
        if device == "auto":
            device = available[0]
        kind, _, _ = device.partition(":")  # "cuda" of "cuda:1"
        if kind not in available:
            raise UsageError(f"unknown device {device!r}; available: {', '.join(available)}")

        dtype = self.dtype
        if dtype not in DTYPES:
            raise UsageError(f"unknown dtype {dtype!r}; choose {', '.join(DTYPES)}")
        if dtype == "auto":
            dtype = "float32"
            if device != "cpu" and stored in DTYPES:
                dtype = stored
        return replace(self, device=device, dtype=dtype)


BYTES_PER_WEIGHT = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a weight by its dtype."""
USABLE_SHARE_OF_GPUS = 0.9
"""The share of the memory of several GPUs that weights may take, since no layer is divided."""


def weight_bytes(source: Source, dtype: str) -> int:
    """Return the size of the weights of a checkpoint in a precision, in bytes.

    It is 0 without safetensors.
    """
    return BYTES_PER_WEIGHT[dtype] * sum(
        math.prod(tensor.shape) for tensor in source.tensors.values()
    )


def fits(source: Source, at: DeviceSpec) -> bool:
    """Return whether the weights of a checkpoint fit into the free memory of the device.

    Weights that are divided, or read layer by layer, count as fitting.
    """
    if at.layer_by_layer or at.device_map:
        return True
    return weight_bytes(source, at.dtype) <= free_bytes(at.device)


def choose_place(source: Source, at: DeviceSpec) -> DeviceSpec:
    """Return a place where the weights of a checkpoint fit.

    The place is the device, another GPU, several GPUs, or layer by layer. Other GPUs are used for
    the device "cuda" only, which names none of them.

    Args:
        source: The checkpoint.
        at: The device and precision that the user wants.
    """
    # memory that torch keeps from models before this one counts as free
    release()

    # from fast to slow: another GPU costs nothing, and layer by layer every pass reads the disk
    if fits(source, at):
        return at
    if at.device == "cuda":
        size = weight_bytes(source, at.dtype)
        free_by_gpu = gpu_bytes()
        most_free = max(free_by_gpu)
        if size <= most_free:
            return replace(at, device=f"cuda:{free_by_gpu.index(most_free)}")
        # not all of their memory: no layer is divided between two GPUs, so some of each stays free
        if size <= USABLE_SHARE_OF_GPUS * sum(free_by_gpu) and installed("accelerate"):
            return replace(at, device_map="auto")
    return replace(at, layer_by_layer=True)


def _check_fits(folder: Path, at: DeviceSpec) -> None:
    """Refuse a checkpoint that does not fit into the memory of the device."""
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


def lacks_memory(problem: Exception) -> bool:
    """Whether an error says that the memory of a device is not enough."""
    # torch raises a RuntimeError, also for the memory of the CPU
    message = str(problem).lower()
    words = ("out of memory", "can't allocate memory", "cannot allocate memory")
    return isinstance(problem, MemoryError) or any(word in message for word in words)


@contextmanager
def advice_on_memory() -> Iterator[None]:
    """Turn an error that memory is full, of the block under it, into one that says what to change.

    Raises:
        RopeconvError: The block ran out of memory.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as problem:
        if not lacks_memory(problem):
            raise
        raise RopeconvError(
            "the memory of this device is not enough; pass a smaller --chunk or --length, --dtype"
            " bfloat16, or --device-map auto to use several devices"
        ) from None


LARGEST_TOKENIZER_FILE = 64 << 20
"""Bytes of the largest file that a tokenizer is read from."""


def load_stock(folder: Path, where: str | DeviceSpec, trust: bool = False) -> PreTrainedModel:
    """Return a language model as the installed transformers loads it.

    Models without a class that gives logits of the next token, which are encoders, are loaded
    without any head.

    Args:
        folder: The checkpoint.
        where: Device and precision, or a device for float32.
        trust: Whether to run the modelling file of the checkpoint.
    """
    import torch
    from transformers.utils import logging

    if isinstance(where, str):
        at = DeviceSpec(where, "float32")
    else:
        at = where
    logging.disable_progress_bar()

    # `loaded_as` is a model type such as "llama", for a checkpoint whose own model type
    # transformers does not have; "" for every other one
    config = read_config(folder, at.loaded_as, trust)
    _refuse_mla_with_shared_keys(config)  # its classes would fail in the first forward pass
    _check_fits(folder, at)
    model_class = class_for(config)
    dtype = getattr(torch, at.dtype)

    trusts_pickles = at.pickles
    if at.layer_by_layer:
        # each layer reads its weights from the disk when it runs
        model = load_skeleton(model_class, folder, trust, trusts_pickles, config, at.dtype)
        loading_report = read_by_layer(model, folder, at.device, dtype)
    else:
        # dtype at loading, never a cast: .to(bfloat16) would cast inv_freq as well
        options: dict[str, object] = {"dtype": dtype, "config": config}
        # accelerate loads onto one or more GPUs; without it, the model is loaded on the CPU and
        # moved to one GPU
        can_load_onto_gpu = at.device != "cpu" and installed("accelerate")
        if at.device_map or can_load_onto_gpu:
            require("accelerate", f"--device-map {at.device_map}")
            options["device_map"] = at.device_map or at.device
        model, loading_report = load_model(model_class, folder, trust, trusts_pickles, **options)
        if "device_map" not in options:
            model = model.to(at.device)

        # without a GPU, transformers 5 dequantises FP8 to bfloat16, whatever dtype was asked for
        # (quantizers/quantizer_finegrained_fp8.py)
        is_quantised = getattr(config, "quantization_config", None)
        if is_quantised and dtype == torch.float32:
            _widen_to_float32(model)

    if at.loaded_as:
        _check_complete(loading_report, folder, at.loaded_as)
    return model.eval()


def _widen_to_float32(model: PreTrainedModel) -> None:
    """Convert the weights of a model from bfloat16 or float16 to float32, in place."""
    import torch

    for parameter in model.parameters():
        if parameter.dtype in (torch.bfloat16, torch.float16):
            parameter.data = parameter.data.to(torch.float32)


def read_config(folder: Path, loaded_as: str, trust: bool) -> PretrainedConfig:
    """Return the config of a checkpoint as transformers reads it.

    Args:
        folder: The checkpoint.
        loaded_as: A model type such as "llama". Where transformers does not have the model type
            of the config, it reads the config as one of this type. Empty to replace no type.
        trust: Whether to run the configuration file of the checkpoint.
    """
    from transformers import CONFIG_MAPPING

    if loaded_as:
        settings = read_json(folder / "config.json")
        if settings.get("model_type") not in CONFIG_MAPPING:
            return make_config(settings, loaded_as)
    return load_config(folder, trust)


def _refuse_mla_with_shared_keys(config: PretrainedConfig) -> None:
    """Raise BadSource for an MLA model that has fewer heads of keys than of queries.

    With MLA every head has keys of its own. The classes of transformers would repeat them, and fail
    in the first attention.
    """
    text = config.get_text_config()
    is_class_of_transformers = type(text).__module__.startswith("transformers.models.")
    if not is_class_of_transformers:  # code of the checkpoint may do otherwise
        return
    has_mla = getattr(text, "kv_lora_rank", None) is not None
    if not has_mla:
        return

    heads = getattr(text, "num_attention_heads", None)
    heads_of_keys = getattr(text, "num_key_value_heads", None)
    if not heads or not heads_of_keys:
        return
    message = fewer_heads_of_keys(heads, heads_of_keys)
    if message:
        raise BadSource(message)


def class_for(config: PretrainedConfig) -> type[PreTrainedModel]:
    """Return the class of transformers with which to load a model, such as AutoModelForCausalLM.

    A model without a head for logits is loaded by AutoModel.

    Args:
        config: The config, as transformers reads it.
    """
    import transformers

    # EmbeddingGemma: an embedding model without a head, and without a causal mask. Its config is a
    # Gemma3TextConfig, which AutoModelForCausalLM would accept.
    is_accepted = type(config) in transformers.AutoModelForCausalLM._model_mapping
    if is_accepted and is_bidirectional(config):
        return transformers.AutoModel  # type: ignore[no-any-return]

    # The classes of models with logits. A checkpoint with its own code names its classes in
    # auto_map: {"AutoModelForCausalLM": "modeling_x.XForCausalLM"}.
    auto_map = getattr(config, "auto_map", None) or {}
    for task in ("CausalLM", "ImageTextToText", "Seq2SeqLM"):
        auto: type[PreTrainedModel] = getattr(transformers, f"AutoModelFor{task}")
        if type(config) in auto._model_mapping or auto.__name__ in auto_map:
            return auto

    # Evolla: a few classes of transformers belong to no auto class, and config.json names them
    has_auto_class = type(config) in transformers.AutoModel._model_mapping
    if not auto_map and not has_auto_class:
        for name in config.architectures or ():
            if hasattr(transformers, name):
                model_class: type[PreTrainedModel] = getattr(transformers, name)
                return model_class
    return transformers.AutoModel  # type: ignore[no-any-return]


def is_bidirectional(config: PretrainedConfig) -> bool:
    """Return whether a config switches the causal mask of a decoder off."""
    text = config.get_text_config()
    family = by_model_type().get(text.model_type)
    if family is None:
        return getattr(text, "is_causal", True) is False
    whole = config.to_dict()
    part = whole if text is config else text.to_dict()
    return reads_both_directions(whole, part, family)


def _check_complete(report: JsonObject, folder: Path, loaded_as: str) -> None:
    """Refuse weights that are not those of the class that they were loaded with."""
    verbs = {"missing_keys": "lacks", "unexpected_keys": "has", "mismatched_keys": "has"}
    for kind, verb in verbs.items():
        names = sorted(map(str, report.get(kind) or ()))
        if names:
            raise BadSource(
                f"{folder} {verb} {names[0]}, unlike a {loaded_as} model, so it is not of the"
                " family that it was treated as; apply again with another --family"
            )


def load_widened(folder: Path, at: DeviceSpec) -> PreTrainedModel:
    """Return a model that computes in float32, with weights rounded to the precision of `at`."""
    import torch

    model = load_stock(folder, replace(at, dtype="float32"))
    narrow = getattr(torch, at.dtype)
    change_weights(model, lambda name, weight: weight.to(narrow).to(weight.dtype))
    return model


def stored_dtype(config: JsonObject) -> str:
    """Return the dtype that a config.json declares, "float32" where it declares none."""
    text = text_config(config)
    part = config if text is None else text
    dtype = part.get("dtype") or part.get("torch_dtype") or config.get("torch_dtype")
    return str(dtype or "float32")


@contextmanager
def folder_of(source: Source, dtype: str = "auto", weights: bool = True) -> Iterator[Path]:
    """Yield a local folder with the files of a checkpoint, from which transformers can load it.

    - For a folder it is that itself.
    - For a model on the Hub it is the folder of the Hub's cache, into which files are downloaded.
    - For a model in another format, such as GGUF, it is a temporary folder with the conversion,
      which is removed at the end of the block.

    Args:
        source: The checkpoint.
        dtype: The dtype of weights that are dequantised, as torch names it; auto for that of
            `source`.
        weights: Whether they are needed, and not only config and tokenizer.

    Raises:
        BadSource: The source is a config without weights.
        UnsupportedBake: It is a GGUF file that cannot be converted.
        RopeconvError: The disk is too small.
    """
    if source.kind == "config" and weights:
        raise BadSource(
            f"{source.reference} is a config.json without weights; give the folder of the model"
        )
    if dtype != "auto" and isinstance(source, ConvertedSource):
        source = source.in_dtype(dtype)

    # the names of the files that are needed
    copied, _ = source.files_to_copy()
    if weights:
        names = {file.name for file in copied}
    else:
        weight_files = set(source.weights())
        small_files = {file.name for file in copied if file.size < LARGEST_TOKENIZER_FILE}
        names = small_files - weight_files

    # a source in another format has a config.json only in memory, which a conversion makes
    is_converted = source.is_generated("config.json")
    if is_converted:
        with scratch() as folder:
            _write_conversion(source, names, folder)
            yield folder
        return

    # a folder on this disk, or in the Hub's cache after its files are downloaded
    if source.kind == "hub":
        for name in names:
            source.path(name)  # downloads it
    yield source.path("config.json").parent


def _write_conversion(source: Source, names: Collection[str], folder: Path) -> None:
    """Write files of a checkpoint into a folder: those of a conversion, and links to the others.

    The conversion of a GGUF file makes config.json and the weights (generated). A chat template
    beside the file is not made, and a link to it is enough.

    Raises:
        RopeconvError: The disk is too small.
    """
    size_by_generated = {}
    for file in source.files():
        if file.name in names and source.is_generated(file.name):
            size_by_generated[file.name] = file.size
    _refuse_small_disk(source, sum(size_by_generated.values()), folder)

    for name in names:
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if name in size_by_generated:
            source.copy(name, place)
        else:
            place.symlink_to(source.path(name).resolve())


def _refuse_small_disk(source: Source, needed: int, folder: Path) -> None:
    """Refuse to make so many bytes in a temporary folder on a disk that is too small."""
    free = shutil.disk_usage(folder).free
    if needed <= free:
        return
    stored = stored_dtype(source.config())
    smaller = ""
    if isinstance(source, ConvertedSource) and source.in_dtype("bfloat16").dtype != stored:
        smaller = ", or give --dtype bfloat16"
    raise RopeconvError(
        f"the weights of {source.reference} take {human(needed)} as {stored}, and {human(free)} are"
        f" free in {folder.parent.parent}; set TMPDIR to a larger disk{smaller}"
    )
