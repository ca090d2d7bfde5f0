"""The files of each runtime with the rotary and attention code of each family, for the keys that
they read.
"""

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropeconv.models.family import Family

from .key_reader import Keys, attention_keys, configured_keys, keys_in, parsed

CAUSAL = (
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "MODEL_MAPPING_NAMES",
)
"""Where transformers has the classes of its models."""
MODEL_TYPE = re.compile(r"""^    model_type(?:: str)? = ["']([\w-]+)["']""", re.MULTILINE)


@dataclass(frozen=True)
class Model:
    """How runtimes know a family."""

    name: str
    """Its name in ropeconv, such as "llama"."""

    types: tuple[str, ...]
    """Its model types."""

    classes: tuple[str, ...]
    """Its architectures, such as LlamaForCausalLM."""


def model_of(family: Family) -> Model:
    """Return the model types of a family, with their classes in the installed transformers.

    Such as Model("llama", ("llama",), ("LlamaForCausalLM", ...)). There are no classes for a family
    that transformers does not have.
    """
    from transformers.models.auto import modeling_auto

    # each auto class has a mapping from model types to one name, or to several
    classes: list[str] = []
    for listing in CAUSAL:
        names = getattr(modeling_auto, listing)
        for model_type in family.model_types:
            entry = names.get(model_type, ())
            classes += [entry] if isinstance(entry, str) else entry
    each_once = tuple(dict.fromkeys(classes))
    return Model(family.name, family.model_types, each_once)


def transformers(root: Path, models: list[Model]) -> Iterator[tuple[str, Keys]]:
    """Yield the keys that transformers reads, by family; under "" those that all classes share.

    A family has those of the modelling files of its model types.

    Args:
        root: The folder with the sources of the package.
        models: The families.
    """
    package = root / "transformers"
    yield "", _all([package / "modeling_rope_utils.py"])

    folders = {}
    for path in (package / "models").glob("*/configuration_*.py"):
        for model_type in MODEL_TYPE.findall(path.read_text("utf-8")):
            folders[model_type] = path.parent
    for model in models:
        found = [folders[model_type] for model_type in model.types if model_type in folders]
        for folder in dict.fromkeys(found):  # each once
            for path in folder.glob("modeling_*.py"):
                is_of_torch = not re.search(r"_(tf|flax)_", path.name)
                if is_of_torch:
                    yield model.name, attention_keys(path)


def vllm(root: Path, models: list[Model]) -> Iterator[tuple[str, Keys]]:
    """Yield the keys that vLLM reads, by family; under "" those of its rotary embeddings.

    A family has those of the model files that vLLM's registry has for its architectures.

    Args:
        root: The folder with the sources of the package.
        models: The families.
    """
    package = root / "vllm" / "model_executor"
    yield "", _all((package / "layers" / "rotary_embedding").glob("*.py"))
    registry = _pairs(parsed(package / "models" / "registry.py"))
    for model in models:
        for architecture in model.classes:
            if architecture not in registry:
                continue
            # a file in the folder of models, or a module such as vllm.models.qwen4_exp
            module, name = registry[architecture]
            in_folder = package / "models" / f"{module}.py"
            by_name = root / f"{module.replace('.', '/')}.py"
            for path in (in_folder, by_name):
                if path.is_file():
                    yield model.name, attention_keys(path, [name])


def _pairs(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """Return the entries of the dictionaries of a file whose values are pairs of texts.

    In vLLM's registry such an entry is {"LlamaForCausalLM": ("llama", "LlamaForCausalLM")}.
    """
    entries = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Dict):
            continue
        for key, value in zip(node.keys, node.values, strict=True):
            if not isinstance(key, ast.Constant) or not isinstance(value, ast.Tuple):
                continue
            texts = [item.value for item in value.elts if isinstance(item, ast.Constant)]
            if len(texts) >= 2:
                entries[key.value] = (texts[0], texts[1])
    return entries


def sglang(root: Path, models: list[Model]) -> Iterator[tuple[str, Keys]]:
    """Yield the keys that SGLang reads, by family; under "" those of its rotary embeddings.

    A family has those of the model files whose EntryClass has the name of an architecture.

    Args:
        root: The folder with the sources of the package.
        models: The families.
    """
    package = root / "sglang" / "srt"
    yield "", _all((package / "layers" / "rotary_embedding").glob("*.py"))

    # the file of each class, from `EntryClass = X` or `EntryClass = [X, Y]` at its end
    entries: dict[str, Path] = {}
    for path in (package / "models").glob("*.py"):
        for node in parsed(path).body:
            if not isinstance(node, ast.Assign):
                continue
            is_entry = getattr(node.targets[0], "id", "") == "EntryClass"
            if not is_entry:
                continue
            for item in ast.walk(node.value):
                if isinstance(item, ast.Name):
                    entries[item.id] = path
    for model in models:
        for architecture in model.classes:
            if architecture in entries:
                yield model.name, attention_keys(entries[architecture], [architecture])


def mlx_lm(root: Path, models: list[Model]) -> Iterator[tuple[str, Keys]]:
    """Yield the keys that mlx-lm reads, by family; under "" those that all models share.

    A family has those of the files of its model types. A type without a file of its own is mapped
    to another one.

    Args:
        root: The folder with the sources of the package.
        models: The families.
    """
    package = root / "mlx_lm"
    yield "", _all([package / "models" / "rope_utils.py"])

    mapped: dict[str, str] = {}
    found = re.search(
        r"^MODEL_REMAPPING = (\{.*?^\})",
        (package / "utils.py").read_text("utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    if found:
        mapped = ast.literal_eval(found[1])
    for model in models:
        names = {mapped.get(model_type, model_type) for model_type in model.types}
        for name in names:
            path = package / "models" / f"{name}.py"
            if path.is_file():
                yield model.name, attention_keys(path)


def exllamav3(root: Path, models: list[Model]) -> Iterator[tuple[str, Keys]]:
    """Yield the keys that exllamav3 reads, by family; under "" those that all models share.

    A family has those of the config class of its architectures, each of which has a file.

    Args:
        root: The folder with the sources of the package.
        models: The families.
    """
    package = root / "exllamav3"
    base = package / "model" / "config.py"
    shared = configured_keys(base)
    shared.add(_all([base, package / "util" / "rope.py"]))
    shared.top = configured_keys(base).top
    yield "", shared
    for path in (package / "architecture").glob("*.py"):
        architectures = re.findall(
            r'^    arch_string = "(\w+)"', path.read_text("utf-8"), re.MULTILINE
        )
        for architecture in architectures:
            for model in models:
                if architecture in model.classes:
                    yield model.name, configured_keys(path)


def _all(paths: Any) -> Keys:
    keys = Keys()
    for path in paths:
        keys.add(keys_in(parsed(path)))
    return keys


FILES: dict[str, Callable[[Path, list[Model]], Iterator[tuple[str, Keys]]]] = {
    "transformers": transformers,
    "vllm": vllm,
    "sglang": sglang,
    "mlx-lm": mlx_lm,
    "exllamav3": exllamav3,
}
