"""Runs an EAGLE-3 head in vLLM and SGLang: as published, extended with its target, and with the
factor of its target.

    python -m scripts.laboratory.drafts [vllm|sglang [VERSION]]

It prints what `ropeconv/runtimes/drafts.toml` states as executed: the frequencies of the head,
compared with the schedule, the positions in its table of cos and sin, and the tokens that the
server serves with the pair.
"""

import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from ropeconv.bake.apply import make_plan
from ropeconv.bake.companions import draft_plan, paired
from ropeconv.bake.plan import Plan
from ropeconv.convert.target import Target
from ropeconv.models.open import open_source
from ropeconv.rope.methods.interpolation import YarnMethod
from ropeconv.rope.recipe import Recipe

from .execute import run
from .runtimes import sglang, vllm

SIZES = {
    "hidden_size": 64,
    "head_dim": 16,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "model_type": "llama",
}
TARGET = SIZES | {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 8,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
}
HEAD = SIZES | {
    "architectures": ["LlamaForCausalLMEagle3"],
    "num_hidden_layers": 1,
    "max_position_embeddings": 2048,
    "draft_vocab_size": 128,
}
"""As https://github.com/sgl-project/SpecForge/blob/main/configs/llama3-8B-eagle3.json, but
small.
"""


def planned(config: dict[str, Any], folder: Path, draft: bool = False) -> Plan:
    """The plan of four times the context for a config, written into a folder."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    source = open_source(str(folder / "config.json"))
    source.as_draft = draft
    return make_plan(source, Recipe(YarnMethod(4.0)), Target(out=folder / "out"))


def main(name: str = "", version: str = "") -> None:
    """Run the servers and print a line for each config of the head.

    Args:
        name: The server; empty for both.
        version: Its version; empty for the newest.
    """
    with tempfile.TemporaryDirectory() as folder:
        target = paired(planned(TARGET, Path(folder) / "target"))
        factor = planned(HEAD, Path(folder) / "head", draft=True)
        head = draft_plan(str(Path(folder) / "head" / "config.json"), target)
    configs = {
        "as published": HEAD,
        "with --draft": head.result.config,
        "factor of the target": factor.result.config,
    }
    common = {"target": target.result.config, "trained": 2048, "context": target.schedule.context}
    questions = [
        {"id": label, "label": label, "config": config, **common}
        for label, config in configs.items()
    ]
    for runtime in (vllm.RUNTIME, sglang.RUNTIME):
        if name not in ("", runtime.name):
            continue
        program = dataclasses.replace(runtime, program=f"{runtime.name}_draft")
        answers = run(program, version or runtime.versions[-1], questions)
        for label, answer in answers.items():
            if "ropes" not in answer:
                print(f"{runtime.name} {label}: {answer}")
                continue
            ratio = np.array(answer["ropes"][0]["inv_freq"]) / head.schedule.inv_freq
            deviation = np.abs(ratio - 1).max()
            print(
                f"{runtime.name} {label}: frequencies within {deviation:.1g} of the"
                f" schedule, {answer['rows']:,} positions, {answer['served']:,} tokens served"
            )
            if "refused" in answer:
                reason, _, _ = answer["refused"].partition(". ")
                print(f"  only where longer contexts are allowed; else {reason}")


if __name__ == "__main__":
    main(*sys.argv[1:])
