"""The schema of `data/*.toml`, continued: how a family loads as a class of transformers other than its own."""

from __future__ import annotations

from typing import Any

import msgspec


class Need(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A config key that must have a certain value, which a reader assumes.

    default: the class default where the key is absent. below_layers: checked only for models with fewer layers than
    this, 0 for all.
    """

    key: str
    value: Any
    default: Any = None
    below_layers: int = 0


class Code(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names of the family's classes in transformers, for the modelling file of the encoding `buffers`.

    prefix: of class names, such as Llama in LlamaModel; the module is named after the first model type. window: the
    Python expression with which its attention reads its sliding window. window_switch: the config key that turns the
    sliding window on.
    """

    prefix: str
    window: str = ""
    window_switch: str = ""


class Ministral3(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How this family's checkpoints load as Ministral 3, the class that scales queries by position.

    defaults: defaults of the family's own class that differ from those of Ministral 3. null: keys whose absence means
    null. need: values that Ministral 3 assumes.
    """

    defaults: dict[str, Any]
    null: tuple[str, ...] = ()
    need: tuple[Need, ...] = ()
