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
    """The digest of all architectures by the value of general.architecture. sources: the root of
    llama.cpp.
    """
    model = (sources / "src/llama-model.cpp").read_text("utf-8")
    names = _table((sources / "src/llama-arch.cpp").read_text("utf-8"), "LLM_ARCH")
    keys = {name: key.replace("%s.", "") for name, key in _table_of_keys(sources).items()}
    classes = read_classes(sources)
    types = _rope_types(model)
    class_names = _classes_by_arch(model)
    archs = {}
    shared = _shared_kv(model)
    for constant, name in names.items():
        if constant != "UNKNOWN":
            archs[name] = _one(
                constant,
                class_names.get(constant, ""),
                types.get(constant, ["none"]),
                classes,
                keys,
            )
            archs[name]["shared_kv"] = shared.get(constant)
    return archs


def _one(
    constant: str, name: str, types: list[str], classes: dict[str, ModelClass], keys: dict[str, str]
) -> Any:
    hparams = method_of(classes, name, "load_arch_hparams")
    graph = graph_of(classes, name)
    tensors = method_of(classes, name, "load_arch_tensors")
    only = ONLY_FOR.search(graph)
    rotates = bool(ROTATION.search(graph)) and (
        only is None or f"LLM_ARCH_{constant} " in only.group(1) + " "
    )
    entry: dict[str, Any] = {"class": name, "rope": types, "rotates": rotates and types != ["none"]}
    entry["keys"] = sorted({keys[key] for key, _ in KEY.findall(hparams) if key in keys})
    entry["required_arrays"] = sorted(
        {
            keys[key]
            for key, rest in re.findall(r"get_arr\(\s*LLM_KV_(\w+)\s*,([^;]*)\);", hparams)
            if "false" not in rest
        }
    )
    entry["tensors"] = sorted({f"{tensor.lower()}" for tensor in CREATED.findall(tensors)})
    entry["longrope_only"] = "LLAMA_ROPE_SCALING_TYPE_LONGROPE" in tensors
    renamed = set(RENAMED.findall(graph))
    entry["divides"] = any(
        "rope_f" in at or "get_rope_factors" in at or at in renamed
        for at in ROTATION.findall(graph)
    )
    entry["window"] = _window(hparams, graph)
    interval = RECURRENT.search(hparams)
    entry["full_attention_interval"] = int(interval.group(1)) if interval else 0
    entry["softmax"] = "rope_yarn_log_mul" in graph
    entry["norm_after_rope"] = _normalises_late(graph)
    entry["heads_by_layer"] = bool(re.search(r"n_head_kv\(i", graph))
    entry["base"] = "hparams.rope_scaling_alpha" in hparams
    return entry


def _normalises_late(graph: str) -> bool:
    """Whether queries are normalised after their rotation and not before, in any function of a
    graph.
    """
    late, early = False, False
    for function in re.split(r"\n(?=[^\n ][^\n]*\bllama_model_|llama_model_)", graph):
        rotation = ROTATION.search(function)
        norms = [
            match.start()
            for match in re.finditer(r"attn_q_norm|ggml_rms_norm\(ctx0, Qcur", function)
        ]
        if norms:
            late |= rotation is not None and norms[0] > rotation.start()
            early |= rotation is None or norms[0] < rotation.start()
    return late and not early


def _window(hparams: str, graph: str) -> dict[str, Any] | None:
    """The sliding window of an architecture; None for one that sets none."""
    if not re.search(r"swa_type\s*=\s*LLAMA_SWA_TYPE_(?!NONE)", hparams):
        return None
    pattern = PATTERN.search(hparams)
    interval = (
        next((int(number) for number in (pattern.groups()[0], pattern.groups()[2]) if number), None)
        if pattern
        else None
    )
    scale = re.search(r"rope_freq_scale_train_swa\s*=\s*([^;]+);", hparams)
    return {
        "interval": interval,
        "dense_first": bool(pattern and pattern.group(2)),
        "inherits_scale": bool(scale and "rope_freq_scale_train" in scale.group(1)),
        "inherits_base": bool(
            re.search(r"rope_freq_base_train_swa\s*=\s*hparams\.rope_freq_base_train;", hparams)
        ),
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
    """The types that llama_model_rope_type gives each architecture, that without sections last."""
    body = model[model.index("llama_rope_type llama_model_rope_type(") :]
    body = body[: body.index("\n}\n")]
    calls = dict[str, list[str]]()
    waiting = list[str]()
    for line in body.splitlines():
        waiting += re.findall(r"case LLM_ARCH_(\w+):", line)
        types = [ROPE_TYPES[name] for name in re.findall(r"LLAMA_ROPE_TYPE_(\w+)", line)]
        if types and "return" in line:
            for arch in waiting:
                calls.setdefault(arch, []).extend(types)
            if not line.startswith("                "):
                waiting = []
    return calls


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
