"""Read the receipt of an output, and the validation results of GGUF files."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

import msgspec

from ...errors import BadSource, UsageError
from ...formats import jsontext
from ...formats.disk import sha256
from ...formats.files import read_text
from ...formats.jsontext import JsonObject
from ...formats.package_data import typed
from ...formats.safetensors import safe_name
from ...models.gguf import GgufSource, HubGguf
from ...models.source import RECEIPT, Source
from ...rope.errors import counted, shown
from ...rope.recipe import Recipe
from ...version import SCHEMA
from .receipt import EvaluationRecord, Receipt

RESULTS = ("validation", "servers", "evaluations")
MOST = 1 << 63


class Results(msgspec.Struct, frozen=True):
    """The validation results of a GGUF file of `size` bytes, with the fields of a receipt."""

    size: int = -1
    validation: JsonObject | None = None
    servers: dict[str, JsonObject] | None = None
    evaluations: tuple[EvaluationRecord, ...] = ()


def read_receipt(baked: str | os.PathLike[str]) -> Receipt:
    """Return the receipt of an output: from ropeconv.json in a folder, or from the keys and results of a GGUF file.

    Raises BadSource if there is no receipt, or it cannot be parsed.
    """
    baked = Path(baked)
    if baked.suffix == ".gguf":
        return _in_keys(GgufSource(baked), validations(baked))
    path = baked / RECEIPT
    if not path.is_file():
        raise BadSource(f"{baked} has no {RECEIPT}, so it is not an output of ropeconv; give the folder `apply` made")
    return parse_receipt(read_text(path, str(path)), str(path))


def receipt_of(source: Source | GgufSource) -> Receipt:
    """Return the receipt of an opened model, also on the Hub. Raises as `read_receipt` does."""
    if isinstance(source, GgufSource):
        return _in_keys(source, {} if isinstance(source, HubGguf) else validations(source.path))
    text = source.text(RECEIPT)
    if text is None:
        raise BadSource(f"{source.reference} has no {RECEIPT}, so it is not an output of ropeconv; give an output")
    return parse_receipt(text, source.reference)


def _in_keys(source: GgufSource, results: JsonObject) -> Receipt:
    text = source.file.get(RECEIPT)
    if not isinstance(text, str):
        raise BadSource(f"{source.reference} has no receipt among its keys, so it is not an output of ropeconv")
    return parse_receipt(text, source.reference, results)


def has_receipt(baked: str | os.PathLike[str]) -> bool:
    """Whether `read_receipt` finds a receipt that it can read."""
    with suppress(BadSource):
        return bool(read_receipt(baked))
    return False


def parse_receipt(text: str, name: str, validated: JsonObject | None = None) -> Receipt:
    """Return a receipt from its JSON. Raises BadSource for other text, and for another schema.

    name: of the file, for messages. validated: the fields of RESULTS if they are in another file.
    """
    data = jsontext.parse(text, name)
    _check_numbers({key: value for key, value in data.items() if key not in RESULTS}, name)
    schema = data.get("schema")
    if isinstance(schema, int) and schema > SCHEMA:
        version = shown(data.get("ropeconv", "unknown"))
        raise BadSource(f"{name} is of a later ropeconv ({version}); upgrade this one")
    try:
        if schema != SCHEMA:
            raise ValueError(f"its schema is {shown(schema)}")
        return msgspec.convert(data | (validated or {}), Receipt)
    except ValueError as problem:
        raise BadSource(f"{name} is not a receipt of ropeconv ({problem}); run apply again") from None


def validations_path(gguf: Path) -> Path:
    """Return the path of the validation results of a GGUF file, a file beside it."""
    return gguf.with_name(f"{gguf.name}.validation.json")


def validations(gguf: Path) -> JsonObject:
    """Return the fields of RESULTS of a GGUF file, as JSON-ready data; empty if its size has changed."""
    path = validations_path(gguf)
    data = jsontext.parse(read_text(path, path.name), path.name) if path.is_file() else {}
    results = typed(data, Results, path.name)
    if results.size != gguf.stat().st_size:
        return {}
    return {key: msgspec.to_builtins(value) for key in RESULTS if (value := getattr(results, key))}


def _check_numbers(data: object, name: str) -> None:
    """Raise BadSource for numbers that no receipt has, such as NaN, for which every comparison is False."""
    level = [data]
    while level:
        for item in level:
            if isinstance(item, float) and not math.isfinite(item):
                raise BadSource(f"{name} is not a receipt of ropeconv (it has {item} as a number); run apply again")
            if isinstance(item, int) and abs(item) > MOST:
                raise BadSource(f"{name} is not a receipt of ropeconv (it has {shown(item)}); run apply again")
        level = [
            inner
            for item in level
            if isinstance(item, (dict, list))
            for inner in (item.values() if isinstance(item, dict) else item)
        ]


def read_recipe(path: Path) -> Recipe:
    """Return the recipe in a file: a saved or tuned one, or that of a receipt. path: the file, or a folder with one.

    Raises UsageError for a file that cannot be read, RecipeError for one that is not a recipe.
    """
    if path.is_dir():
        path = path / "ropeconv.json"
    try:
        text = read_text(path, str(path))
        data = jsontext.loads(text, str(path))
    except OSError:
        raise UsageError(f"{path} cannot be read; give a recipe, or the ropeconv.json of an earlier output") from None
    except BadSource as problem:
        raise UsageError(str(problem)) from None
    if isinstance(data, dict) and "ropeconv_tune" in data:
        data = data.get("recipe")
    elif isinstance(data, dict) and "ropeconv" in data:
        data = parse_receipt(text, str(path)).recipe
    return Recipe.from_dict(data)


def described(recipe: JsonObject) -> str:
    """Return a recipe for display, lists by their length. recipe: as `Recipe.to_dict` has it."""
    return ": ".join(filter(None, (str(recipe.get("method", "")), described_settings(recipe))))


def described_settings(recipe: JsonObject) -> str:
    """Return the settings of a recipe for display, lists by their length."""
    modifiers = {name: value for name, value in recipe.items() if name not in ("method", "parameters")}
    settings = {**recipe.get("parameters", {}), **modifiers}
    return ", ".join(f"{name.replace('_', '-')} {_short(value)}" for name, value in settings.items())


def _short(value: object) -> str:
    if isinstance(value, list):
        return f"of {counted(len(value), 'value')}"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:.12g}" if isinstance(value, float) else str(value)


CHECKED = (".json", ".py", ".safetensors")


def check_files(baked: Path, receipt: Receipt, weights: bool = True) -> None:
    """Raise BadSource if a file is missing, or differs from the receipt in size or (if known) sha256.

    weights: whether the sha256 of weights is compared too, which is slow.
    """
    for file in receipt.files:
        if not safe_name(file.name):
            raise BadSource(f"the receipt of {baked} lists {shown(file.name)}, outside it; do not trust it")
        path = baked / file.name
        if path.suffix not in CHECKED:
            continue
        if not path.is_file():
            raise BadSource(f"{path} no longer exists; run apply again")
        digest = file.sha256 if weights or path.suffix != ".safetensors" else None
        if path.stat().st_size != file.size or (digest and sha256(path) != digest):
            raise BadSource(
                f"{path} is not the file that ropeconv wrote; run apply again, or pass --ignore-receipt if it was "
                "edited on purpose"
            )
