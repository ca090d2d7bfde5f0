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
    """Write a GGUF file with gguf-py. keys: by their names without `ARCH.`."""
    types = gguf.GGUFValueType
    type_of = {bool: types.BOOL, int: types.UINT32, float: types.FLOAT32, str: types.STRING}

    writer = gguf.GGUFWriter(path, arch)
    for key, value in keys.items():
        name = key if key.startswith(WHOLE) else f"{arch}.{key}"
        if isinstance(value, list):
            type_of_items = types.UINT32 if isinstance(value[0], int) else None
            writer.add_key_value(name, value, types.ARRAY, type_of_items)
        else:
            writer.add_key_value(name, value, type_of[type(value)])
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
    """Write a GGUF file with the tensors that llama.cpp asks for when it is given the keys.

    Raises:
        RuntimeError: llama.cpp makes no model of the keys.
    """
    ggml = _load_ggml()
    tensors: dict[str, np.ndarray[Any, Any]] = {}

    def fill(tensor: int, _: int) -> None:
        """Give one tensor its numbers; llama.cpp calls this for each that the model needs."""
        name = ggml.ggml_get_name(tensor).decode()
        sizes = (ctypes.c_int64 * 4).from_address(tensor + 16)  # ggml_tensor.ne
        shape = tuple(reversed(sizes[: ggml.ggml_n_dims(tensor)]))
        array = weights(name, shape).astype(np.float32)
        ggml.ggml_backend_tensor_set(tensor, array.ctypes.data, 0, array.nbytes)

        # the file does not get scales, nor the divisors of frequencies (rope_freqs) but in Gemma 4
        is_scale = name.endswith("scale")
        is_divisor = name.startswith("rope_f") and arch != "gemma4"
        if not is_scale and not is_divisor:
            tensors[name] = array

    # llama.cpp reads a file with the keys only, and builds the model from them
    keys_only = path.with_suffix(".keys")
    write(keys_only, arch, keys, {})
    llama.llama_backend_init()
    settings = llama.llama_model_default_params()
    settings.n_gpu_layers = 0
    given = ggml.gguf_init_from_file(str(keys_only).encode(), InitParams(True, None))
    model = llama.llama_model_init_from_user(
        given, llama.llama_model_set_tensor_data_t(fill), None, settings
    )
    if not model:
        raise RuntimeError(f"llama.cpp makes no model of {arch}")
    keys_only.unlink()
    write(path, arch, keys, tensors)


def _load_ggml() -> ctypes.CDLL:
    """The library of llama-cpp-python with the functions of ggml.h and gguf.h."""
    folder = Path(llama.__file__).parent / "lib"
    ggml = ctypes.CDLL(str(next(folder.glob("libggml-base.so"))))
    ggml.gguf_init_from_file.restype = ctypes.c_void_p
    ggml.gguf_init_from_file.argtypes = [ctypes.c_char_p, InitParams]
    ggml.ggml_get_name.restype = ctypes.c_char_p
    ggml.ggml_get_name.argtypes = [ctypes.c_void_p]
    ggml.ggml_n_dims.argtypes = [ctypes.c_void_p]
    ggml.ggml_backend_tensor_set.argtypes = [
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_size_t,
    ]
    return ggml


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
    """What a model computes at the last positions, float32 [positions, width].

    Args:
        model: The model, as llama.cpp has loaded it.
        tokens: The tokens that it reads.
        variant: `hidden`, `whole` and `positions`, as the module explains them.
    """
    gives_hidden_states = bool(variant.get("hidden"))
    context = llama.llama_init_from_model(
        model, _context_settings(len(tokens), gives_hidden_states)
    )
    positions = variant.get("positions")
    if positions:
        batch = _batch_of_embeddings(Path(variant["path"]), tokens, positions)
    else:
        batch = _batch_of_tokens(tokens)
    if llama.llama_decode(context, batch) != 0:
        raise RuntimeError("llama.cpp does not decode the sequence")

    if gives_hidden_states:
        output_at = llama.llama_get_embeddings_ith
        width = llama.llama_model_n_embd(model)
    else:
        output_at = llama.llama_get_logits_ith
        width = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    first = 0 if variant.get("whole") else len(tokens) - KEPT
    outputs = [_row(output_at(context, index), width) for index in range(first, len(tokens))]
    llama.llama_free(context)
    return np.stack(outputs)


def _context_settings(count: int, gives_hidden_states: bool) -> Any:
    """Settings with which one batch of so many tokens is computed in F32, by one thread."""
    settings = llama.llama_context_default_params()
    settings.n_ctx = 256
    settings.n_batch = count
    settings.n_ubatch = count
    settings.type_k = 0  # F32
    settings.type_v = 0
    settings.flash_attn_type = 0
    settings.swa_full = True
    settings.n_threads = 1
    settings.n_threads_batch = 1
    settings.pooling_type = 0
    settings.embeddings = gives_hidden_states
    return settings


def _batch_of_tokens(tokens: list[int]) -> Any:
    """A batch of tokens at the positions 0, 1, 2, ..."""
    batch = llama.llama_batch_init(len(tokens), 0, 1)
    for index, token in enumerate(tokens):
        batch.token[index] = token
        batch.pos[index] = index
    _as_one_sequence(batch, len(tokens))
    return batch


def _batch_of_embeddings(path: Path, tokens: list[int], positions: list[list[int]]) -> Any:
    """A batch of rows of token_embd.weight, with the positions of tokens in four sections (M-RoPE).

    Args:
        path: The GGUF file of the model.
        tokens: The rows.
        positions: For each section, the positions of all tokens.
    """
    tensors = {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}
    rows = np.ascontiguousarray(tensors["token_embd.weight"][tokens], np.float32)
    count, width = rows.shape
    batch = llama.llama_batch_init(count, width, 1)
    ctypes.memmove(batch.embd, rows.ctypes.data, rows.nbytes)

    # all positions of the first section, then those of the second one, ...
    in_order = [position for section in positions for position in section]
    batch.pos = (ctypes.c_int32 * (4 * count))(*in_order)
    _as_one_sequence(batch, count)
    return batch


def _as_one_sequence(batch: Any, count: int) -> None:
    """Put all entries of a batch into the sequence 0, and have all of them answered."""
    batch.n_tokens = count
    for index in range(count):
        batch.n_seq_id[index] = 1
        batch.seq_id[index][0] = 0
        batch.logits[index] = True


def _row(pointer: Any, width: int) -> np.ndarray[Any, Any]:
    """A copy of the output at a position; zeros where llama.cpp has none."""
    if not pointer:
        return np.zeros(width, np.float32)
    return np.ctypeslib.as_array(pointer, (width,)).copy()


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
