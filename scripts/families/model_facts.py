"""What the model class of a model type says: names of projections and norms, and which layers
rotate.

The class is built on the meta device, with as few layers as contain every layer type.
"""

import copy
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ropeconv.engines.probe_program import shrink

from . import library
from .rotates import ROTARY, definitions

QUERIES = re.compile(r"(q|query|wq)(_b)?(_proj)?$")
KEYS = re.compile(r"(k|key|wk|kv_a)(_proj)?(_with_mqa)?$")
FUSED = re.compile(r"(query_key_value|W?qkv(_proj)?|c_attn)$", re.IGNORECASE)
NORMS = {
    "q_norm": re.compile(r"^(q|query)_?(layer)?_?norm$"),
    "k_norm": re.compile(r"^(k|key)_?(layer)?_?norm$"),
}
NORM_SWITCH = re.compile(r"^(use_)?qk_?(layer)?_?norm$")
"""Config keys with which queries and keys get norms."""


class Rotated(Exception):
    """Raised by the rotary functions of a class while one of its layers is tried."""


@dataclass(frozen=True)
class Attention:
    """An attention module. layer: what holds it. name: in that. prefix: of the layer's tensors,
    with {layer}.
    """

    module: Any
    layer: Any
    name: str
    prefix: str
    layer_type: str

    def child(self, pattern: re.Pattern[str]) -> str:
        """The name of the module inside it that fits, from the layer on; empty where none does."""
        child = next((name for name, _ in self.module.named_children() if pattern.search(name)), "")
        return f"{self.name}.{child}" if child else ""


def build(config: Any, few_layers: bool = True) -> Any:
    """The model of a text config without weights.

    few_layers: as few as contain every layer type. Raises ValueError where its class cannot be made
    from defaults.
    """
    import torch
    from transformers import AutoModel, AutoModelForCausalLM

    config = shrink(config) if few_layers else copy.deepcopy(config)
    for name in [name for name in vars(config) if NORM_SWITCH.match(name)]:
        setattr(config, name, True)
    if getattr(config, "num_key_value_heads", 0) is None:
        config.num_key_value_heads = config.num_attention_heads
    if getattr(config, "head_dim", 0) is None:
        config.head_dim = config.hidden_size // config.num_attention_heads
    factory = next(
        (
            auto.from_config
            for auto in (AutoModelForCausalLM, AutoModel)
            if type(config) in auto._model_mapping
        ),
        None,
    )
    try:
        with torch.device("meta"):
            return (factory or own_class(config))(config)
    except (TypeError, ValueError, AttributeError, KeyError) as problem:
        if few_layers:
            return build(config, few_layers=False)
        raise ValueError(
            f"the class of {config.model_type} cannot be made from its defaults: {problem}"
        ) from None


def own_class(config: Any) -> Any:
    """The class that takes a text config which no auto class takes: a part of a model of text and
    images.

    config: of it. Raises ValueError where the modelling file has none.
    """
    for path in library.modeling_files(config.model_type):
        here = library.module(path)
        names = [
            name
            for name in here.code
            if name.endswith("Model") and type(config).__name__ in here.configs(name)
        ]
        loaded = importlib.import_module(".".join(("transformers", *path.parts[-3:-1], path.stem)))
        classes = [getattr(loaded, name) for name in names if "PreTrained" not in name]
        if classes:
            return classes[0]
    raise ValueError("no class takes its text config alone")


def attentions(model: Any) -> Iterator[Attention]:
    """The attention modules that make queries and keys, in the order of the layers."""
    kinds = getattr(model.config, "layer_types", None) or []
    from transformers import AutoModelForCausalLM

    with_head = type(model.config) in AutoModelForCausalLM._model_mapping
    base = "" if with_head or not model.base_model_prefix else f"{model.base_model_prefix}."
    for name, module in model.named_modules():
        where = re.fullmatch(r"(.*\.)?(\d+)\.([\w.]+)", name)
        names = [child for child, _ in module.named_children()]
        if (
            where is None
            or re.search("indexer|vision", name)
            or not any(QUERIES.match(name) or FUSED.match(name) for name in names)
        ):
            continue
        layer = model.get_submodule(name[: where.start(3) - 1])
        index = int(where[2])
        kind = kinds[index] if index < len(kinds) else ""
        yield Attention(module, layer, where[3], f"{base}{where[1] or ''}{{layer}}.", kind)


def weights(attention: Attention, config: Any) -> dict[str, Any]:
    """The table [weights]."""
    facts: dict[str, Any] = {"layer": [attention.prefix]}
    fused = attention.child(FUSED)
    parts = (
        {"fused": fused} if fused else {"q": attention.child(QUERIES), "k": attention.child(KEYS)}
    )
    parts |= {key: attention.child(pattern) for key, pattern in NORMS.items()}
    facts |= {key: value for key, value in parts.items() if value}
    if "q_norm" in facts:
        norm = query_norm(attention, config)
        facts = (
            facts | {"norm": norm}
            if norm
            else {key: facts[key] for key in facts if key not in NORMS}
        )
    first = attention.layer.get_submodule(facts.get("fused") or facts["q"])
    facts |= {"bias": True} if getattr(first, "bias", None) is not None else {}
    return facts | input_norm(attention)


def query_norm(attention: Attention, config: Any) -> str:
    """The kind of the norm of the queries, and whether it comes after the rotation; empty for one
    without weights.
    """
    norm = attention.layer.get_submodule(attention.child(NORMS["q_norm"]))
    kind = norm_kind(norm)
    if not list(norm.parameters()):
        return ""
    width = next((parameter.numel() for parameter in norm.parameters()), 0)
    head_dim = getattr(attention.module, "head_dim", None) or width
    if kind == "rms" and width > head_dim:
        return "rms-all-heads"
    text = inspect.getsource(type(attention.module).forward)
    name = attention.child(NORMS["q_norm"]).split(".")[-1]
    rotation = re.search(r"apply_\w*rotary\w*\(", text)
    if kind == "rms" and rotation and text.find(f"self.{name}(") > rotation.start():
        return "rms-after-rope"
    return kind


def norm_kind(norm: Any) -> str:
    """The kind of a norm, as the families have it."""
    text = inspect.getsource(type(norm)) if "torch.nn" not in type(norm).__module__ else ""
    if "ModuleList" in text:
        return "layer-norm-list"
    plus_one = bool(re.search(r"(1(\.0)? \+ self\.weight|self\.weight(\.float\(\))? \+ 1)", text))
    layer_norm = "LayerNorm" in type(norm).__name__ and "mean(" in text.replace("pow(2).mean(", "")
    if layer_norm or type(norm).__name__ == "LayerNorm" or "layer_norm(" in text:
        return "layer-norm-plus-one" if plus_one else "layer-norm"
    return "rms-plus-one" if plus_one else "rms"


def input_norm(attention: Attention) -> dict[str, Any]:
    """The entries `input` and `input_norm`: the norm that the layer applies before its
    attention.
    """
    text = inspect.getsource(type(attention.layer).forward)
    call = re.search(
        rf"self\.{attention.name.split('.')[0]}\((\s*(hidden_states=)?self\.\w+\()?", text
    )
    before = text[: call.end()] if call else ""
    calls = [name for name in re.findall(r"self\.(\w+)\(", before) if re.search(r"norm|^ln", name)]
    if not calls:
        return {"input": ""}
    norm = attention.layer.get_submodule(calls[-1])
    if type(norm).__name__ == "Identity":  # of the first layer alone
        return {}
    return {"input": norm_kind(norm), "input_norm": [calls[-1]]}


def rotating(model: Any, model_type: str) -> dict[str, bool]:
    """Whether the layers of each layer type rotate: their attention is run until it calls a rotary
    function.
    """
    rotates: dict[str, bool] = {}
    for attention in attentions(model):
        if attention.layer_type and attention.layer_type not in rotates:
            answer = _rotates(attention, model.config, model_type)
            if answer is not None:
                rotates[attention.layer_type] = answer
    return rotates


def _rotates(attention: Attention, config: Any, model_type: str) -> bool | None:
    """Whether an attention module calls a rotary function; None where it fails before that."""
    import torch

    def stop(*args: Any, **kwargs: Any) -> Any:
        raise Rotated

    home = sys.modules[type(attention.module).__module__]
    names = [
        name for _, name in definitions(model_type) if ROTARY.search(name) and name[0].islower()
    ]
    kept = {name: getattr(home, name) for name in names if hasattr(home, name)}
    width = getattr(attention.module, "head_dim", None) or 64
    states = torch.zeros(1, 2, config.hidden_size, device="meta")
    angles = torch.zeros(1, 2, width, device="meta")
    given = {
        "hidden_states": states,
        "position_embeddings": (angles, angles),
        "attention_mask": None,
    }
    takes = inspect.signature(attention.module.forward).parameters
    more = (
        {"position_ids": torch.zeros(1, 2, dtype=torch.long, device="meta")}
        if "position_ids" in takes
        else {}
    )
    try:
        for name in kept:
            setattr(home, name, stop)
        attention.module(**given, **more)
    except Rotated:
        return True
    except (RuntimeError, TypeError, ValueError, AttributeError, NotImplementedError):
        return None
    finally:
        for name, function in kept.items():
            setattr(home, name, function)
    return False
