"""The pooling of embedding models, which sentence-transformers keeps beside the checkpoint.

Read `pooling_keys` and `projections` first.

`modules.json` lists the steps from tokens to an embedding: the model, a pooling of its states, and
for some projections. llama.cpp reads the pooling from `ARCH.pooling_type`, and returns the states
of all tokens without it. It has up to two projections, only for EmbeddingGemma.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import BadSource, UnsupportedBake
from ...formats import jsontext
from ...formats.gguf.header import GgufValue, u32
from ...formats.jsontext import JsonObject
from ...models.purpose import POOLING
from ...models.source import Source
from ...rope.errors import shown
from .conversions import count

TYPES = {"mean": 1, "cls": 2, "lasttoken": 3}
"""llama.cpp's `LLAMA_POOLING_TYPE_...` (llama.h), by the names of sentence-transformers."""
IDENTITY = "torch.nn.modules.linear.Identity"
"""The activation of a projection that has none, as sentence-transformers names it."""
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


@dataclass(frozen=True)
class EmbeddingProjection:
    """A linear layer that multiplies the pooled states of an embedding model."""

    name: str
    """Its name in GGUF, `dense_2` or `dense_3`."""

    file: str
    """The safetensors file with its weights, such as 2_Dense/model.safetensors."""

    inputs: int
    outputs: int

    def keys(self, arch: str) -> dict[str, GgufValue]:
        """Return the metadata keys with its sizes."""
        return {
            f"{arch}.{self.name}_feat_in": u32(self.inputs),
            f"{arch}.{self.name}_feat_out": u32(self.outputs),
        }


def projections(source: Source) -> tuple[EmbeddingProjection, ...]:
    """Return the linear layers behind the pooling of an embedding model; empty for other models.

    llama.cpp's converter names the one in the folder `2_Dense` dense_2, and any other dense_3.

    Args:
        source: The checkpoint.

    Raises:
        BadSource: A file of sentence-transformers is missing or damaged.
        UnsupportedBake: llama.cpp does not compute such projections.
    """
    found = []
    for module in _modules(source):
        if not module["type"].endswith(".Dense"):
            continue
        folder = module["path"]
        name = "dense_2" if folder == "2_Dense" else "dense_3"
        config = _module_config(source, folder)
        activation = config.get("activation_function", IDENTITY)
        if config.get("bias") is not False or activation != IDENTITY:
            raise UnsupportedBake(
                f"a projection with bias = {shown(config.get('bias'))} and {shown(activation)}",
                "GGUF",
                "llama.cpp only multiplies by its weights",
                "keep safetensors, and serve it with sentence-transformers",
            )
        inputs = count(config, "in_features")
        outputs = count(config, "out_features")
        found.append(EmbeddingProjection(name, f"{folder}/model.safetensors", inputs, outputs))

    if [projection.name for projection in found] not in ([], ["dense_2"], ["dense_2", "dense_3"]):
        raise UnsupportedBake(
            f"{len(found)} projections in {POOLING}",
            "GGUF",
            "llama.cpp has one in 2_Dense, and one behind it",
            "keep safetensors, and serve it with sentence-transformers",
        )
    return tuple(found)


def has_projection(source: Source) -> bool:
    """Return whether an embedding model projects its pooled states, by `2_Dense` or similar."""
    return any(module["type"].endswith(".Dense") for module in _modules(source))


def _modules(source: Source) -> list[dict[str, str]]:
    """The steps of modules.json, each with its `type` and `path`; empty without that file.

    For example, {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}.
    """
    modules_file = POOLING  # "modules.json"
    text = source.text(modules_file)
    if text is None:
        return []
    modules = jsontext.loads(text, modules_file)
    if not isinstance(modules, list):
        raise BadSource(f"{modules_file} is not a list of modules; download the checkpoint again")
    steps = []
    for module in modules:
        fields = module if isinstance(module, dict) else {}
        kind = fields.get("type")
        path = fields.get("path", "")
        if not isinstance(kind, str) or not isinstance(path, str):
            raise BadSource(
                f"{modules_file} has a module without a type and a path; download the checkpoint"
                " again"
            )
        steps.append({"type": kind, "path": path})
    return steps


def _module_config(source: Source, path: str) -> JsonObject:
    """The config of a module in the folder `path`. Raises BadSource without one."""
    name = f"{path}/config.json"
    text = source.text(name)
    if text is None:
        raise BadSource(f"{POOLING} names {name}, which is missing; download the checkpoint again")
    return jsontext.parse(text, name)


def _mode(source: Source, path: str) -> str:
    """The pooling in the config of a module, by its name in TYPES."""
    name = f"{path}/config.json"
    modes = _stated_modes(_module_config(source, path))
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
