"""The model whose family is asked for, and its config in other versions.

Every experiment of this package runs the model of a config: of the published one, of one with
fewer layers (`shorten`), or of one in which a key has another value (`AskedModel.changed`, with
the changes of `config_changes.py`). `prepare_text_config` makes a config of transformers ready for
that.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ropeconv.rope.errors import RopeconvError

if TYPE_CHECKING:
    from torch.nn import Module

Config = dict[str, Any]
"""The content of a config.json, or of a part of it."""

FIRST_LAYERS = 4
"""The layers that run in most experiments, where the config does not list types of layers."""
MOST_POSITIONS = 1 << 20
"""The largest context whose positions are tried; float32 lacks the digits for larger angles."""
SIZE_KEYS = {
    "hidden": ("hidden_size", "n_embd", "d_model", "dim"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "multi_query_group_num", "n_kv_heads"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "context": (
        "max_position_embeddings",
        "max_sequence_length",
        "max_seq_len",
        "n_positions",
        "seq_length",
        "n_ctx",
    ),
    "head_dim": ("head_dim", "kv_channels", "attention_head_dim", "head_size"),
}
"""The config keys of each size of a model, by the field of `models.family.ConfigKeys`.

The first key is the usual one, which a family file need not state.
"""


class NotDerivable(RopeconvError):
    """A fact of a model that no field of a family describes."""


@dataclass(frozen=True)
class AskedModel:
    """The model whose family is derived: its config.json and its class."""

    config_json: Config
    """The content of its config.json."""

    make: Callable[[Config], Any]
    """Makes a config of transformers, such as a LlamaConfig, from the content of a config.json."""

    model_class: Callable[[Any], type[Module]]
    """Returns the class that runs the config of a text model."""

    text_path: tuple[str, ...]
    """The keys of the text part in its config.json: ("text_config",), or () for a text model."""

    @property
    def text_part(self) -> Config:
        """The settings of the text model in its config.json."""
        return part_of(self.config_json, self.text_path)

    def changed(self, change: Callable[[Config], None]) -> Any:
        """Return the config of its text model (of transformers) after a change to config.json.

        Args:
            change: Edits a copy of the text part of config.json in place.
        """
        config_json = copy.deepcopy(self.config_json)
        change(part_of(config_json, self.text_path))
        return prepare_text_config(self.make(config_json))

    def unchanged(self) -> Any:
        """Return the config of its text model (of transformers)."""
        return prepare_text_config(self.make(copy.deepcopy(self.config_json)))


def part_of(config_json: Config, path: Sequence[str]) -> Config:
    """Return the part of a config.json below some keys, such as ("text_config",)."""
    part = config_json
    for key in path:
        part = part[key]
    return part


def prepare_text_config(config: Any) -> Any:
    """Return the config of a text model, set up to run in float32 on the CPU.

    Args:
        config: A config of transformers, of a text model or of a model with a text model inside.
            The config of the text model is changed in place.
    """
    text = config.get_text_config() if hasattr(config, "get_text_config") else config

    # float32, without quantisation
    for name in ("dtype", "torch_dtype"):
        if getattr(text, name, None) is not None:
            setattr(text, name, torch.float32)
    text.dtype = torch.float32
    if getattr(text, "quantization_config", None) is not None:
        del text.quantization_config

    # mixtures of experts: torch's grouped matrix product, which transformers uses by default,
    # accepts bfloat16 only
    text._experts_implementation = "eager"
    # "eager" computes the scores of queries and keys and their mask, which are recorded; SDPA
    # computes them inside one function
    text._attn_implementation = "eager"
    # a size that differs by layer, such as head_dim: transformers 5.17 refuses to read it without
    # this flag (per_layer_config)
    text.allow_global_per_layer_attribute_access = True
    return text


def first_layers(text: Any) -> int:
    """Return how many layers, from the first, have every kind of layer that the config lists."""
    count = layer_count(text)
    types = getattr(text, "layer_types", None)
    if isinstance(types, list) and types:
        first_layer_of_each_type = [types.index(name) for name in set(types)]
        return min(max(first_layer_of_each_type) + 1, count)
    return min(count, FIRST_LAYERS)


def layer_count(text: Any) -> int:
    """Return the number of layers of a text model."""
    for name in SIZE_KEYS["layers"]:
        value = getattr(text, name, None)
        if isinstance(value, int) and value > 0:
            return value
    raise NotDerivable("its config has no number of layers")


def shorten(text: Any, count: int) -> Any:
    """Return a copy of a config with fewer layers.

    A list with an item for each layer, such as layer_types, loses the items after them too.

    Args:
        text: The config of a text model, of transformers.
        count: The number of layers to keep, from the first.
    """
    layers_before = layer_count(text)
    shorter = copy.deepcopy(text)
    if count >= layers_before:
        return shorter

    for name in SIZE_KEYS["layers"]:
        if isinstance(getattr(shorter, name, None), int):
            setattr(shorter, name, count)
            break
    for name, value in list(vars(shorter).items()):
        has_item_per_layer = isinstance(value, list) and len(value) == layers_before
        if not has_item_per_layer:
            continue
        try:
            setattr(shorter, name, value[:count])
        except AttributeError:  # a property, which the class computes from the number of layers
            continue
    return shorter


def context_of(text: Any) -> int:
    """Return the number of positions of a text model; 2048 where its config has none."""
    for name in SIZE_KEYS["context"]:
        value = getattr(text, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and value > 1:
            return min(value, MOST_POSITIONS)
    return 2048


def class_default(text: Any, name: str) -> Any:
    """Return the default of a setting in a config class; None without one.

    Args:
        text: A config of the class.
        name: The usual name of the setting, which `attribute_map` of the class may rename.
    """
    own_name = getattr(type(text), "attribute_map", {}).get(name, name)
    value = getattr(type(text), own_name, None)
    return None if isinstance(value, property) else value
