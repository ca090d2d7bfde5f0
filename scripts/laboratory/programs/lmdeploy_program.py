"""Asks lmdeploy's PyTorch engine: builds its model of a config on a CPU and runs it.

The config, the model and the rotary embedding are lmdeploy's own, with its default backend; its
attention and experts, which need a GPU, are replaced. What each layer hands to the function that
rotates queries and keys is recorded in a forward pass. Large models are made small first, by
`transformers_program.shrunk`.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import probe_protocol as protocol
import sglang_stubs
import torch
import transformers.modeling_utils
from ask_transformers import shrink, without_initialisation
from published_keys import complete

transformers.PreTrainedModel  # noqa: B018 - it looks for optional packages: before the stubs
OTHERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "mlp": lambda hidden: hidden,
    "feed_forward": lambda hidden: hidden,
    "linear_attn": lambda hidden: hidden,
    "block_sparse_moe": lambda hidden: (hidden, None),
    "indexer": lambda hidden: hidden[0, :, :1],
}
"""Parts of a decoder layer that do not rotate the queries and keys of its attention, and results in
their shape.
"""


class Kernel(torch.nn.Module):
    """Stands in for an operator that needs a GPU. spec: what lmdeploy asked for."""

    def __init__(self, spec: Any) -> None:
        super().__init__()
        self.spec = spec

    def build_moe_all_reduce(self) -> SimpleNamespace:
        """Return the communication of experts on one device."""
        return SimpleNamespace(enable_shared_tp=lambda: False)

    def forward(self, query: Any, *_: Any, **__: Any) -> torch.Tensor | None:
        """Return zeros in the shape of what attention returns, and nothing for another operator."""
        return (
            query.new_zeros(*query.shape[:-1], self.spec.v_head_dim)
            if hasattr(self.spec, "v_head_dim")
            else None
        )


class Recorder:
    """Records, per decoder layer, the cos and sin that its attention rotates with, and whether
    pairs are neighbours.
    """

    def __init__(self) -> None:
        self.layer = -1
        self.calls: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.interleaved = False

    def rotate(
        self,
        query: Any,
        key: Any,
        cos: Any,
        sin: Any,
        inplace: bool = True,
        complex_mode: bool = False,
    ) -> Any:
        """Replaces the function that rotates queries and keys."""
        self.calls.setdefault(self.layer, (cos, sin))
        self.interleaved |= complex_mode
        return query, key


def prepare() -> None:
    """Make lmdeploy importable without its servers and kernels, with its default backend."""
    # the package without its __init__, which imports the servers
    place = importlib.util.find_spec("lmdeploy")
    assert place is not None
    package = ModuleType("lmdeploy")
    package.__path__ = list(place.submodule_search_locations or ())
    sys.modules["lmdeploy"] = package
    sglang_stubs.install()
    torch.cuda.get_device_properties = lambda *_: SimpleNamespace(major=9, minor=0)  # type: ignore[assignment]
    from lmdeploy.pytorch.backends import gated_delta_rule, selector

    # before its users import it
    gated_delta_rule.GatedDeltaMeta = type("Meta", (), {"__init__": lambda *_: None})
    from lmdeploy.pytorch.backends.default.op_backend import DefaultOpsBackend
    from lmdeploy.pytorch.nn import moe

    def build_op(spec: Any, *, enable_deterministic: bool = False) -> Any:
        """Return an operator of the default backend, or a stand-in for one that it lacks."""
        try:
            return DefaultOpsBackend.build_op(spec, enable_deterministic=enable_deterministic)
        except RuntimeError as error:
            if "not supported by default backend" not in str(error):
                raise
            return Kernel(spec)

    backend = type("LabBackend", (DefaultOpsBackend,), {"build_op": staticmethod(build_op)})
    selector._get_backend = lambda: backend
    moe.build_fused_moe = lambda *_, **__: Kernel(None)


def ask(config: dict[str, Any], question: dict[str, Any]) -> protocol.Answer:
    """Return the frequencies and factors that lmdeploy computes from a config, for every layer.

    The docstring of `probe_protocol` explains the keys of a question and of an answer.

    Args:
        config: The whole config.json.
        question: The trained length and the context, in tokens.
    """
    from lmdeploy.pytorch.config import ModelConfig
    from lmdeploy.pytorch.model_inputs import BuildModelContext
    from lmdeploy.pytorch.models import patch
    from lmdeploy.pytorch.transformers import config_from_pretrained

    check_architecture(config)
    for part in (config, config.get("text_config", {})):
        complete(part)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config))
        try:
            loaded = config_from_pretrained(folder, trust_remote_code=False)
            whole, text = smaller(loaded)
            parsed = ModelConfig.from_hf_config(whole, folder, dtype="float32")
        except Exception as error:
            raise protocol.Refused("config", error) from error
    try:
        with without_initialisation(), torch.inference_mode():
            model = patch.build_patched_model(parsed, torch.device("meta"), BuildModelContext())
    except Exception as error:
        raise protocol.Refused("load", error) from error

    # one pass inside the trained length, and one that ends with the context
    decoder, layers = decoder_of(model, text.num_hidden_layers)
    context = question["context"]
    trained = min(question["trained"], context)
    try:
        short = forward(decoder, layers, text.hidden_size, trained)
        long = forward(decoder, layers, text.hidden_size, context)
    except Exception as error:
        raise protocol.Refused("forward", error) from error
    ropes = [rope(long, short, index) for index in range(len(layers))]

    more: dict[str, Any] = {}
    if long.interleaved:
        more["interleaved"] = True
    for layer in layers:
        scaling = logit_scale(layer)
        if scaling is not None:
            more["scaling"] = scaling
            break
    return protocol.answer(ropes, mixed=True, **more)


def check_architecture(config: dict[str, Any]) -> None:
    """Raise NoModel where lmdeploy has no class for a config, and Unseen where its name differs."""
    from lmdeploy.pytorch.models import patch

    architecture = (config.get("architectures") or ["?"])[0]
    known = patch._get_module_map()
    if architecture in known:
        return
    if architecture.lower() in map(str.lower, known):
        raise protocol.Unseen(
            "untested: published configs name its class in another way than transformers does"
        )
    removed = " any more" if architecture in patch.REMOVED_MODEL_MAP else ""
    raise protocol.NoModel(f"lmdeploy has no {architecture}{removed}")


def smaller(loaded: Any) -> tuple[Any, Any]:
    """A config with a small text model, and the config of that."""
    text = loaded.get_text_config()
    small = shrink(text)
    if text is loaded:
        return small, small
    for holder in (loaded, getattr(loaded, "thinker_config", None)):
        for name, value in vars(holder).items() if holder is not None else ():
            if value is text:
                setattr(holder, name, small)
                return loaded, small
    raise AssertionError(f"{type(loaded).__name__} has no text config")


def decoder_of(model: Any, count: int) -> tuple[Any, list[Any]]:
    """The language model without its head, and its layers."""
    for name, module in model.named_modules():
        layers = getattr(module, "layers", None)
        if isinstance(layers, torch.nn.ModuleList) and len(layers) == count and "vis" not in name:
            return module, list(layers)
    raise AssertionError(f"no list of {count} decoder layers")


def forward(decoder: Any, layers: list[Any], width: int, tokens: int) -> Recorder:
    """Run a pass over the second and the last position of a prompt, and record the rotations.

    Args:
        decoder: The language model without its head.
        layers: Its layers. Their parts that do not rotate, such as experts, are replaced.
        width: The width of hidden states.
        tokens: The length of the prompt.
    """
    recorder = Recorder()
    on_cpu(decoder)

    def note_layer(index: int, *_: Any) -> None:
        recorder.layer = index

    def stand_in(result: Callable[[torch.Tensor], Any], *inputs: Any, **named: Any) -> Any:
        """Return something in the shape of what a part of a layer returns for its first input."""
        first_input = [*inputs, *named.values()][0]
        return result(first_input)

    for index, layer in enumerate(layers):
        layer.register_forward_pre_hook(functools.partial(note_layer, index))
        for name, part in layer.named_modules():
            last_name = name.rpartition(".")[2]
            if name in OTHERS or last_name == "indexer":
                part.forward = functools.partial(stand_in, OTHERS[last_name])
            if type(part).__name__ == "ApplyRotaryEmb":
                part.forward = recorder.rotate

    positions = torch.tensor([[1, tokens - 1]])
    inputs = {
        "input_ids": torch.zeros(1, 2, dtype=torch.long),
        "position_ids": positions,
        "past_key_values": [[torch.zeros(1, 1, 1, 1)] * 2] * len(layers),
        "state_ids": None,
        "inputs_embeds": torch.zeros(1, 2, width),
        "attn_metadata": SimpleNamespace(quant_policy=0, is_decoding=False),
        "mrope_position_ids": positions.expand(3, -1),
    }
    names = inspect.signature(decoder.forward).parameters
    with torch.inference_mode():
        decoder(**{name: value for name, value in inputs.items() if name in names})
    return recorder


def on_cpu(model: Any) -> None:
    """Gives a model without weights zeros for weights."""
    for module in model.modules():
        for group in (module._parameters, module._buffers):
            for name, tensor in group.items():
                if tensor is not None and tensor.is_meta:
                    zeros = torch.zeros(tensor.shape, dtype=tensor.dtype)
                    group[name] = (
                        torch.nn.Parameter(zeros, False) if group is module._parameters else zeros
                    )


def rope(long: Recorder, short: Recorder, index: int) -> protocol.Answer | None:
    """Return the RoPE that a layer rotates with; None where it does not rotate."""
    if index not in long.calls:
        return None
    far, near = (from_tables(*recorder.calls[index]) for recorder in (long, short))
    return protocol.rope(*far, *near)


def from_tables(cos: torch.Tensor, sin: torch.Tensor) -> tuple[list[float], float]:
    """inv_freq and attention_factor from the tables at position 1, one row per token, with every
    pair twice.
    """
    cos = cos.reshape(-1, cos.shape[-1])[0].double()
    sin = sin.reshape(-1, sin.shape[-1])[0].double()
    half = len(cos) // 2
    assert torch.equal(cos[:half], cos[half:])
    return protocol.from_cos_sin(cos[:half].tolist(), sin[:half].tolist())


def logit_scale(layer: Any) -> float | None:
    """The factor on the logits of the attention of a layer."""
    kernels = [part.spec for part in layer.modules() if isinstance(part, Kernel)]
    return next(
        (float(spec.scale) for spec in kernels if getattr(spec, "scale", None) is not None), None
    )


torch.set_num_threads(1)
prepare()
