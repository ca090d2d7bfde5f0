"""Tiny checkpoints of every family, made by transformers itself: 2 layers or as many as show every
kind of layer.

`data/tiny/MODEL_TYPE.toml` says what a family has beside COMMON; the beginning of `Tiny` explains
the fields.
"""

import copy
import json
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from . import plain_llama
from .optional import MISSING
from .plain_llama import write_llama
from .stored import stored

DATA = Path(__file__).parents[1] / "data" / "tiny"
TRAINED = 64
VOCABULARY = 320
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": TRAINED,
    "initializer_range": 0.35,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
PARTS: dict[str, dict[str, Any]] = {
    "experts": {
        "num_experts": 4,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    },
    "mla": {
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 16,
        "v_head_dim": 32,
        "kv_lora_rank": 32,
        "q_lora_rank": 48,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 32,
        "num_key_value_heads": 2,
    },
    "linear": {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
    },
}


class Tiny(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a tiny checkpoint of a family has beside COMMON.

    parts: names in PARTS. remove: keys of COMMON and of the parts that it has not. null: keys that
    are null. config: its own keys. rotary_dim: dimensions of a head that rotate, of 64.
    local_theta, local_rotary_dim: of the layers that are not extended, where they have others.
    rotating_share: the share of pairs that rotate in the class itself. norms: keys with which
    queries and keys have norms. cancels: whether a norm behind the rotation cancels an attention
    factor. auto: the class of transformers that makes it. refused: methods whose frequencies,
    recipes by their names, and encodings, that its class cannot carry. fill: by the end of their
    names, values of parameters that begin with 0 and would make attention blind; of matrices the
    standard deviation. text: the model type of its `text_config`, which has all these keys then;
    around: what its config has beside that. halves: the same for several such parts, by the names
    of their keys, joined by dots.
    """

    parts: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    null: tuple[str, ...] = ()
    config: dict[str, Any] = {}
    rotary_dim: int = 64
    local_theta: float | None = None
    local_rotary_dim: int = 0
    rotating_share: float = 1.0
    norms: dict[str, Any] = {}
    cancels: bool = False
    auto: str = "AutoModelForCausalLM"
    refused: tuple[str, ...] = ()
    fill: dict[str, float] = {}
    text: str = ""
    halves: dict[str, str] = {}
    around: dict[str, Any] = {}

    @property
    def inner(self) -> dict[str, str]:
        """The model types of the parts that have its keys, by where they stand in its config; empty
        for the whole.
        """
        return self.halves or ({"text_config": self.text} if self.text else {})

    @property
    def changes(self) -> dict[str, Any]:
        """What differs from COMMON; None removes a key."""
        settings = {key: value for part in self.parts for key, value in PARTS[part].items()}
        return settings | self.config | dict.fromkeys((*self.remove, *self.null))


SOURCES = (__file__, plain_llama.__file__)
TINY = {
    path.stem: msgspec.convert(tomllib.loads(path.read_text()), Tiny)
    for path in sorted(DATA.glob("*.toml"))
}
FAMILIES: dict[str, dict[str, Any]] = {
    model_type: tiny.changes for model_type, tiny in TINY.items()
}
ENCODERS = {model_type for model_type, tiny in TINY.items() if tiny.auto == "AutoModel"}
CANCELS = {model_type for model_type, tiny in TINY.items() if tiny.cancels}


def of_extended(rope: dict[str, Any]) -> dict[str, Any]:
    """The settings of the layers that are extended, of a `rope_parameters` that may be nested per
    layer type.
    """
    named = (
        rope[name]
        for name in (
            "full_attention",
            "hybrid",
            "compress",
            "indexed_attention",
            "sliding_attention",
        )
        if rope.get(name)
    )
    return next(named, rope)


def make(model_type: str, folder: Path, seed: int = 0, **changes: Any) -> Path:
    """A checkpoint of that family in `folder`, float32, with a config in the schema of its time.

    Where torch is not installed, numpy makes those of Llama.
    """

    def write(place: Path) -> None:
        settings = {**COMMON, **FAMILIES[model_type], **changes}
        settings = {
            key: value
            for key, value in settings.items()
            if value is not None or key in TINY[model_type].null
        }
        if model_type == "llama" and "torch" in MISSING:
            write_llama(place, settings, seed)
        else:
            by_transformers(model_type, place, settings, seed)

    return stored(write, folder, SOURCES, seed, *what_decides(model_type, changes))


def in_two_files(folder: Path, **metadata: str) -> dict[str, str]:
    """Divides the weights of a checkpoint, and returns which file has which tensor. metadata: for
    the index.
    """
    from huggingface_hub import save_torch_state_dict
    from safetensors.torch import load_file

    tensors = load_file(folder / "model.safetensors")
    most = sum(tensor.nbytes for tensor in tensors.values()) * 6 // 10
    save_torch_state_dict(tensors, str(folder), max_shard_size=most, metadata=metadata)
    return dict(json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"])


def what_decides(model_type: str, changes: dict[str, Any]) -> tuple[Any, ...]:
    """The settings that decide a checkpoint, for the store."""
    return model_type, msgspec.to_builtins(TINY[model_type]), changes


def by_transformers(model_type: str, folder: Path, settings: dict[str, Any], seed: int) -> None:
    """Writes a checkpoint with the class of the installed transformers."""
    import torch
    from transformers import AutoConfig

    torch.manual_seed(seed)
    model = from_config(AutoConfig.for_model(model_type, **whole(model_type, settings))).to(
        torch.float32
    )
    for name, parameter in model.named_parameters():
        for end, value in TINY[model_type].fill.items():
            if name.endswith(end) and parameter.ndim == 2:
                torch.nn.init.normal_(parameter, std=value)
            elif name.endswith(end):
                torch.nn.init.constant_(parameter, value)
    model.save_pretrained(folder)
    published(folder, model_type, settings)


def whole(model_type: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The keys of a whole config but its model type. settings: the keys of the language model or of
    both halves.
    """
    tiny = TINY[model_type]
    config = copy.deepcopy(tiny.around) if tiny.inner else settings
    for path, inner in tiny.inner.items():
        part_at(config, path).update(copy.deepcopy(settings) | {"model_type": inner})
    return config


def from_config(config: Any) -> Any:
    made_by = auto_class(config.model_type)
    return (made_by.from_config if hasattr(made_by, "from_config") else made_by._from_config)(
        config
    )


def auto_class(model_type: str) -> Any:
    """The class of transformers that makes and loads models of a family."""
    import transformers

    return getattr(transformers, TINY[model_type].auto)


def part_at(config: dict[str, Any], path: str) -> dict[str, Any]:
    """The part of a config at a path of keys joined by dots, which is made where it is absent; ""
    for the whole.
    """
    for key in path.split(".") if path else ():
        config = config.setdefault(key, {})
    return config


def published(folder: Path, model_type: str, settings: dict[str, Any]) -> None:
    """Rewrites the saved config as publishers write it: rope_theta at the top, and only the keys
    that were given.
    """
    saved = json.loads((folder / "config.json").read_text())
    for path, inner in (TINY[model_type].inner or {"": model_type}).items():
        part = part_at(saved, path)
        rope = part.pop("rope_parameters", None) or {}
        part.update({key: value for key, value in settings.items() if value is not None})
        part["model_type"] = inner
        if not {"rope_parameters", "rope_theta"} & settings.keys():
            part["rope_theta"] = of_extended(rope).get("rope_theta", 10000.0)
    (folder / "config.json").write_text(json.dumps(saved, indent=2) + "\n")
