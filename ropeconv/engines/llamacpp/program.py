"""A program that runs a GGUF file in llama.cpp, in its own process since llama.cpp ends that on some bad files.

Reads one job as JSON from stdin: `path`, `tokens`, `overrides` ({key: [type, value]}), `threads`, `out`; and either
`wanted` (positions whose logits are written, float32 [len(wanted), vocabulary]) or `generate` (how many tokens greedy
decoding generates, int64). The answer is written to `out` as .npy. Keys and values are cached in F32, without flash
attention, and window layers keep the whole context.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

BATCH = 512
TAGS = {"int": 0, "float": 1, "bool": 2, "str": 3}


def overrides(llama: Any, wanted: dict[str, list[Any]]) -> Any:
    """A ctypes array of llama_model_kv_override that ends with an empty key. wanted: [type, value] by key."""
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


class Session:
    """A loaded model with a context.

    llama: the module llama_cpp. context, batch: its pointers. size: tokens per batch. width: size of the vocabulary.
    """

    def __init__(self, llama: Any, context: Any, batch: Any, size: int, width: int) -> None:
        self.llama, self.context, self.batch, self.size, self.width = llama, context, batch, size, width

    def ends(self, token: int) -> bool:
        """Whether a token ends generation."""
        vocabulary = self.llama.llama_model_get_vocab(self.llama.llama_get_model(self.context))
        return bool(self.llama.llama_vocab_is_eog(vocabulary, token))

    def decode(self, tokens: list[int], first: int, wanted: set[int]) -> Iterator[Any]:
        """Reads tokens, and yields the logits at some positions, float32 [vocabulary], in rising order.

        tokens: to read. first: the position of the first. wanted: positions. A row is valid until the next one is
        requested. Raises RuntimeError where llama.cpp refuses.
        """
        import numpy as np

        for start in range(0, len(tokens), self.size):
            part, batch = tokens[start : start + self.size], self.batch
            batch.n_tokens = len(part)
            for index, token in enumerate(part):
                batch.token[index], batch.pos[index] = token, first + start + index
                batch.n_seq_id[index], batch.seq_id[index][0] = 1, 0
                batch.logits[index] = first + start + index in wanted
            if self.llama.llama_decode(self.context, batch) != 0:
                raise RuntimeError("llama.cpp does not decode the sequence")
            for index in range(len(part)):
                if first + start + index in wanted:
                    yield np.ctypeslib.as_array(self.llama.llama_get_logits_ith(self.context, index), (self.width,))


@contextmanager
def session(job: dict[str, Any], length: int) -> Iterator[Session]:
    """Loads the model of a job with a context for `length` tokens. Raises RuntimeError where llama.cpp refuses."""
    import llama_cpp as llama

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
    settings.n_ctx = (max(length, 32) + 255) // 256 * 256
    settings.n_batch = settings.n_ubatch = min(BATCH, settings.n_ctx)
    settings.type_k = settings.type_v = 0
    settings.flash_attn_type = 0
    settings.swa_full = True
    settings.n_threads = settings.n_threads_batch = job.get("threads", 2)
    context = llama.llama_init_from_model(model, settings)
    if not context:
        raise RuntimeError("llama.cpp does not make a context for the model")
    width = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    yield Session(llama, context, llama.llama_batch_init(settings.n_batch, 0, 1), settings.n_batch, width)
    llama.llama_free(context)
    llama.llama_model_free(model)


def logits(job: dict[str, Any]) -> Any:
    """The answer to a job with `wanted`: logits, float32 [len(wanted), vocabulary]."""
    import numpy as np

    wanted = set(job["wanted"])
    with session(job, len(job["tokens"])) as running:
        rows = np.empty((len(wanted), running.width), np.float32)
        for index, row in enumerate(running.decode(job["tokens"], 0, wanted)):
            rows[index] = row
    return rows


def generated(job: dict[str, Any]) -> Any:
    """The answer to a job with `generate`: the next tokens of greedy decoding, int64 [generate]."""
    import numpy as np

    tokens, found = job["tokens"], list[int]()
    with session(job, len(tokens) + job["generate"]) as running:
        given, first = tokens, 0
        while len(found) < job["generate"]:
            last = first + len(given) - 1
            (row,) = running.decode(given, first, {last})
            found.append(int(row.argmax()))
            if running.ends(found[-1]):
                break
            given, first = found[-1:], last + 1
    return np.array(found, np.int64)


def main() -> None:
    """Reads the job from stdin and writes the answer."""
    import numpy as np

    job = json.load(sys.stdin)
    np.save(job["out"], generated(job) if "generate" in job else logits(job))


if __name__ == "__main__":
    main()
