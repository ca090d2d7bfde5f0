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
    """How runtimes know a family. name: its own. types: its model types. classes: its
    architectures.
    """

    name: str
    types: tuple[str, ...]
    classes: tuple[str, ...]


def model_of(family: Family) -> Model:
    """A family with its classes in the installed transformers; for other families their model types
    alone.
    """
    from transformers.models.auto import modeling_auto

    mappings = [getattr(modeling_auto, name) for name in CAUSAL]
    classes_of_types = [
        names[model_type]
        for names in mappings
        for model_type in family.model_types
        if model_type in names
    ]
    classes = [
        name
        for entry in classes_of_types
        for name in ((entry,) if isinstance(entry, str) else entry)
    ]
    return Model(family.name, family.model_types, tuple(dict.fromkeys(classes)))


def transformers(root: Path, models: list[Model]) -> Iterator[tuple[str, Keys]]:
    """transformers: what all classes share, and the modelling and config files of each model
    type.
    """
    package = root / "transformers"
    yield "", _all([package / "modeling_rope_utils.py"])
    folders = {
        model_type: path.parent
        for path in (package / "models").glob("*/configuration_*.py")
        for model_type in MODEL_TYPE.findall(path.read_text("utf-8"))
    }
    for model in models:
        for folder in dict.fromkeys(
            folders[model_type] for model_type in model.types if model_type in folders
        ):
            for path in folder.glob("modeling_*.py"):
                if not re.search(r"_(tf|flax)_", path.name):
                    yield model.name, attention_keys(path)


def vllm(root: Path, models: list[Model]) -> Iterator[tuple[str, Keys]]:
    """vLLM: its rotary embeddings, and the model file that its registry has for each
    architecture.
    """
    package = root / "vllm" / "model_executor"
    yield "", _all((package / "layers" / "rotary_embedding").glob("*.py"))
    registry = _pairs(parsed(package / "models" / "registry.py"))
    for model in models:
        for architecture in model.classes:
            module, name = registry.get(architecture, ("", ""))
            for path in (
                package / "models" / f"{module}.py",
                root / f"{module.replace('.', '/')}.py",
            ):
                if module and path.is_file():
                    yield model.name, attention_keys(path, [name])


def _pairs(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """The entries of the dictionaries of a file whose values are pairs of texts."""
    constants = {}
    for node in ast.walk(tree):
        for key, value in (
            zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ()
        ):
            if isinstance(key, ast.Constant) and isinstance(value, ast.Tuple):
                texts = [item.value for item in value.elts if isinstance(item, ast.Constant)]
                if len(texts) >= 2:
                    constants[key.value] = (texts[0], texts[1])
    return constants


def sglang(root: Path, models: list[Model]) -> Iterator[tuple[str, Keys]]:
    """SGLang: its rotary embeddings, and the model file whose EntryClass has the name of each
    architecture.
    """
    package = root / "sglang" / "srt"
    yield "", _all((package / "layers" / "rotary_embedding").glob("*.py"))
    entries: dict[str, Path] = {}
    for path in (package / "models").glob("*.py"):
        for node in parsed(path).body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "EntryClass":
                entries |= {
                    item.id: path for item in ast.walk(node.value) if isinstance(item, ast.Name)
                }
    for model in models:
        for architecture in model.classes:
            if architecture in entries:
                yield model.name, attention_keys(entries[architecture], [architecture])


def mlx_lm(root: Path, models: list[Model]) -> Iterator[tuple[str, Keys]]:
    """mlx-lm: the file of each model type, or the one that it is mapped to."""
    package = root / "mlx_lm"
    yield "", _all([package / "models" / "rope_utils.py"])
    mapping = re.search(
        r"^MODEL_REMAPPING = (\{.*?^\})",
        (package / "utils.py").read_text("utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    mapped: dict[str, str] = ast.literal_eval(mapping[1]) if mapping else {}
    for model in models:
        for path in {
            package / "models" / f"{mapped.get(model_type, model_type)}.py"
            for model_type in model.types
        }:
            if path.is_file():
                yield model.name, attention_keys(path)


def exllamav3(root: Path, models: list[Model]) -> Iterator[tuple[str, Keys]]:
    """exllamav3: its config base and rotary embedding, and the config class of each
    architecture.
    """
    package = root / "exllamav3"
    shared = configured_keys(package / "model" / "config.py")
    shared.add(_all([package / "model" / "config.py", package / "util" / "rope.py"]))
    shared.top = configured_keys(package / "model" / "config.py").top
    yield "", shared
    for path in (package / "architecture").glob("*.py"):
        for architecture in re.findall(
            r'^    arch_string = "(\w+)"', path.read_text("utf-8"), re.MULTILINE
        ):
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
