"""Several processes that share one model by tensor parallelism, as `torchrun` starts them.

https://huggingface.co/docs/transformers/perf_infer_gpu_multi (`tp_plan="auto"`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ...errors import RopeconvError
from ...families import Family
from ...families.config import text_part


def world_size() -> int:
    """Number of processes; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main_process() -> bool:
    """Whether this is the process of rank 0, the only one that prints and writes files."""
    return int(os.environ.get("RANK", "0")) == 0


def any_rank(stopped: Callable[[], bool]) -> Callable[[], bool]:
    """A function that returns True in all processes where `stopped` does in any of them."""
    if world_size() == 1:
        return stopped

    def any_stopped() -> bool:
        import torch

        device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else "cpu"
        said = torch.tensor([int(stopped())], device=device)
        torch.distributed.all_reduce(said, torch.distributed.ReduceOp.MAX)
        return bool(said.item())

    return any_stopped


def tp_kwargs() -> dict[str, Any]:
    """The arguments with which `from_pretrained` loads a part of every layer in each process."""
    try:
        from transformers.distributed import DistributedConfig

        return {"distributed_config": DistributedConfig(tp_plan="auto")}
    except (ImportError, TypeError):  # before transformers 5
        return {"tp_plan": "auto"}


def check_heads(config: dict[str, Any], family: Family) -> None:
    """Raises RopeconvError where the number of processes does not divide the heads of a model.

    config: config.json. family: of the model.
    """
    part = text_part(config, family)
    for name in ("num_attention_heads", "num_key_value_heads"):
        count = part.get(name)
        if isinstance(count, int) and count % world_size():
            raise RopeconvError(
                f"{count} {name} cannot be shared by {world_size()} processes; start torchrun with --nproc-per-node "
                "that divides them, or use --device-map auto without torchrun"
            )
