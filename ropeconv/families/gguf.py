"""The schema of the `[gguf]` table of a family: how its checkpoints become GGUF."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Need(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A config key that must have a certain value, which a reader assumes.

    default: the class default where the key is absent. below_layers: checked only for models with fewer layers than
    this, 0 for all. when: checked only where this config key is true, empty for always.
    """

    key: str
    value: Any
    default: Any = None
    below_layers: int = 0
    when: str = ""


class Convert(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How tensors of a checkpoint are changed. Rules are applied in their order, each to what those before it left.

    match: a regular expression that is searched in the names. how: the name of a conversion in `export/conversions.py`.
    names: what stands in place of the matched part, for each tensor that comes out. times: config keys of factors that
    it is multiplied by; KEY.N for the N-th of a list.
    """

    match: str
    how: str = "rename"
    names: tuple[str, ...] = ()
    times: tuple[str, ...] = ()


class Codes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A metadata key that is a number for each value of a config key; other values are refused."""

    key: str
    numbers: dict[str, int]


class Variant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What else is so on the way back to a checkpoint where a GGUF file has a tensor with `present` in its name.

    names, config: as in Gguf, before those.
    """

    present: str
    names: tuple[str, ...] = ()
    config: dict[str, Any] = {}


class Gguf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How this family's checkpoints become GGUF.

    arch: the value of general.architecture. u32, f32, flag: metadata keys, and the expressions of config keys that they
    come from (`export/expression.py`); absent or null ones are left out. fixed: metadata keys with values that are no
    settings. layer_flags: metadata keys that say of every layer whether it is of a type. codes: metadata keys that are
    numbers for names. computed: metadata keys, and the functions in `export/computed.py` that give them. scalars:
    metadata keys that are lists, and the tensors of each layer that have their single numbers. defaults: of the class,
    for config keys that are absent. convert: what happens to tensors. tied: the architecture has no output weights.
    copy_output: it needs them, so that those of tied models are written twice. stacked: prefixes of numbered tensors
    that become one, and the name of that one. skip: a regular expression of tensors that llama.cpp computes without.
    need: values that llama.cpp assumes. act: the activations that llama.cpp computes, empty where it is not checked,
    and act_key: the config key that says which. not_null: keys that must not be null. scale_layers: llama.cpp scales
    queries by 1/sqrt(head_dim), and with this many layers by 1/sqrt(hidden_size / heads). window: whether
    attention.sliding_window is written, with the pattern of layers or alone. pre: names of pre-tokenizers that replace
    the usual ones. names: names of tensors that are not those of Llama or Gemma, with {layer} for the number. present:
    config switches, and the part of a tensor's name with which they are on. prediction: layers that predict further
    tokens are kept behind the others; they are left out else. config: settings that no GGUF key has, for the way back
    to a checkpoint, which is not known without any. variants: the same by tensors that a file has. absent: config
    values where a file lacks the key that they come from, "none" for null, and values of `fixed` that it may lack; it
    must have all other keys of u32 and fixed. idle: metadata keys that change nothing with this value, which exports
    leave out. of_one: those of `scalars` whose tensors have the shape [1] and not [].
    """

    arch: str
    u32: dict[str, str] = {}
    f32: dict[str, str] = msgspec.field(default_factory=lambda: {"attention.layer_norm_rms_epsilon": "rms_norm_eps"})
    flag: dict[str, str] = {}
    fixed: dict[str, int | float | bool | str | list[int]] = {}
    layer_flags: dict[str, str] = {}
    codes: dict[str, Codes] = {}
    computed: dict[str, str] = {}
    scalars: dict[str, str] = {}
    defaults: dict[str, Any] = {}
    convert: tuple[Convert, ...] = ()
    tied: bool = False
    copy_output: bool = False
    stacked: dict[str, str] = {}
    skip: str = ""
    need: tuple[Need, ...] = ()
    act: str = "silu"
    act_key: str = "hidden_act"
    not_null: tuple[str, ...] = ()
    scale_layers: int = 0
    window: Literal["", "pattern", "size"] = ""
    pre: dict[str, str] = {}
    names: tuple[str, ...] = ()
    present: dict[str, str] = {}
    divisors: bool = False
    prediction: bool = False
    config: dict[str, Any] = {}
    variants: tuple[Variant, ...] = ()
    absent: dict[str, Any] = {}
    idle: dict[str, int] = {}
    of_one: tuple[str, ...] = ()
