"""The digest of an architecture: the keys that it reads, the rope tensors that it loads, and what
its graph does.
"""

import re
from pathlib import Path
from typing import Any

from .classes import ModelClass, graph_of, method_of, read_classes

ROPE_TYPES = {"NONE": "none", "NORM": "norm", "NEOX": "neox", "MROPE": "mrope", "IMROPE": "imrope"}
KEY = re.compile(
    r"(?:get_key|get_key_or_arr|get_arr|get_arr_n)\(\s*LLM_KV_(\w+)\s*,([^;]*?)\)\s*[;){]", re.S
)
ROTATION = re.compile(
    r"ggml_rope_(?:ext|multi)\(\s*ctx0,\s*[^,]+,\s*[^,]+,\s*([\w.\[\]>-]+(?:\([^)]*\))?),"
)
RENAMED = re.compile(r"ggml_tensor \* (\w+)\s*=\s*[^;]*(?:get_rope_factors|rope_freqs)")
CREATED = re.compile(r"LLM_TENSOR_(ROPE_FREQS|ROPE_FACTORS_LONG|ROPE_FACTORS_SHORT)")
PATTERN = re.compile(
    r"(?:load_swa_pattern\(ml|set_swa_pattern\(), ?(\d+)(?:, (true))?|set_swa_pattern\((\d+)\)"
)
ONLY_FOR = re.compile(
    r"if \(((?:\s*model\.arch == LLM_ARCH_\w+\s*(?:\|\|)?)+)\)\s*\{\s*Qcur = ggml_rope_ext"
)
RECURRENT = re.compile(r"full_attn_interval = (\d+)")
REUSE = re.compile(
    r"if \(((?:arch == LLM_ARCH_\w+(?: \|\| )?)+)\) \{\s*reuse = .*?is_swa\(il\) \? (\d+) :"
    r" (\d+)\);",
    re.S,
)


def read_digest(sources: Path) -> dict[str, Any]:
    """Return the digest of every architecture, by the value of general.architecture.

    Args:
        sources: The root of llama.cpp.
    """
    model = (sources / "src/llama-model.cpp").read_text("utf-8")
    names = _table((sources / "src/llama-arch.cpp").read_text("utf-8"), "LLM_ARCH")
    keys = {name: key.replace("%s.", "") for name, key in _table_of_keys(sources).items()}
    classes = read_classes(sources)
    types = _rope_types(model)
    class_names = _classes_by_arch(model)
    shared = _shared_kv(model)
    archs = {}
    for constant, name in names.items():
        if constant == "UNKNOWN":
            continue
        class_name = class_names.get(constant, "")
        rope_types = types.get(constant, ["none"])
        archs[name] = _one(constant, class_name, rope_types, classes, keys)
        archs[name]["shared_kv"] = shared.get(constant)
    return archs


def _one(
    constant: str, name: str, types: list[str], classes: dict[str, ModelClass], keys: dict[str, str]
) -> Any:
    """Return the digest of one architecture.

    Args:
        constant: Its name in the source, such as "QWEN2" for LLM_ARCH_QWEN2.
        name: The class of its model.
        types: The types that llama_model_rope_type gives it, such as ["neox"].
        classes: All classes by name.
        keys: The metadata keys by their constants.
    """
    hparams = method_of(classes, name, "load_arch_hparams")
    graph = graph_of(classes, name)
    tensors = method_of(classes, name, "load_arch_tensors")

    # a graph that several architectures share may rotate for some of them only
    only = ONLY_FOR.search(graph)
    rotates = ROTATION.search(graph) is not None and types != ["none"]
    if only is not None and f"LLM_ARCH_{constant} " not in only.group(1) + " ":
        rotates = False
    entry: dict[str, Any] = {"class": name, "rope": types, "rotates": rotates}

    # keys that are read, and arrays without which loading fails
    entry["keys"] = sorted({keys[key] for key, _ in KEY.findall(hparams) if key in keys})
    required_arrays = set()
    for key, rest in re.findall(r"get_arr\(\s*LLM_KV_(\w+)\s*,([^;]*)\);", hparams):
        if "false" not in rest:
            required_arrays.add(keys[key])
    entry["required_arrays"] = sorted(required_arrays)

    # rope tensors that are created, and whether a rotation is given one
    entry["tensors"] = sorted({tensor.lower() for tensor in CREATED.findall(tensors)})
    entry["longrope_only"] = "LLAMA_ROPE_SCALING_TYPE_LONGROPE" in tensors
    renamed = set(RENAMED.findall(graph))
    entry["divides"] = False
    for factors in ROTATION.findall(graph):
        if "rope_f" in factors or "get_rope_factors" in factors or factors in renamed:
            entry["divides"] = True

    entry["window"] = _window(hparams, graph)
    interval = RECURRENT.search(hparams)
    entry["full_attention_interval"] = int(interval.group(1)) if interval else 0
    entry["softmax"] = "rope_yarn_log_mul" in graph
    entry["norm_after_rope"] = _normalises_late(graph)
    entry["heads_by_layer"] = bool(re.search(r"n_head_kv\(i", graph))
    entry["base"] = "hparams.rope_scaling_alpha" in hparams
    return entry


def _normalises_late(graph: str) -> bool:
    """Whether a graph normalises queries after their rotation, and in no function before it."""
    is_late = False
    is_early = False
    for function in re.split(r"\n(?=[^\n ][^\n]*\bllama_model_|llama_model_)", graph):
        rotation = ROTATION.search(function)
        norm = re.search(r"attn_q_norm|ggml_rms_norm\(ctx0, Qcur", function)
        if norm is None:
            continue
        if rotation is None or norm.start() < rotation.start():
            is_early = True
        else:
            is_late = True
    return is_late and not is_early


def _window(hparams: str, graph: str) -> dict[str, Any] | None:
    """Return the sliding window of an architecture; None for one that sets none.

    Args:
        hparams: The source of its load_arch_hparams.
        graph: That of its graph.
    """
    if not re.search(r"swa_type\s*=\s*LLAMA_SWA_TYPE_(?!NONE)", hparams):
        return None

    # set_swa_pattern(6), or set_swa_pattern(4, true) where the first of four layers is without
    pattern = PATTERN.search(hparams)
    interval = None
    dense_first = False
    if pattern:
        number = pattern.group(1) or pattern.group(3)
        interval = int(number)
        dense_first = bool(pattern.group(2))
    scale = re.search(r"rope_freq_scale_train_swa\s*=\s*([^;]+);", hparams)
    base = re.search(r"rope_freq_base_train_swa\s*=\s*hparams\.rope_freq_base_train;", hparams)
    return {
        "interval": interval,
        "dense_first": dense_first,
        "inherits_scale": bool(scale and "rope_freq_scale_train" in scale.group(1)),
        "inherits_base": bool(base),
        "own_base": bool(re.search(r"get_rope_freq_base|rope_freq_base_train_swa", graph)),
        "own_scale": bool(re.search(r"get_rope_freq_scale|rope_freq_scale_train_swa", graph)),
    }


def _shared_kv(model: str) -> dict[str, dict[str, int]]:
    """How far before the first layer without own keys the one lies whose keys it takes, with a
    window and without.
    """
    return {
        arch: {"window": int(window), "other": int(other)}
        for archs, window, other in REUSE.findall(model)
        for arch in re.findall(r"LLM_ARCH_(\w+)", archs)
    }


def _table(text: str, kind: str) -> dict[str, str]:
    return dict(re.findall(rf"\{{ {kind}_(\w+),\s*\"([^\"]+)\"\s*\}}", text))


def _table_of_keys(sources: Path) -> dict[str, str]:
    return _table((sources / "src/llama-arch.cpp").read_text("utf-8"), "LLM_KV")


def _rope_types(model: str) -> dict[str, list[str]]:
    """Return the types that llama_model_rope_type gives each architecture, by its constant.

    An architecture with and without sections has two, the one without sections last.

    Args:
        model: The source of llama-model.cpp, whose function is a switch with a `return` for each
            group of cases.
    """
    begin = model.index("llama_rope_type llama_model_rope_type(")
    end = model.index("\n}\n", begin)
    by_arch = dict[str, list[str]]()
    archs = list[str]()  # those of the cases before the next return
    for line in model[begin:end].splitlines():
        archs += re.findall(r"case LLM_ARCH_(\w+):", line)
        types = [ROPE_TYPES[name] for name in re.findall(r"LLAMA_ROPE_TYPE_(\w+)", line)]
        if not types or "return" not in line:
            continue
        for arch in archs:
            by_arch.setdefault(arch, []).extend(types)
        # a return that is further inside stands under a condition, and another one follows
        is_under_condition = line.startswith(16 * " ")
        if not is_under_condition:
            archs = []
    return by_arch


def _classes_by_arch(model: str) -> dict[str, str]:
    class_names = dict[str, str]()
    waiting = list[str]()
    for line in model[model.index("llama_model_mapping(") :].splitlines():
        waiting += re.findall(r"case LLM_ARCH_(\w+):", line)
        match = re.search(r"return new llama_model_(\w+)\(", line)
        if match:
            class_names |= dict.fromkeys(waiting, match.group(1))
            waiting = []
        if line == "}":
            break
    return class_names
