"""Asks vLLM what it computes: its configs, its registry and its model classes, built on `meta` with
real rotary tables.

A model is loaded as `vllm serve FOLDER --max-model-len CONTEXT --dtype float32` would, without
weights. Every attention then runs once on `meta`, which tells whether it calls its rotary
embedding; and the rotary embedding runs on a CPU, on the positions that the model runner of vLLM
would give it, which tells frequencies and attention_factor.

Beside the keys of the protocol an answer has "interleaved", whether pairs are neighbours, and
"backend": "transformers" where vLLM's registry gives the model to its transformers backend.
"""

from __future__ import annotations

import gc
import inspect
import itertools
import math
import re
from typing import Any

import protocol
import vllm_stubs
from vllm_expected import BFLOAT16, EXPECTED, TIED, UNSEEN

vllm_stubs.prepare()

import torch  # noqa: E402
import transformers  # noqa: E402
import transformers_backend  # noqa: E402

vllm_stubs.in_process()
vllm_stubs.offline()
ROPES = vllm_stubs.ropes_on_cpu()
vllm_stubs.plain_operations()
vllm_stubs.plain_attention()
vllm_stubs.sparse_attention()
vllm_stubs.scalars_on_cpu()

from vllm.config import ModelConfig, VllmConfig, set_current_vllm_config  # noqa: E402
from vllm.model_executor.model_loader.utils import initialize_model  # noqa: E402
from vllm.model_executor.models import ModelRegistry  # noqa: E402

TOWERS = re.compile(r"vision|visual|audio|mtp")
LAYER = re.compile(r"^(.*\b(?:layers|h|blocks))\.(\d+)$")
NO_CONFIG = "does not recognize this architecture"
"""What transformers says of a config that it has no class for."""
COUNT = itertools.count(1)


def ask(config: dict[str, Any], question: dict[str, Any]) -> protocol.Answer:
    """The answer of vLLM to a question."""
    architecture = config["architectures"][0]
    if architecture not in ModelRegistry.get_supported_archs() and not transformers_backend.takes(
        architecture
    ):
        raise protocol.Absent(_absent(architecture))
    if architecture in UNSEEN:
        raise protocol.Unseen(UNSEEN[architecture])
    config.pop("quantization_config", None)
    for part in (config, config.get("text_config", {})):
        for key, value in EXPECTED.get(part.get("model_type"), {}).items():
            part[key] = value if part.get(key) is None else part[key]
        if part.get("model_type") in TIED:
            part["tie_word_embeddings"] = True
    _forget()
    with vllm_stubs.folder_of(config) as folder:
        try:
            dtype = "bfloat16" if architecture in BFLOAT16 else "float32"
            vllm_config = _config(folder, question["context"], dtype)
        except Exception as error:
            if NO_CONFIG in str(error):
                raise protocol.Absent(
                    f"transformers {transformers.__version__} has no config class for it"
                ) from error
            raise protocol.Refused("config", _cause(error)) from error
        with set_current_vllm_config(vllm_config):
            vllm_stubs.one_process(_has_experts(vllm_config.model_config))
            try:
                with torch.device("meta"):
                    model = initialize_model(
                        vllm_config=vllm_config, model_config=vllm_config.model_config
                    )
            except Exception as error:
                if architecture not in ModelRegistry.get_supported_archs():
                    raise protocol.Absent(_not_taken(error)) from error
                raise protocol.Refused("load", _cause(error)) from error
            if type(model).__name__.startswith("Transformers"):
                return transformers_backend.read(
                    model, _layers(model), question["context"], question["trained"]
                )
            return _read(model, vllm_config.model_config, question)


def _has_experts(config: ModelConfig) -> bool:
    if hasattr(config, "is_moe"):
        return bool(config.is_moe)
    return hasattr(config, "get_num_experts") and config.get_num_experts() > 0


def _absent(architecture: str) -> str:
    if hasattr(transformers, architecture):
        return (
            f"{architecture} is not in vLLM's registry, and its class in transformers cannot change"
            " its attention"
        )
    return (
        f"{architecture} is neither in vLLM's registry nor in transformers"
        f" {transformers.__version__}"
    )


def _not_taken(error: Exception) -> str:
    """Why the transformers backend does not run a model that vLLM has no file for."""
    return (
        f"vLLM has no file for it, and cannot run that of transformers: {protocol.message(error)}"[
            :200
        ]
    )


def _config(folder: str, context: int, dtype: str) -> VllmConfig:
    model = ModelConfig(
        model=folder,
        tokenizer=folder,
        max_model_len=context,
        dtype=dtype,
        skip_tokenizer_init=True,
        enforce_eager=True,
    )
    return VllmConfig(model_config=model)


def _cause(error: BaseException) -> BaseException:
    """The error itself, in one line: pydantic says the same in several, with the whole input."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if type(error).__name__ == "ValidationError" and len(lines) > 1:
        return ValueError(re.sub(r"^Value error, | \[type=.*", "", lines[1]))
    return error


def _read(model: torch.nn.Module, config: ModelConfig, question: dict[str, Any]) -> protocol.Answer:
    layers = _layers(model)
    if not layers:
        raise RuntimeError(f"no layers found in {type(model).__name__}")
    known: dict[int, protocol.Answer] = {}
    by_layer: list[protocol.Answer | None] = []
    more: dict[str, Any] = {}
    mrope = bool(config.uses_mrope)
    with torch.inference_mode():
        for layer in layers:
            attention = _attention(layer)
            rotary = getattr(attention, "rotary_emb", None)
            calls = _calls(attention, rotary) if rotary is not None else []
            if attention is not None:
                more.setdefault("scaling", _scaling(attention))
                more["query_scale"] = _larger(
                    more.get("query_scale"), _query_scale(attention, question["context"])
                )
            if not calls:
                by_layer.append(None)
                continue
            if id(rotary) not in known:
                known[id(rotary)] = _rope(rotary, calls[0], mrope, question)
                more["interleaved"] = not _halves(rotary, calls[0], mrope)
            by_layer.append(known[id(rotary)])
    return protocol.answer(
        by_layer, mixed=True, **{key: value for key, value in more.items() if value is not None}
    )


def _forget() -> None:
    """Frees the tables of the last model, which are as long as its context."""
    for rotary in ROPES.values():
        for name in list(rotary._buffers):
            rotary._buffers[name] = torch.empty(0)
    ROPES.clear()
    if next(COUNT) % 20 == 0:
        gc.collect()


def _layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The layers of the language model, by number."""
    stacks: dict[str, dict[int, torch.nn.Module]] = {}
    for name, module in model.named_modules():
        place = LAYER.match(name)
        if place and not TOWERS.search(name):
            stacks.setdefault(place[1], {})[int(place[2])] = module
    if not stacks:
        return []
    stack = min(stacks, key=len)
    return [stacks[stack][number] for number in sorted(stacks[stack])]


def _attention(layer: torch.nn.Module) -> Any:
    """The outermost module of a layer that has a rotary embedding, or None."""
    holders = [
        (name.count("."), module)
        for name, module in layer.named_modules()
        if hasattr(module, "rotary_emb")
    ]
    return min(holders, key=lambda holder: holder[0])[1] if holders else None


def _calls(attention: Any, rotary: torch.nn.Module) -> list[int]:
    """The number of dimensions of the query in each call of the rotary embedding in one pass of the
    attention.
    """
    calls: list[int] = []

    def record(positions: Any, query: Any, key: Any = None, *args: Any, **kwargs: Any) -> Any:
        calls.append(query.dim())
        return query, key

    def attend(query: Any, *args: Any, output_shape: Any = None, **kwargs: Any) -> Any:
        return query if output_shape is None else query.new_empty(output_shape)

    kernels = [
        m
        for m in attention.modules()
        if type(m).__name__.endswith(KERNELS) and not hasattr(m, "rotary_emb")
    ]
    hidden = _hidden_size(attention)
    given = {
        "positions": torch.zeros(2, dtype=torch.long, device="meta"),
        "hidden_states": torch.empty(2, hidden, device="meta"),
    }
    given["output"] = torch.empty_like(given["hidden_states"])
    names = inspect.signature(attention.forward).parameters
    saved = [(module, module.__dict__.get("forward")) for module in [rotary, *kernels]]
    try:
        rotary.forward = record  # type: ignore[method-assign]
        for kernel in kernels:
            kernel.forward = attend
        attention.forward(
            **{name: given.get(name) for name in names if name in given or _needed(names[name])}
        )
    finally:
        for module, forward in saved:
            if forward is None:
                module.__dict__.pop("forward", None)
            else:
                module.__dict__["forward"] = forward
    return calls


KERNELS = ("Attention", "AttentionLayer", "MLAAttention", "Indexer")


def _needed(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD


def _hidden_size(attention: Any) -> int:
    for name in ("hidden_size", "embed_dim", "hidden_dim"):
        if isinstance(getattr(attention, name, None), int):
            return int(getattr(attention, name))
    for module in attention.modules():
        if hasattr(module, "input_size"):
            return int(module.input_size)
    raise RuntimeError(f"unknown width of {type(attention).__name__}")


def _rope(rotary: Any, dimensions: int, mrope: bool, question: dict[str, Any]) -> protocol.Answer:
    """What a rotary embedding does to a query at position 1, in a short and in a long batch.

    The last position of each batch, as far as tables are made here, has to fit to it.
    """
    last = [min(question[key], vllm_stubs.ROWS) - 1 for key in ("trained", "context")]
    try:
        (short, short_end), (long, long_end) = (
            _turned(rotary, [1, end], dimensions, mrope) for end in last
        )
    except Exception as error:
        raise protocol.Refused("forward", error) from error
    for first, position, there in ((short, last[0], short_end), (long, last[1], long_end)):
        frequencies, attention_factor = protocol.from_cos_sin(*first)
        for frequency, c, s in zip(frequencies, *there, strict=True):
            angle = frequency * position
            tolerance = 2e-3 + 4e-7 * angle
            if (
                abs(c - attention_factor * math.cos(angle)) > tolerance
                or abs(s - attention_factor * math.sin(angle)) > tolerance
            ):
                raise RuntimeError(
                    f"{type(rotary).__name__} turns position {position} by other frequencies than 1"
                )
    return protocol.rope(*protocol.from_cos_sin(*long), *protocol.from_cos_sin(*short))


def _turned(
    rotary: Any, positions: list[int], dimensions: int, mrope: bool
) -> list[tuple[list[float], list[float]]]:
    """Cosines and sines, with the attention_factor, that the rotary embedding applies at positions,
    one per pair.
    """
    size = int(rotary.head_size)
    pairs = int(rotary.rotary_dim) // 2
    neox = _halves(rotary, dimensions, mrope)
    query = torch.zeros(len(positions), 1, size)
    query[..., slice(0, pairs) if neox else slice(0, 2 * pairs, 2)] = 1.0
    turned = _run(rotary, positions, query, dimensions, mrope)
    if neox:
        return [(row[:pairs].tolist(), row[pairs : 2 * pairs].tolist()) for row in turned]
    return [(row[0 : 2 * pairs : 2].tolist(), row[1 : 2 * pairs : 2].tolist()) for row in turned]


def _halves(rotary: Any, dimensions: int, mrope: bool) -> bool:
    """Whether the embedding pairs a dimension with that half a head further, not with its
    neighbour.
    """
    query = torch.zeros(2, 1, int(rotary.head_size))
    query[..., 0] = 1.0
    return bool(_run(rotary, [1, 1], query, dimensions, mrope)[0, 1] == 0)


def _run(
    rotary: Any, positions: list[int], query: torch.Tensor, dimensions: int, mrope: bool
) -> torch.Tensor:
    places = torch.tensor(positions)
    if mrope:
        places = places.expand(3, -1).contiguous()
    if dimensions == 2:
        query = query.flatten(1)
    forward = getattr(rotary, "forward_native", None) or rotary.forward
    turned: torch.Tensor = forward(places, query.clone(), query.clone())[0]
    return turned.reshape(len(positions), -1).double()


def _scaling(attention: Any) -> float | None:
    """The factor on logits that the kernel of the attention gets."""
    for module in attention.modules():
        for holder in (module, getattr(module, "impl", None)):
            scale = getattr(holder, "scale", None)
            if (
                module is not attention
                and type(module).__name__.endswith(KERNELS)
                and isinstance(scale, float)
            ):
                return scale
    scale = getattr(attention, "scaling", None)
    return float(scale) if isinstance(scale, float) else None


def _query_scale(attention: Any, context: int) -> float | None:
    """The factor on queries at the last position, for attentions that have one (Llama 4, Ministral
    3).
    """
    positions = torch.tensor([context - 1])
    if getattr(attention, "attn_temperature_tuning", False) and getattr(attention, "nope", False):
        return float(attention._get_attn_scale(positions))
    if getattr(attention, "do_llama_4_scaling", False):
        return float(attention._get_llama_4_attn_scale(positions))
    return None


def _larger(left: float | None, right: float | None) -> float | None:
    return left if right is None else right if left is None else max(left, right)


if __name__ == "__main__":
    protocol.main(ask)
