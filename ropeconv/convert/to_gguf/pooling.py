"""The pooling of embedding models, which sentence-transformers keeps beside the checkpoint.

`modules.json` lists the steps from tokens to an embedding: the model, a pooling of its states, and
for some a projection. llama.cpp reads the pooling from `ARCH.pooling_type`, and returns the states
of all tokens without it.
"""

from __future__ import annotations

from ...errors import BadSource, UnsupportedBake
from ...formats import jsontext
from ...formats.gguf.header import GgufValue, u32
from ...formats.jsontext import JsonObject
from ...models.purpose import POOLING
from ...models.source import Source
from ...rope.errors import shown

TYPES = {"mean": 1, "cls": 2, "lasttoken": 3}
"""llama.cpp's `LLAMA_POOLING_TYPE_...` (llama.h), by the names of sentence-transformers."""
OLD_NAMES = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
"""Switches of sentence-transformers before version 5, which has one key `pooling_mode`."""


def pooling_keys(source: Source, arch: str) -> dict[str, GgufValue]:
    """Return the key with the pooling of an embedding model; empty for other models.

    Args:
        source: The checkpoint.
        arch: Its architecture in GGUF.

    Raises:
        BadSource: A file of sentence-transformers is damaged.
        UnsupportedBake: llama.cpp does not have the pooling.
    """
    for module in _modules(source):
        if module["type"].endswith(".Pooling"):
            mode = _mode(source, module["path"])
            return {f"{arch}.pooling_type": u32(TYPES[mode])}
    return {}


def has_projection(source: Source) -> bool:
    """Return whether an embedding model projects its pooled states, by `2_Dense` or similar."""
    return any(module["type"].endswith(".Dense") for module in _modules(source))


def _modules(source: Source) -> list[dict[str, str]]:
    """The steps of modules.json, each with its `type` and `path`; empty without that file.

    For example, {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}.
    """
    text = source.text(POOLING)
    if text is None:
        return []
    modules = jsontext.loads(text, POOLING)
    if not isinstance(modules, list):
        raise BadSource(f"{POOLING} is not a list of modules; download the checkpoint again")
    steps = []
    for module in modules:
        fields = module if isinstance(module, dict) else {}
        kind = fields.get("type")
        path = fields.get("path", "")
        if not isinstance(kind, str) or not isinstance(path, str):
            raise BadSource(
                f"{POOLING} has a module without a type and a path; download the checkpoint again"
            )
        steps.append({"type": kind, "path": path})
    return steps


def _mode(source: Source, path: str) -> str:
    """The pooling in the config of a module, by its name in TYPES."""
    name = f"{path}/config.json"
    text = source.text(name)
    if text is None:
        raise BadSource(f"{POOLING} names {name}, which is missing; download the checkpoint again")
    config = jsontext.parse(text, name)
    modes = _stated_modes(config)
    if len(modes) == 1 and modes[0] in TYPES:
        return modes[0]
    known = ", ".join(TYPES)
    raise UnsupportedBake(
        f"the pooling {shown(' and '.join(modes) or 'none')} of {name}",
        "GGUF",
        f"llama.cpp has {known}",
        "keep safetensors, and serve it with sentence-transformers",
    )


def _stated_modes(config: JsonObject) -> list[str]:
    """The poolings that a config switches on; several are joined to one embedding."""
    mode = config.get("pooling_mode")
    if isinstance(mode, str):
        return [mode]
    if isinstance(mode, list):
        return [str(entry) for entry in mode]
    return [name for key, name in OLD_NAMES.items() if config.get(key) is True]
