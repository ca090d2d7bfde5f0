"""Packets in vLLM on a CPU, in float32. Its log-probabilities of all tokens stand for logits."""

import gc
import json
import os
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

import numpy as np
from answering import Logits, answer


def version() -> str:
    """Return names and versions."""
    try:
        return f"vllm-cpu {installed('vllm-cpu')}"
    except PackageNotFoundError:
        return f"vllm {installed('vllm')}"


def open_model(packet: Path) -> Logits:
    """Return log-probabilities of a packet's model."""
    from vllm import LLM, SamplingParams

    data = json.loads((packet / "packet.json").read_text(encoding="utf-8"))
    vocabulary = data["vocabulary"]
    gc.collect()
    model = LLM(
        str(packet / "model"),
        dtype="float32",
        max_model_len=data["declared"],
        max_logprobs=vocabulary,
        enforce_eager=True,
        enable_prefix_caching=False,
    )
    sampling = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=vocabulary)

    def logits(ids: list[int]) -> object:
        (done,) = model.generate([{"prompt_token_ids": ids}], sampling, use_tqdm=False)
        table = np.zeros((len(ids), vocabulary), np.float32)
        # the record of a token has what was predicted before it, and the first one has none
        for row, records in enumerate(done.prompt_logprobs[1:]):
            for token, record in records.items():
                table[row, token] = record.logprob
        return table

    return logits


answer(version, open_model, once=True)
