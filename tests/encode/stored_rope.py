"""Measures a checkpoint with stored frequencies against its source, patched at run time. A program of its own: it
imports nothing of ropeconv, so that any version of transformers on PYTHONPATH can be asked.

`python stored_rope.py SOURCE BAKED '{"inv_freq": [...], "attention_factor": a, "log_n": {"kind": k, "length": L}}'`
prints a line of JSON; differences are the largest of all logits, in standard deviations.
"""

import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModel, AutoModelForCausalLM

TOKENS, STEPS = 256, 40
NEW = int(transformers.__version__.split(".")[0]) >= 5


def load(folder: str, attention: str = "eager", dtype: Any = torch.float32, auto: Any = AutoModelForCausalLM) -> Any:
    given = {"dtype" if NEW else "torch_dtype": dtype, "attn_implementation": attention}
    return auto.from_pretrained(folder, trust_remote_code=True, **given).eval()


def patched(folder: str, wanted: dict[str, Any]) -> Any:
    """The stock model with other buffers, and queries scaled where they leave their projection or norm."""
    model = load(folder)
    rotary = model.model.rotary_emb
    rotary.inv_freq = torch.tensor(wanted["inv_freq"], dtype=torch.float32)
    rotary.original_inv_freq = rotary.inv_freq.clone()
    rotary.attention_scaling, rotary.rope_type = wanted["attention_factor"], "default"
    rule, seen = wanted["log_n"], {}
    if rule is None:
        return model
    rotary.register_forward_pre_hook(
        lambda module, args, given: seen.update(p=given["position_ids"] if "position_ids" in given else args[1]),
        with_kwargs=True,
    )

    def scale(module: Any, args: Any, queries: torch.Tensor) -> torch.Tensor:
        factor = torch.log(seen["p"].double() + 1) / math.log(rule["length"])
        factor = factor.clamp(min=1) if rule["kind"] == "clamped" else factor
        return (queries * factor.reshape(*factor.shape, *[1] * (queries.dim() - 2))).to(queries.dtype)

    for layer in model.model.layers:
        attention = layer.self_attn
        (attention.q_norm if hasattr(attention, "q_norm") else attention.q_proj).register_forward_hook(scale)
    return model


@torch.no_grad()
def logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    return model(input_ids=ids, use_cache=False).logits[0]


@torch.no_grad()
def stepwise(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """A prompt, and then one token after the other through the cache."""
    out = model(input_ids=ids[:, :-STEPS], use_cache=True)
    found = [out.logits[0]]
    for at in range(ids.shape[1] - STEPS, ids.shape[1]):
        out = model(input_ids=ids[:, at : at + 1], past_key_values=out.past_key_values, use_cache=True)
        found.append(out.logits[0])
    return torch.cat(found)


def generated(model: Any, **cache: Any) -> torch.Tensor:
    """A few greedy tokens for two prompts, one of them padded on the left."""
    prompts = torch.randint(4, 300, (2, 100), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(prompts)
    mask[0, :20] = 0
    return model.generate(prompts, attention_mask=mask, max_new_tokens=8, do_sample=False, pad_token_id=0, **cache)


def main() -> None:
    source, baked, wanted = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    ids = torch.randint(4, 300, (1, TOKENS), generator=torch.Generator().manual_seed(0))
    reference, stock = logits(patched(source, wanted), ids), load(source)
    spread = reference.std()

    def apart(other: torch.Tensor) -> float:
        return ((reference - other).abs().max() / spread).item()

    model = load(baked)
    stored = torch.tensor(wanted["inv_freq"], dtype=torch.float32)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        names = sorted(path.name for path in Path(folder).iterdir())
        again = apart(logits(load(folder), ids))
    plain = generated(model, use_cache=False)
    same = [torch.equal(plain, generated(model, **cache)) for cache in ({}, {"cache_implementation": "static"})]
    headless = load(baked, auto=AutoModel).rotary_emb.inv_freq
    low, cast = load(baked, dtype=torch.bfloat16), load(baked).to(torch.bfloat16)
    breaks = {}
    for name, candidate in (("stock", stock), ("baked", model)):
        torch._dynamo.reset()
        breaks[name] = torch._dynamo.explain(candidate)(input_ids=ids, use_cache=False).graph_break_count
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager")
    answer = {
        "transformers": transformers.__version__,
        "control": apart(logits(stock, ids)),
        "eager": apart(logits(model, ids)),
        "sdpa": apart(logits(load(baked, "sdpa"), ids)),
        "stepwise": apart(stepwise(model, ids)),
        "compiled": apart(logits(compiled, ids)),
        "saved": again,
        "generates": all(same),
        "saved_code": "modeling_stored_rope.py" in names,
        "breaks": breaks,
        "kept": all(
            frequencies.dtype == torch.float32 and torch.equal(frequencies, stored)
            for frequencies in (headless, low.model.rotary_emb.inv_freq, cast.model.rotary_emb.inv_freq)
        ),
        "low_precision_is_finite": bool(logits(low, ids).isfinite().all() and logits(cast, ids).isfinite().all()),
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
