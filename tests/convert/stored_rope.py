"""Measures a checkpoint with stored frequencies against its source, patched at run time. A program
of its own: it imports nothing of ropeconv, so that any version of transformers on PYTHONPATH can be
asked.

`python stored_rope.py SOURCE BAKED '{"inv_freq": [...], "attention_factor": a, "log_n": {"kind": k, "length": L}}'`
prints a line of JSON: the largest difference of all logits in standard deviations, of BAKED and of
SOURCE as it is.
"""

import json
import math
import sys
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM

DTYPE = "dtype" if int(transformers.__version__.split(".")[0]) >= 5 else "torch_dtype"


def load(folder: str) -> Any:
    given = {DTYPE: torch.float32, "attn_implementation": "eager", "trust_remote_code": True}
    return AutoModelForCausalLM.from_pretrained(folder, **given).eval()


def patched(folder: str, schedule: dict[str, Any]) -> Any:
    """The stock model with other buffers, and queries scaled where they leave their projection or
    norm.
    """
    model = load(folder)
    rule = schedule["log_n"]
    inputs = {}
    rotary = model.model.rotary_emb
    rotary.inv_freq = torch.tensor(schedule["inv_freq"], dtype=torch.float32)
    rotary.original_inv_freq = rotary.inv_freq.clone()
    rotary.attention_scaling = schedule["attention_factor"]
    rotary.rope_type = "default"
    if rule is None:
        return model
    rotary.register_forward_pre_hook(
        lambda module, args, given: inputs.update(
            p=given["position_ids"] if "position_ids" in given else args[1]
        ),
        with_kwargs=True,
    )

    def scale(module: Any, args: Any, queries: torch.Tensor) -> torch.Tensor:
        factor = torch.log(inputs["p"].double() + 1) / math.log(rule["length"])
        factor = factor.clamp(min=1) if rule["kind"] == "clamped" else factor
        return (queries * factor.reshape(*factor.shape, *[1] * (queries.dim() - 2))).to(
            queries.dtype
        )

    for layer in model.model.layers:
        attention = layer.self_attn
        (
            attention.q_norm if hasattr(attention, "q_norm") else attention.q_proj
        ).register_forward_hook(scale)
    return model


@torch.no_grad()
def main() -> None:
    source = sys.argv[1]
    baked = sys.argv[2]
    schedule = json.loads(sys.argv[3])
    ids = torch.randint(4, 300, (1, 256), generator=torch.Generator().manual_seed(0))
    models = patched(source, schedule), load(baked), load(source)
    reference, *others = (model(input_ids=ids, use_cache=False).logits[0] for model in models)
    print(
        json.dumps([((reference - other).abs().max() / reference.std()).item() for other in others])
    )


if __name__ == "__main__":
    main()
