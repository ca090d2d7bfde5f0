"""What differs between versions of SGLang: how its world of one rank is started, and some model
files' own ways.
"""

from __future__ import annotations

from typing import Any

import torch


class Group:
    """A process group of one rank: what the constructors of models ask of one."""

    world_size = 1
    rank_in_group = rank = local_rank = 0
    is_first_rank = is_last_rank = True
    unique_name = "lab"
    ranks = (0,)
    first_rank = last_rank = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments, **_: arguments[0] if arguments else None


def start() -> None:
    """Publish default server arguments for a GPU, and replace the distributed groups.

    Groups of one rank take their place.
    """
    from sglang.srt.distributed import parallel_state
    from sglang.srt.layers import dp_attention

    try:
        from sglang.srt import runtime_context
    except ImportError:
        # earlier releases keep the arguments in a global
        from sglang.srt import server_args

        arguments = server_args.ServerArgs(model_path="dummy", device="cuda")
        server_args.set_global_server_args_for_scheduler(arguments)
    else:
        arguments = runtime_context.get_context().override_server_args().install()
        if hasattr(runtime_context, "SpawnRanks"):
            ranks = runtime_context.SpawnRanks(world_rank=0, gpu_id=0)
            runtime_context.publish(arguments, role="scheduler", ranks=ranks)
            names = "tp pp attn_tp attn_cp moe_ep moe_tp moe_dp dcp world".split()
            groups = {f"{name}_group": Group() for name in names}
            runtime_context.get_parallel().override_permanently(**groups)

    for name in "WORLD TP PP ATTN_TP ATTN_CP MOE_EP MOE_TP MOE_DP DCP SELF_PP".split():
        if hasattr(parallel_state, f"_{name}"):
            setattr(parallel_state, f"_{name}", Group())

    # of attentions, before 0.5.20
    for name, value in {"DP_SIZE": 1, "DP_RANK": 0, "TP_SIZE": 1, "TP_RANK": 0}.items():
        if hasattr(dp_attention, f"_ATTN_{name}"):
            setattr(dp_attention, f"_ATTN_{name}", value)


def build(model_class: Any, parsed: Any) -> torch.nn.Module:
    """The model of a parsed config, as the loader of SGLang makes it."""
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.model_loader.loader import _initialize_model

    if model_class.__name__.startswith("Transformers"):
        model_class._init_parameters = lambda *_: None  # it puts the weights on a GPU
    return _initialize_model(parsed, LoadConfig(load_format="dummy"))


def planes(parsed: Any) -> int:
    """The rows of position ids for M-RoPE, 0 for other models; in 0.5.10 the runner of the model
    looks for sections.
    """
    text = parsed.hf_text_config
    scaling = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    return 3 if getattr(parsed, "model_is_mrope", "mrope_section" in scaling) else 0


LOCAL = {"afmoe": ("is_local_attention",), "cohere2_moe": ("is_sliding", "force_rope")}
"""Attributes of attentions that rotate only where one of them is true, by model file."""


def rotates(attention: Any) -> bool:
    """Whether a layer rotates where a model file has a condition of its own in the forward of its
    attention.
    """
    module = type(attention).__module__.rpartition(".")[2]
    if module == "commandr":
        return bool(attention.v1 or attention.sliding_window_size > 0)
    if module in LOCAL:
        return any(getattr(attention, name) for name in LOCAL[module])
    if module == "exaone4":
        return bool(not attention.sliding_window_pattern or attention.is_sliding)
    return True


def query_scale(layers: list[torch.nn.Module], position: int) -> dict[str, float]:
    """Return the factor on queries at a position as {"query_scale": 1.1}; {} for layers without.

    Llama 4 and Ministral 3 have one.
    """
    place = torch.tensor([position], device="cpu")
    for layer in layers:
        attention: Any = getattr(layer, "self_attn", None)
        if getattr(attention, "llama_4_scaling_beta", None) is not None:
            from sglang.srt.models import ministral3

            beta = attention.llama_4_scaling_beta
            length = attention.max_position_embeddings
            return {"query_scale": float(ministral3._get_llama_4_attn_scale(place, beta, length))}
        if getattr(attention, "attn_temperature_tuning", False) and not attention.use_rope:
            return {"query_scale": float(attention._get_attn_scale(place))}
    return {}
