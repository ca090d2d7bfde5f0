"""Models whose decoder layers are read from the disk when they run.

They make checkpoints run that are larger than the memory.
The model is built on torch's meta device. Only the weights outside its layers (embeddings, norms,
head, rotary tables) are loaded at once. Hooks read the weights of each layer before its forward
pass and drop them after it: a pass computes what the whole model would, and reads the checkpoint
once.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...environment import installed
from ...errors import BadSource
from ...formats.disk import human
from ...formats.jsontext import JsonObject
from ...formats.safetensors import Header
from ...models.folder import FolderSource
from ...rope.errors import RopeconvError
from .memory import free_bytes

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.nn import Module
    from transformers import PreTrainedModel

CHANGES = "_ropeconv_changes"
"""Attribute of a model that is read layer by layer: the changes of weights of every layer."""
Change = Callable[[str, "Tensor"], "Tensor"]
"""From the name of a weight and its value to the value that the model computes with."""
WITHOUT_THREADS = "HF_DEACTIVATE_ASYNC_LOAD"
"""Variable with which transformers starts no threads to load weights, which would take memory."""
COPIES_DURING_CONVERSION = 2
"""Copies of a layer that exist while its tensors are converted."""
OUTSIDE_LAYERS = ""
"""Stands for the name of a layer, where weights belong to none: embeddings, norms and the head."""


def read_by_layer(
    model: PreTrainedModel, folder: Path, device: str, dtype: torch.dtype
) -> JsonObject:
    """Make a model read its decoder layers when they run, and load everything else.

    Args:
        model: A model of transformers without weights, on the meta device.
        folder: The checkpoint, with safetensors.
        device: Where it runs, as torch names it.
        dtype: The precision in which it computes.

    Returns:
        The names of missing and unexpected weights outside the layers, as `from_pretrained` returns
        them.

    Raises:
        RopeconvError: The model cannot run layer by layer, or a layer is larger than the memory.
    """
    if not loads_in_parts():
        raise RopeconvError(
            "running a model layer by layer needs transformers 5; pip install -U transformers"
        )
    return _LayerReader(model, folder, device, dtype).attach()


def loads_in_parts() -> bool:
    """Return whether the installed transformers can load some tensors of a model: from 5.0 on."""
    return installed("transformers.core_model_loading")


def change_weights(model: PreTrainedModel, change: Change) -> None:
    """Change the weights of a model; those of layers that are read are changed each time."""
    for name, weight in model.named_parameters():
        if not weight.is_meta:
            weight.data = change(name, weight.data)
    vars(model).setdefault(CHANGES, []).append(change)


class PartialLoader:
    """Loads some tensors into a model of transformers, with the conversions of its class.

    Args:
        model: The model, on the meta device.
        device: Where it runs, as torch names it.
        dtype: The precision in which it computes.
    """

    def __init__(self, model: PreTrainedModel, device: str, dtype: torch.dtype) -> None:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.modeling_utils import LoadStateDictConfig

        self._model = model
        self.config = LoadStateDictConfig(
            device_map={"": device},
            dtype=dtype,
            dtype_plan=model._get_dtype_plan(dtype),
            weight_mapping=get_model_conversion_mapping(model),
        )

    def parameters_of(self, tensors: Iterable[str]) -> dict[str, str]:
        """Return the parameter of the model that each tensor of a checkpoint belongs to.

        The names differ where transformers converts while it loads. In a mixture of experts,
        model.layers.0.mlp.experts.7.up_proj.weight belongs to
        model.layers.0.mlp.experts.gate_up_proj, say.
        """
        from transformers.core_model_loading import (
            WeightConverter,
            WeightRenaming,
            rename_source_key,
        )

        mapping = self.config.weight_mapping
        renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
        converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
        known = self._model.state_dict()
        prefix = self._model.base_model_prefix
        parameters = {}
        for name in tensors:
            parameters[name], _ = rename_source_key(name, renamings, converters, prefix, known)
        return parameters

    def load(self, tensors: Mapping[str, Tensor]) -> Any:
        """Load tensors by their names in the checkpoint, and return the report of transformers."""
        from transformers.core_model_loading import convert_and_load_state_dict_in_model

        setting = os.environ.get(WITHOUT_THREADS)
        os.environ[WITHOUT_THREADS] = "1"
        try:
            return convert_and_load_state_dict_in_model(self._model, tensors, self.config)[0]
        finally:
            os.environ.pop(WITHOUT_THREADS)
            if setting is not None:
                os.environ[WITHOUT_THREADS] = setting


def read_tensor(path: Path, header: Header, name: str, rows: int | None = None) -> Tensor:
    """Return a tensor of a safetensors file, read from its bytes.

    Args:
        path: The file.
        header: Its header.
        name: The name of the tensor.
        rows: How many of its first rows; None for all.

    Raises:
        BadSource: The file has changed.
    """
    import torch
    from safetensors.torch import _TYPES

    # the bytes of the tensor, or of its first rows, which come first
    entry = header.tensors[name]
    shape = list(entry.shape)
    size = entry.stop - entry.start
    if rows is not None and rows < shape[0]:
        bytes_per_row = size // shape[0]
        size = bytes_per_row * rows
        shape[0] = rows

    content = torch.empty(size, dtype=torch.uint8)
    with path.open("rb") as opened:
        opened.seek(header.data_start + entry.start)
        if opened.readinto(memoryview(content.numpy())) != len(content):
            raise BadSource(f"{path} has changed while it was read; run the same command again")
    return content.view(_TYPES[entry.dtype]).reshape(shape)


class _LayerReader:
    """Reads the layers of a model from its checkpoint. Parameters are those of `read_by_layer`."""

    def __init__(
        self, model: PreTrainedModel, folder: Path, device: str, dtype: torch.dtype
    ) -> None:
        self._model = model
        self._source = FolderSource(folder, follow=True)
        self._files: dict[str, str] = {}
        for file, header in self._source.headers.items():
            self._files |= dict.fromkeys(header.tensors, file)
        self._loader = PartialLoader(model, device, dtype)
        self._layers = dict(outermost_lists(model))
        self._weights = self._tensors_by_layer()
        self._check_model(device)

    def attach(self) -> JsonObject:
        """Load the weights outside the layers, and make each layer load its own when it runs.

        Returns:
            The names of missing and unexpected weights outside the layers.
        """
        # transformers reports the weights of all layers as missing, but they are read later
        model = self._model
        report_of_loading = self._load_tensors(OUTSIDE_LAYERS)
        missing_outside = set()
        for name in report_of_loading.missing_keys:
            if self._layer_of(name) == OUTSIDE_LAYERS:
                missing_outside.add(name)
        report_of_loading.missing_keys = missing_outside
        model._finalize_model_loading(model, self._loader.config, report_of_loading)

        def load(name: str, module: Module, inputs: object) -> None:
            """Run before a layer."""
            self._load_layer(name)

        def drop(module: Module, inputs: object, output: object) -> None:
            """Run after a layer."""
            drop_weights(module)

        for name, layer in self._layers.items():
            layer.register_forward_pre_hook(partial(load, name))
            layer.register_forward_hook(drop, always_call=True)

        # `change_weights` adds its functions to this list, and `_load_layer` runs them on the
        # weights that it has loaded
        vars(model)[CHANGES] = []
        report: JsonObject = report_of_loading.to_dict()
        return report

    def _layer_of(self, parameter: str) -> str:
        """Return the layer that a parameter belongs to, or `OUTSIDE_LAYERS`."""
        # the prefixes of a.b.c are a, a.b and a.b.c
        parts = parameter.split(".")
        for count in range(1, len(parts) + 1):
            prefix = ".".join(parts[:count])
            if prefix in self._layers:
                return prefix
        return OUTSIDE_LAYERS

    def _tensors_by_layer(self) -> dict[str, list[str]]:
        """Return the names of tensors in the checkpoint, by their layer or `OUTSIDE_LAYERS`."""
        weights: dict[str, list[str]] = {name: [] for name in (OUTSIDE_LAYERS, *self._layers)}
        for name, parameter in self._loader.parameters_of(self._files).items():
            weights[self._layer_of(parameter)].append(name)
        return weights

    def _check_model(self, device: str) -> None:
        """Refuse a model whose layers cannot be read one by one, or do not fit into the memory.

        Args:
            device: Where it runs, as torch names it.

        Raises:
            RopeconvError: The model cannot run layer by layer.
        """
        reason = self._why_unreadable_by_layer()
        if reason:
            raise RopeconvError(
                f"{self._source.reference} {reason}, so it cannot run layer by layer; use a device"
                " with more memory, or --device-map auto"
            )

        # the bytes of each layer, and of the weights outside layers, in the precision of the run
        bytes_per_weight = self._loader.config.dtype.itemsize
        tensors = self._source.tensors
        sizes = {}
        for layer, names in self._weights.items():
            sizes[layer] = sum(bytes_per_weight * math.prod(tensors[name].shape) for name in names)
        outside_layers = sizes.pop(OUTSIDE_LAYERS)
        largest_layer = max(sizes.values(), default=0)

        # weights outside the layers stay in the memory; a layer is there twice while transformers
        # converts it
        needed = outside_layers + COPIES_DURING_CONVERSION * largest_layer
        free = free_bytes(device)
        if needed > free:
            raise RopeconvError(
                f"{self._source.reference} needs {human(needed)} even layer by layer, and"
                f" {human(free)} are free on {device}; use a device with more memory, or --dtype"
                " bfloat16"
            )

    def _why_unreadable_by_layer(self) -> str:
        """Return why the layers cannot be read one by one, such as "is quantised".

        The text is empty where they can be read so.
        """
        for name in getattr(self._model, "all_tied_weights_keys", {}):
            if self._layer_of(name) != OUTSIDE_LAYERS:
                return f"shares {name} between layers"
        if not self._weights[OUTSIDE_LAYERS]:
            return "has no safetensors"
        if getattr(self._model.config, "quantization_config", None):
            return "is quantised"
        return ""

    def _load_layer(self, layer: str) -> None:
        """Load the weights of a layer before it runs, and apply the changes of `change_weights`."""
        self._load_tensors(layer)
        for key, weight in self._layers[layer].named_parameters():
            if weight.is_meta:
                raise BadSource(
                    f"{self._source.reference} has no weights for {layer}.{key}; download it again"
                )
            for change in vars(self._model)[CHANGES]:
                weight.data = change(f"{layer}.{key}", weight.data)

    def _load_tensors(self, layer: str) -> Any:
        """Load the tensors of a layer with the conversions of transformers; return its report.

        Args:
            layer: The name of a layer, such as model.layers.0, or `OUTSIDE_LAYERS`.
        """
        tensors = {}
        for name in self._weights[layer]:
            file = self._files[name]
            tensors[name] = read_tensor(self._source.path(file), self._source.headers[file], name)
        return self._loader.load(tensors)


def outermost_lists(model: PreTrainedModel) -> Iterator[tuple[str, Module]]:
    """Yield the members of the outermost lists of modules, with their names.

    These are the decoder layers, such as model.layers.0. A list within one, as of experts, is not
    among them.
    """
    from torch import nn

    # a list comes before everything inside it, whose names begin with that of the list
    outer = ""
    for name, module in model.named_modules():
        is_inside_list = outer != "" and name.startswith(outer)
        if isinstance(module, nn.ModuleList) and not is_inside_list:
            outer = f"{name}."
            for key, layer in module.named_children():
                yield f"{name}.{key}", layer


def drop_weights(layer: Module) -> None:
    """Free the memory of the weights of a layer."""
    from torch import nn

    for module in layer.modules():
        for key, weight in module._parameters.items():
            if weight is not None:
                module._parameters[key] = nn.Parameter(weight.to("meta"), requires_grad=False)
