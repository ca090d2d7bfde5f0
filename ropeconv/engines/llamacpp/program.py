"""Computes logits with llama.cpp. A program of its own, because llama.cpp ends the process on some bad files.

Reads one job as JSON from stdin and writes logits, float32 [len(wanted), vocabulary], to `job["out"]` as .npy:
`path`, `tokens`, `wanted` (positions whose logits are kept), `overrides` ({key: [type, value]}), `threads`.
Keys and values are cached in F32, without flash attention, and window layers keep the whole context.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

BATCH = 512
TAGS = {"int": 0, "float": 1, "bool": 2, "str": 3}


def overrides(llama: Any, wanted: dict[str, list[Any]]) -> Any:
    """A null-terminated array of llama_model_kv_override."""
    found = (llama.llama_model_kv_override * (len(wanted) + 1))()
    for entry, (key, (kind, value)) in zip(found, wanted.items(), strict=False):
        entry.tag, entry.key = TAGS[kind], key.encode()
        union = entry.value
        if kind == "int":
            union.val_i64 = int(value)
        elif kind == "float":
            union.val_f64 = float(value)
        elif kind == "bool":
            union.val_bool = bool(value)
        else:
            data = str(value).encode()
            ctypes.memmove(ctypes.addressof(union), data + b"\0", len(data) + 1)
    found[len(wanted)].key = b""
    return found


def logits(job: dict[str, Any]) -> Any:
    """Logits at the wanted positions of one sequence. Raises RuntimeError where llama.cpp refuses."""
    import llama_cpp as llama
    import numpy as np

    tokens, wanted = job["tokens"], set(job["wanted"])
    llama.llama_backend_init()
    model_settings = llama.llama_model_default_params()
    model_settings.n_gpu_layers = 0
    kept = overrides(llama, job.get("overrides", {}))
    if job.get("overrides"):
        model_settings.kv_overrides = ctypes.cast(kept, type(model_settings.kv_overrides))
    model = llama.llama_model_load_from_file(job["path"].encode(), model_settings)
    if not model:
        raise RuntimeError("llama.cpp does not load the model")
    settings = llama.llama_context_default_params()
    settings.n_ctx = (max(len(tokens), 32) + 255) // 256 * 256
    settings.n_batch = settings.n_ubatch = min(BATCH, settings.n_ctx)
    settings.type_k = settings.type_v = 0
    settings.flash_attn_type = 0
    settings.swa_full = True
    settings.n_threads = settings.n_threads_batch = job.get("threads", 2)
    context = llama.llama_init_from_model(model, settings)
    if not context:
        raise RuntimeError("llama.cpp does not make a context for the model")
    width = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    rows = np.empty((len(wanted), width), np.float32)
    batch, done = llama.llama_batch_init(settings.n_batch, 0, 1), 0
    for start in range(0, len(tokens), settings.n_batch):
        part = tokens[start : start + settings.n_batch]
        batch.n_tokens = len(part)
        for index, token in enumerate(part):
            batch.token[index], batch.pos[index] = token, start + index
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, 0
            batch.logits[index] = start + index in wanted
        if llama.llama_decode(context, batch) != 0:
            raise RuntimeError("llama.cpp does not decode the sequence")
        for index in range(len(part)):
            if start + index in wanted:
                found = llama.llama_get_logits_ith(context, index)
                rows[done] = np.ctypeslib.as_array(found, (width,))
                done += 1
    llama.llama_free(context)
    llama.llama_model_free(model)
    return rows


def main() -> None:
    """Does the job on stdin."""
    import numpy as np

    job = json.load(sys.stdin)
    np.save(job["out"], logits(job))


if __name__ == "__main__":
    main()
