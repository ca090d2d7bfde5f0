"""Has llama.cpp make a tiny GGUF file, or read several in turn, in a process of its own since it
ends that on bad ones.

Reads a job as JSON from stdin. With `keys`: writes the file `path` of `arch` with random weights
for every tensor that llama.cpp asks for (llama_model_init_from_user). With `variants`: writes to
`path` (.npz) for each, by its name, what llama.cpp computes for `tokens` at the last 32 of them,
float32 [32, width], from the file `path` with `overrides` of its keys; nothing for a file that it
does not load: the logits, or with `hidden` the hidden state. A variant may have `positions`, four
for each token (M-RoPE); tokens are then given by their rows of token_embd.weight. With `whole`,
every position is answered.
"""

import ctypes
import json
import math
import sys
import zlib
from pathlib import Path
from typing import Any

import gguf
import llama_cpp as llama
import numpy as np

from ropeconv.engines.llamacpp_program import overrides

from .gguf_files import close

KEPT = 32
WHOLE = ("general.", "tokenizer.", "xielu.")


def write(
    path: Path, arch: str, keys: dict[str, Any], tensors: dict[str, np.ndarray[Any, Any]]
) -> None:
    """A GGUF file by gguf-py. keys: by their names without `ARCH.`."""
    writer = gguf.GGUFWriter(path, arch)
    types = gguf.GGUFValueType
    for key, value in keys.items():
        name = key if key.startswith(WHOLE) else f"{arch}.{key}"
        if isinstance(value, list):
            whole = types.UINT32 if isinstance(value[0], int) else None
            writer.add_key_value(name, value, types.ARRAY, whole)
        else:
            kind = {bool: types.BOOL, int: types.UINT32, float: types.FLOAT32, str: types.STRING}[
                type(value)
            ]
            writer.add_key_value(name, value, kind)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    close(writer)


def weights(name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Numbers of a tensor, the same every time: large enough in matrices for attention to depend on
    positions.
    """
    drawn = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(
        shape, dtype=np.float32
    )
    if name.startswith("rope_f"):
        return np.ones(shape, np.float32)
    if "ssm_a" in name:
        return -np.abs(drawn)
    if name.endswith("bias"):
        return 0.1 * drawn
    if len(shape) == 1 or "norm" in name:
        return 1 + 0.2 * drawn
    return drawn * np.float32(1.5 / math.sqrt(shape[-1]))


class InitParams(ctypes.Structure):
    """gguf_init_params of gguf.h."""

    _fields_ = (("no_alloc", ctypes.c_bool), ("context", ctypes.c_void_p))


def make(path: Path, arch: str, keys: dict[str, Any]) -> None:
    """Writes the file. Raises RuntimeError where llama.cpp does not take the keys."""
    described = path.with_suffix(".keys")
    write(described, arch, keys, {})
    base = ctypes.CDLL(str(next((Path(llama.__file__).parent / "lib").glob("libggml-base.so"))))
    base.gguf_init_from_file.restype = ctypes.c_void_p
    base.gguf_init_from_file.argtypes = [
        ctypes.c_char_p,
        InitParams,
    ]
    base.ggml_get_name.restype = ctypes.c_char_p
    base.ggml_get_name.argtypes = [ctypes.c_void_p]
    base.ggml_n_dims.argtypes = [ctypes.c_void_p]
    base.ggml_backend_tensor_set.argtypes = [
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_size_t,
    ]
    tensors: dict[str, np.ndarray[Any, Any]] = {}

    def fill(tensor: int, _: int) -> None:
        name = base.ggml_get_name(tensor).decode()
        sizes = (ctypes.c_int64 * 4).from_address(tensor + 16)  # ggml_tensor.ne
        array = weights(name, tuple(reversed(sizes[: base.ggml_n_dims(tensor)]))).astype(np.float32)
        base.ggml_backend_tensor_set(tensor, array.ctypes.data, 0, array.nbytes)
        if not name.endswith("scale") and (arch == "gemma4" or not name.startswith("rope_f")):
            tensors[name] = array

    llama.llama_backend_init()
    settings = llama.llama_model_default_params()
    settings.n_gpu_layers = 0
    given = base.gguf_init_from_file(str(described).encode(), InitParams(True, None))
    model = llama.llama_model_init_from_user(
        given, llama.llama_model_set_tensor_data_t(fill), None, settings
    )
    if not model:
        raise RuntimeError(f"llama.cpp makes no model of {arch}")
    described.unlink()
    write(path, arch, keys, tensors)


def read(variant: dict[str, Any], tokens: list[int]) -> np.ndarray[Any, Any] | None:
    """The answer to a variant; None where llama.cpp does not load the file."""
    settings = llama.llama_model_default_params()
    settings.n_gpu_layers = 0
    replaced = overrides(llama, variant.get("overrides", {}))
    if variant.get("overrides"):
        settings.kv_overrides = ctypes.cast(replaced, type(settings.kv_overrides))
    model = llama.llama_model_load_from_file(variant["path"].encode(), settings)
    if not model:
        return None
    answer = _run(model, tokens, variant)
    llama.llama_model_free(model)
    return answer


def _run(model: Any, tokens: list[int], variant: dict[str, Any]) -> np.ndarray[Any, Any]:
    """What a model computes at the last positions."""
    settings = llama.llama_context_default_params()
    count = len(tokens)
    positions = variant.get("positions")
    settings.n_ctx = 256
    settings.n_batch = count
    settings.n_ubatch = count
    settings.type_k = settings.type_v = 0
    settings.flash_attn_type, settings.swa_full = 0, True
    settings.n_threads = settings.n_threads_batch = 1
    settings.pooling_type = 0
    settings.embeddings = bool(variant.get("hidden"))
    context = llama.llama_init_from_model(model, settings)
    width = llama.llama_model_n_embd(model)
    batch = llama.llama_batch_init(count, width if positions else 0, 1)
    batch.n_tokens = count
    sections = (ctypes.c_int32 * (4 * count))(
        *(position for section in positions or [] for position in section)
    )
    if positions:
        batch.pos = sections
        rows = next(
            item
            for item in gguf.GGUFReader(variant["path"]).tensors
            if item.name == "token_embd.weight"
        ).data
        given = np.ascontiguousarray(rows[tokens], np.float32)
        ctypes.memmove(batch.embd, given.ctypes.data, given.nbytes)
    for index, token in enumerate(tokens):
        if not positions:
            batch.token[index], batch.pos[index] = token, index
        batch.n_seq_id[index], batch.seq_id[index][0], batch.logits[index] = 1, 0, True
    if llama.llama_decode(context, batch) != 0:
        raise RuntimeError("llama.cpp does not decode the sequence")
    answer = llama.llama_get_logits_ith
    vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    if variant.get("hidden"):
        answer = llama.llama_get_embeddings_ith
        vocabulary = width
    first = 0 if variant.get("whole") else count - KEPT
    outputs = [_row(answer(context, row), vocabulary) for row in range(first, count)]
    llama.llama_free(context)
    return np.stack(outputs)


def _row(pointer: Any, width: int) -> np.ndarray[Any, Any]:
    return (
        np.ctypeslib.as_array(pointer, (width,)).copy() if pointer else np.zeros(width, np.float32)
    )


def main() -> None:
    job = json.load(sys.stdin)
    if "keys" in job:
        make(Path(job["path"]), job["arch"], job["keys"])
        return
    answers = {name: read(variant, job["tokens"]) for name, variant in job["variants"].items()}
    np.savez(
        job["path"], **{name: answer for name, answer in answers.items() if answer is not None}
    )


if __name__ == "__main__":
    main()
