"""Asks one version of transformers: builds the model of a config, runs it, and records what its
layers rotate with.

What a layer hands to the function that rotates queries and keys (apply_rotary_pos_emb and its
relatives) is recorded in a forward pass, so that it does not matter which module made it. Large
models are made small first: fewer layers of every kind, fewer heads of the same width, less of
everything that does not rotate.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import inspect
import json
import logging
import math
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import protocol
import torch
import transformers
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedModel

ROTATES = ("apply_rotary", "apply_multimodal_rotary", "apply_interleaved_mrope")
COUNTS_KEYS = tuple(map(int, transformers.__version__.split(".")[:2])) < (4, 48)
COUNTING = ("phi3", "mixtral")
WHOLE = 1024  # contexts up to this many tokens are run as a whole


class Recorder:
    """Records, per decoder layer, what rotates. calls: index of the layer, and cos and sin or a
    complex tensor.

    Of a layer the first call is kept, that on queries: DeepSeek V4 turns the values back in a later
    one.
    """

    def __init__(self) -> None:
        self.layer = -1
        self.calls: dict[int, tuple[Any, ...]] = {}
        self.query_scale: float | None = None

    def enter(self, layer: int) -> None:
        """Takes what follows as of that layer."""
        self.layer = layer
        self.calls.pop(layer, None)

    def patch(self, module: Any) -> None:
        """Wraps the rotating functions of a modelling module."""
        for name, function in list(vars(module).items()):
            ours = name.startswith(ROTATES) and "vision" not in name and callable(function)
            if ours and not getattr(function, "recorded", False):
                setattr(module, name, self._wrapped(function))
            if name.endswith("get_llama_4_attn_scale"):
                setattr(module, name, self._scaled(function))

    def _wrapped(self, function: Any) -> Any:
        rotated = 1 if list(inspect.signature(function).parameters)[1:2] == ["cos"] else 2

        def call(*args: Any, **kwargs: Any) -> Any:
            values = [*args[rotated:], *kwargs.values()]
            tensors = [
                v
                for v in values
                if isinstance(v, torch.Tensor) and (v.is_complex() or v.is_floating_point())
            ]
            self.calls.setdefault(self.layer, tuple(tensor.detach() for tensor in tensors[:2]))
            return function(*args, **kwargs)

        call.recorded = True  # type: ignore[attr-defined]
        return call

    def _scaled(self, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            scale = function(*args, **kwargs)
            self.query_scale = float(scale.flatten()[-1])
            return scale

        return call


def ask(config: dict[str, Any], question: dict[str, Any]) -> protocol.Answer:
    """The answer of the installed transformers for a config."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        try:
            loaded = AutoConfig.from_pretrained(folder)
        except (ValueError, KeyError) as error:
            unknown = ("does not recognize", "Unrecognized model", "contains custom code")
            if any(words in str(error) for words in unknown):
                raise protocol.Absent(
                    f"transformers {transformers.__version__} has no {config['model_type']}"
                ) from None
            raise protocol.Refused("config", error) from None
        except Exception as error:
            raise protocol.Refused("config", error) from None
    text = (
        loaded.get_text_config()
        if hasattr(loaded, "get_text_config")
        else getattr(loaded, "text_config", loaded)
    )
    halves = getattr(loaded, "is_encoder_decoder", False)
    text = shrunk(text)
    try:
        model = built(loaded if halves else text)
    except Exception as error:
        raise protocol.Refused("load", error) from error
    try:
        short = forward(model, min(question["trained"], 8))
        long = forward(model, question["context"])
    except Exception as error:
        raise protocol.Refused("forward", error) from error
    layers = []
    for index in range(len(decoder_layers(model))):
        if index not in long.calls:
            layers.append(None)
            continue
        near, far = (read(recorder.calls[index], text) for recorder in (short, long))
        layers.append(protocol.rope(*far, *near))
    if halves:
        layers, encoder = layers[: len(layers) // 2], layers[len(layers) // 2 :]
        if layers != encoder:
            raise protocol.Refused(
                "forward", ValueError("the encoder rotates otherwise than the decoder")
            )
    more: dict[str, Any] = {}
    scaling = logit_scale(model)
    if scaling is not None:
        more["scaling"] = scaling
    if long.query_scale is not None:
        more["query_scale"] = long.query_scale
    return protocol.answer(layers, **more)


def built(text: Any) -> Any:
    """The model of a text config, with arbitrary weights."""
    PreTrainedModel.init_weights = lambda self: None
    PreTrainedModel._initialize_weights = lambda self, module, *args, **kwargs: None
    model_class = class_of(text)
    if model_class is None:
        raise protocol.Absent(
            f"transformers {transformers.__version__} has no model for {type(text).__name__}"
        )
    with contextlib.suppress(Exception):
        text._attn_implementation = "eager"
    with without_init():
        return model_class(text).eval()


def class_of(text: Any) -> Any:
    """The class of the model of a text config, or the one in its modelling file that takes it; None
    without one.
    """
    for auto in (AutoModel, AutoModelForCausalLM):
        if type(text) in auto._model_mapping:
            model_class = auto._model_mapping[type(text)]
            return model_class[0] if isinstance(model_class, (tuple, list)) else model_class
    code = vars(
        importlib.import_module(type(text).__module__.replace(".configuration_", ".modeling_"))
    )
    models = (
        code[name]
        for name in sorted(code, key=len)
        if name.endswith("Model") and not name.endswith("PreTrainedModel")
    )
    return next(
        (model for model in models if getattr(model, "config_class", None) is type(text)), None
    )


@contextlib.contextmanager
def without_init() -> Iterator[None]:
    """Parameters stay as memory has them: what rotates does not depend on them."""
    names = [
        name for name in vars(torch.nn.init) if name.endswith("_") and not name.startswith("_")
    ]
    kept = {name: getattr(torch.nn.init, name) for name in names}
    try:
        for name in names:
            setattr(torch.nn.init, name, lambda tensor, *args, **kwargs: tensor)
        yield
    finally:
        for name, function in kept.items():
            setattr(torch.nn.init, name, function)


def decoder_layers(model: Any) -> list[Any]:
    """The layers of a text model; of one with an encoder and a decoder, the decoder's and then the
    encoder's.
    """
    if model.config.is_encoder_decoder:
        encoder = model.encoder if hasattr(model.encoder, "layers") else model.encoder.text_model
        return [*model.decoder.layers, *encoder.layers]
    for name in ("layers", "h", "blocks"):
        for holder in (
            model,
            getattr(model, "model", None),
            getattr(model, "language_model", None),
        ):
            if holder is not None and isinstance(getattr(holder, name, None), torch.nn.ModuleList):
                return list(getattr(holder, name))
    stacks = [
        stack.layers
        for stack in model.children()
        if isinstance(getattr(stack, "layers", None), torch.nn.ModuleList)
    ]
    if not stacks:
        raise RuntimeError(f"{type(model).__name__} has no list of layers")
    return [layer for stack in stacks for layer in stack]


def forward(model: Any, tokens: int) -> Recorder:
    """Records a forward pass over a prompt; of a long one, only the first positions and the
    last.
    """
    recorder = Recorder()
    recorder.patch(sys.modules[type(model).__module__])
    handles = []
    for index, layer in enumerate(decoder_layers(model)):

        def enter(*_: Any, index: int = index) -> None:
            recorder.enter(index)

        handles.append(layer.register_forward_pre_hook(enter))
    positions = list(range(tokens)) if tokens <= WHOLE else [0, 1, 2, tokens - 1]
    ids = torch.zeros(1, len(positions), dtype=torch.long)
    arguments = {"input_ids": ids, "position_ids": torch.tensor([positions]), "use_cache": False}
    if model.config.is_encoder_decoder:
        arguments |= {f"decoder_{name}": arguments[name] for name in ("input_ids", "position_ids")}
    try:
        with torch.no_grad():
            if tokens > WHOLE and COUNTS_KEYS and model.config.model_type in COUNTING:
                arguments |= cached(model, tokens - len(positions))
            try:
                model(**arguments)
            except RuntimeError as error:
                if "expand" not in str(error):
                    raise
                arguments["attention_mask"] = torch.ones_like(
                    ids
                )  # without it 4.53 fails on M-RoPE positions
                model(**arguments)
    finally:
        for handle in handles:
            handle.remove()
        restore(sys.modules[type(model).__module__])
    return recorder


def cached(model: Any, tokens: int) -> dict[str, Any]:
    """Arguments with a cache of that many tokens: some classes before 4.48 take its length for the
    last position.
    """
    from transformers import DynamicCache

    config = model.config
    cache = DynamicCache()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    for layer in range(config.num_hidden_layers):
        cache.update(
            torch.zeros(1, heads, tokens, width), torch.zeros(1, heads, tokens, width), layer
        )
    return {"past_key_values": cache, "use_cache": True}


def restore(module: Any) -> None:
    """Takes the recorders out of a module."""
    for name, function in list(vars(module).items()):
        if (
            callable(function)
            and getattr(function, "__closure__", None)
            and function.__name__ == "call"
        ):
            inner = [cell.cell_contents for cell in function.__closure__]
            original = [
                value for value in inner if callable(value) and not isinstance(value, Recorder)
            ]
            if original:
                setattr(module, name, original[0])


def read(tensors: tuple[Any, ...], text: Any) -> tuple[list[float], float]:
    """inv_freq and attention_factor of what a layer rotates with: cos and sin, or one complex
    tensor.
    """
    if tensors[0].is_complex():
        row = tensors[0].reshape(-1, tensors[0].shape[-1])[1].to(torch.complex128)
        return protocol.from_cos_sin(row.real.tolist(), row.imag.tolist())
    cos, sin = (tensor.to(torch.float64).reshape(-1, tensor.shape[-1])[1] for tensor in tensors)
    pairs = cos.shape[-1] // 2
    if bool(torch.equal(cos[:pairs], cos[pairs:])):
        cos = cos[:pairs]
        sin = sin[:pairs]
    elif bool(torch.equal(cos[0::2], cos[1::2])):
        cos = cos[0::2]
        sin = sin[0::2]
    return protocol.from_cos_sin(cos.tolist(), sin.tolist())


def logit_scale(model: Any) -> float | None:
    """The factor on the logits of attention, from the last layer that has one."""
    for layer in reversed(decoder_layers(model)):
        for module in layer.modules():
            for name in ("scaling", "softmax_scale"):
                value = getattr(module, name, None)
                if isinstance(value, float):
                    return value
    return None


def shrunk(text: Any) -> Any:
    """A config with less of everything that does not rotate; configs that are small stay as they
    are.
    """
    text = copy.deepcopy(text)
    if text.num_hidden_layers <= 8 and text.hidden_size <= 1024:
        return text
    text.allow_global_per_layer_attribute_access = True  # of heads, in Gemma 4
    kinds = getattr(text, "layer_types", None) or getattr(text, "no_rope_layers", None)
    pattern = getattr(text, "sliding_window_pattern", None)
    some = pattern if isinstance(pattern, int) else 2
    keep = min(
        text.num_hidden_layers, 1 + max(kinds.index(kind) for kind in set(kinds)) if kinds else some
    )
    text.num_hidden_layers = keep
    for name in ("layer_types", "no_rope_layers", "mlp_layer_types", "moe_layers"):
        if isinstance(getattr(text, name, None), list):
            setattr(text, name, list(getattr(text, name)[:keep]))
    heads = text.num_attention_heads
    kv = getattr(text, "num_key_value_heads", None) or getattr(text, "num_kv_heads", None) or heads
    groups = max(1, heads // kv)
    if not hasattr(text, "qk_rope_head_dim"):
        wide = heads // math.gcd(heads, text.hidden_size)
        small = next(
            n
            for n in range(max(2, wide), heads + 1)
            if heads % n == 0 and text.hidden_size % (heads // n) == 0
        )
        width = getattr(text, "head_dim", None)
        own_width = isinstance(width, int) and width * heads != text.hidden_size
        text.hidden_size = 256 if own_width else text.hidden_size * small // heads
        text.num_attention_heads = small
        for name in ("num_key_value_heads", "num_kv_heads"):
            if getattr(text, name, None):
                setattr(
                    text,
                    name,
                    max(1, small // groups) if small % max(1, small // groups) == 0 else small,
                )
    else:
        text.num_attention_heads = text.num_key_value_heads = 2
        text.hidden_size = 256
    for name, value in {
        "vocab_size": 320,
        "intermediate_size": 64,
        "moe_intermediate_size": 32,
        "ffn_hidden_size": 64,
        "intermediate_size_mlp": 64,
        "shared_expert_intermediate_size": 32,
    }.items():
        if getattr(text, name, None):
            setattr(text, name, value)
    for name in ("num_local_experts", "n_routed_experts", "num_experts"):
        if getattr(text, name, None) and getattr(text, name) > 8:
            setattr(text, name, 8)
    for name in ("n_group", "topk_group"):
        if getattr(text, name, None):
            setattr(text, name, 1)
    if (getattr(text, "num_experts_per_tok", None) or 0) > 2:
        text.num_experts_per_tok = 2
    text.pad_token_id = None
    text.allow_global_per_layer_attribute_access = False
    return text


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    protocol.main(ask)
