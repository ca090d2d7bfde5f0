"""Compares exports with what llama.cpp's convert_hf_to_gguf.py makes of the same tiny checkpoints.

    python -m scripts.llamacpp.compare_converter LLAMA_CPP [--types | --keys] [MODEL_TYPE ...]

LLAMA_CPP is a folder with its source, such as vendor/llama.cpp of llama-cpp-python's sdist. Prints
names, shapes, types and bytes of tensors and values of keys that differ; exits with 1 where a
tensor does, or a key that ropeconv lacks. What the stock converter cannot read is said. `--types`
writes tests/data/converter_types.json instead: the type of every tensor in f16, bf16 and q8_0.
`--keys` writes tests/data/converter_keys.json: the keys of the architecture, with their values.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader

from ropeconv.convert.to_gguf.stock import find_converter
from ropeconv.rope.errors import RopeconvError
from ropeconv.rope.methods.method import REGISTRY as METHODS
from ropeconv.rope.recipe import Recipe
from tests.convert.to_gguf.stock_converter import by_converter, in_bfloat16
from tests.convert.to_gguf.test_export import TYPES, types
from tests.support.converter_server import converter_server
from tests.support.llamacpp import EXPORTED, bake, checkpoint
from tests.support.stock_tree import published, tree_for_tiny_models

RECORD = Path(__file__).parents[2] / "tests" / "data" / "converter_types.json"
KEYS = RECORD.with_name("converter_keys.json")

PREDICTING = {"num_nextn_predict_layers", "mtp_num_hidden_layers"}
APART = ("general.", "tokenizer.", "ropeconv.", "GGUF.", "rope.scaling.")


def keys_of(reader: GGUFReader) -> dict[str, Any]:
    """The keys of the architecture with their values, numbers rounded to those of float32."""
    values = {}
    for name, field in reader.fields.items():
        short = name.partition(".")[2]
        if not name.startswith(APART) and not short.startswith(APART):
            values[short] = field.contents()
    return values


def shape(tensor: Any) -> list[int]:
    """The shape of a tensor without trailing dimensions of one, which ggml does not tell apart."""
    sizes = [int(size) for size in tensor.shape]
    while len(sizes) > 1 and sizes[-1] == 1:
        sizes.pop()
    return sizes


def ulps(left: Any, other: Any) -> int:
    """How many floats lie between two tensors at most; exponentials of numpy and torch are one
    apart.
    """
    if left.tensor_type != GGMLQuantizationType.F32:
        return 1 << 31
    first, second = (
        np.frombuffer(tensor.data.tobytes(), np.int32).astype(np.int64) for tensor in (left, other)
    )
    return int(np.abs(first - second).max())


def differences(ours: Path, stock: Path) -> tuple[list[str], list[str]]:
    """What differs between two files: in tensors, and in keys, as lines."""
    first = GGUFReader(ours)
    second = GGUFReader(stock)
    have, want = ({tensor.name: tensor for tensor in reader.tensors} for reader in (first, second))
    tensors = [
        f"{name}: {'only here' if name in have else 'not here'}"
        for name in sorted(have.keys() ^ want.keys())
    ]
    for name in sorted(have.keys() & want.keys()):
        converted = have[name]
        other = want[name]
        if shape(converted) != shape(other) or converted.tensor_type != other.tensor_type:
            tensors.append(
                f"{name}: {shape(converted)} {converted.tensor_type.name}, "
                f"there {shape(other)} {other.tensor_type.name}"
            )
        elif converted.data.tobytes() != other.data.tobytes():
            apart = ulps(converted, other)
            if apart > 1:
                tensors.append(f"{name}: other bytes, {apart} ulp")
    mine = keys_of(first)
    theirs = keys_of(second)
    keys = [
        f"{name} = {mine.get(name, 'absent')}, there {theirs.get(name, 'absent')}"
        for name in sorted(mine.keys() | theirs.keys())
        if mine.get(name) != theirs.get(name)
    ]
    return tensors, keys


def converted(source: Path, out: Path, root: Path, options: list[str]) -> str:
    """Runs the stock converter without a tokenizer; returns the last line of its error, or
    nothing.
    """
    runner = Path(__file__).with_name("unknown_tokenizer.py")
    converter = root / "convert_hf_to_gguf.py"
    command = [
        sys.executable,
        str(runner),
        "--without-vocabulary",
        str(converter),
        str(source),
        *options,
        "--outfile",
        str(out),
    ]
    env = {**os.environ, "PYTHONPATH": str(root / "gguf-py"), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no message"])[-1]


def record(root: Path, model_types: list[str]) -> None:
    """Writes the types of the stock converter's tensors, one line for each model type."""
    kept = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    for model_type in model_types:
        with tempfile.TemporaryDirectory() as scratch:
            source, _ = in_bfloat16(model_type, Path(scratch) / "source")
            by_source = [
                types(file) for file in by_converter(source, list(TYPES), str(root)).values()
            ]
        kept[model_type] = {
            name: " ".join(each[name] for each in by_source) for name in by_source[0]
        }
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(kept[name])}" for name in sorted(kept))
        RECORD.write_text(f"{{\n{lines}\n}}\n")
        print(model_type, flush=True)


def record_keys(root: Path, model_types: list[str]) -> None:
    """Writes the keys of the stock converter's files, one line for each model type."""
    kept = json.loads(KEYS.read_text()) if KEYS.exists() else {}
    with tempfile.TemporaryDirectory() as name, converter_server(root) as convert:
        tree = find_converter(tree_for_tiny_models(Path(name) / "llama.cpp", root))
        for model_type in model_types:
            folder = Path(name) / model_type
            source = published(model_type, folder / "Tiny")
            try:
                # without the option, three such layers are expected of every MiMo 2
                config = json.loads((source / "config.json").read_text())
                predicts = bool(config.keys() & PREDICTING)
                out = folder / "out.gguf"
                convert(tree, source, out, "bf16", predicts=predicts, header_only=True)
            except RopeconvError as problem:
                print(f"{model_type}: {problem}", flush=True)
                continue
            kept[model_type] = keys_of(GGUFReader(folder / "out.gguf"))
            lines = ",\n".join(
                f"{json.dumps(name)}: {json.dumps(kept[name])}" for name in sorted(kept)
            )
            KEYS.write_text(f"{{\n{lines}\n}}\n")
            print(model_type, flush=True)


def main() -> int:
    """Compares every model type, or those that are named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path, metavar="LLAMA_CPP")
    parser.add_argument("model_types", nargs="*", default=EXPORTED)
    parser.add_argument("--outtype", default="f32")
    parser.add_argument("--types", action="store_true")
    parser.add_argument("--keys", action="store_true")
    given = parser.parse_args()
    if given.types:
        record(given.root, given.model_types)
        return 0
    if given.keys:
        record_keys(given.root, given.model_types)
        return 0
    wrong = 0
    for model_type in given.model_types:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            source = checkpoint(model_type, folder / "source")
            bake(source, Recipe(METHODS["as-is"]()), folder / "ours.gguf", outtype=given.outtype)
            options = ["--outtype", given.outtype]
            # the tiny ones have no layers that predict further tokens, which some configs state
            config = json.loads((source / "config.json").read_text())
            if config.keys() & PREDICTING:
                options.append("--no-mtp")
            problem = converted(source, folder / "stock.gguf", given.root, options)
            if problem:
                print(f"{model_type}: the stock converter stops: {problem}", flush=True)
                continue
            tensors, keys = differences(folder / "ours.gguf", folder / "stock.gguf")
        print(
            f"{model_type}: "
            + ("equal" if not tensors + keys else f"{len(tensors)} tensors, {len(keys)} keys")
        )
        print("".join(f"  {line}\n" for line in (*tensors, *keys)), end="", flush=True)
        wrong += bool(tensors) or any("= absent" in line for line in keys)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
