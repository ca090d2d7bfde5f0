"""Runs llama.cpp's quantiser, as a program of its own: one argument, which is JSON.

It prints JSON: the type that each tensor gets, by name. It imports nothing of ropeconv. llama.cpp
aborts the whole process on some errors, and its messages go to stderr.
"""

import ctypes
import json
import re
import sys
from typing import Any

import numpy as np

LINE = re.compile(
    r"\[ *\d+/ *\d+\] (?P<name>\S+) +- \[.*?\], type = *(?P<type>\w+), size = [^(\n]*"
    r"(?:\((?P<new>\w+)\))?"
)
"""The line that llama.cpp logs about a tensor of a dry run (`llama_model_quantize_impl`)."""
NO_TYPE = 43
"""The number that stands for no type (`GGML_TYPE_COUNT`) where the bindings do not tell."""


def text_keys(llama: Any, keys: dict[str, str | int]) -> Any:
    """Return a ctypes array of metadata keys that are added, which ends with an empty key.

    Args:
        llama: The module of the bindings.
        keys: Texts of at most 127 bytes, and numbers.
    """
    entries = (llama.llama_model_kv_override * (len(keys) + 1))()
    for entry, (key, value) in zip(entries, keys.items(), strict=False):
        entry.key = key.encode()
        # the numbers of types in llama.h: LLAMA_KV_OVERRIDE_TYPE_INT is 0, and _STR is 3
        if isinstance(value, int):
            entry.tag = 0
            entry.value.val_i64 = value
        else:
            entry.tag = 3
            entry.value.val_str = value.encode()[:127]
    return entries


def main() -> int:
    """Quantise as the settings say, and return the exit code."""
    given = json.loads(sys.argv[1])
    import llama_cpp as llama

    # llama.cpp tells the type of each tensor in its log only
    logged: list[str] = []

    @llama.llama_log_callback  # type: ignore[untyped-decorator, unused-ignore]
    def log(level: int, text: bytes, user_data: Any) -> None:
        logged.append(text.decode(errors="replace"))

    llama.llama_log_set(log, ctypes.c_void_p(0))

    # the plain settings
    settings = llama.llama_model_quantize_default_params()
    settings.ftype = given["file_type"]
    settings.dry_run = given["dry_run"]
    settings.allow_requantize = given["from_quantised"]
    if given["output_type"] is not None:
        settings.output_tensor_type = given["output_type"]
    if given["embedding_type"] is not None:
        settings.token_embedding_type = given["embedding_type"]

    # Three arrays of C follow. Each has an empty entry at its end, by which llama.cpp knows its
    # length, and must live until llama.cpp is done.

    # the types of single tensors
    patterns = given["tensor_types"]
    overrides = (llama.llama_model_tensor_override * (len(patterns) + 1))()
    for override, (pattern, number) in zip(overrides, patterns, strict=False):
        override.pattern = pattern.encode()
        override.type = number
    end_entry = overrides[len(patterns)]
    end_entry.type = settings_end(llama)
    if patterns:
        settings.tt_overrides = overrides

    # keys to add to the header
    keys = text_keys(llama, given["keys"])
    if given["keys"]:
        settings.kv_overrides = keys

    # the importance matrix: the mean squares of each weight by its name
    means = {}
    if given["imatrix"]:
        means = dict(np.load(given["imatrix"]))
    entries = (llama.llama_model_imatrix_data * (len(means) + 1))()
    for entry, (name, values) in zip(entries, means.items(), strict=False):
        entry.name = name.encode()
        entry.data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        entry.size = values.size
    if means:
        settings.imatrix = entries

    # quantise, and print the type of each tensor as JSON: {"output.weight": "q6_K"}
    failed = llama.llama_model_quantize(
        given["source"].encode(), given["target"].encode(), settings
    )
    text = "".join(logged)
    sys.stderr.write(text)
    if failed:
        return 1
    types = {}
    for match in LINE.finditer(text):
        types[match["name"]] = match["new"] or match["type"]
    print(json.dumps(types))
    return 0


def settings_end(llama: Any) -> int:
    """The number that stands for no type, which the default settings have."""
    number = llama.llama_model_quantize_default_params().output_tensor_type
    return int(number) if number else NO_TYPE


if __name__ == "__main__":
    sys.exit(main())
