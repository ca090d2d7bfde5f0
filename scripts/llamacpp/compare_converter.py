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
    """Return how many floats lie between the numbers of two tensors at most.

    Exponentials of numpy and torch are one apart. For other types than F32 it is a huge number.
    """
    if left.tensor_type != GGMLQuantizationType.F32:
        return 1 << 31
    # floats of one sign are in the order of their bits as integers
    first = np.frombuffer(left.data.tobytes(), np.int32).astype(np.int64)
    second = np.frombuffer(other.data.tobytes(), np.int32).astype(np.int64)
    return int(np.abs(first - second).max())


def differences(ours: Path, stock: Path) -> tuple[list[str], list[str]]:
    """Return what differs between two GGUF files, as lines: in their tensors, and in their keys.

    Args:
        ours: The file of ropeconv.
        stock: The file of llama.cpp's converter.
    """
    our_reader = GGUFReader(ours)
    stock_reader = GGUFReader(stock)
    our_tensors = {tensor.name: tensor for tensor in our_reader.tensors}
    stock_tensors = {tensor.name: tensor for tensor in stock_reader.tensors}
    tensors = []
    for name in sorted(our_tensors.keys() ^ stock_tensors.keys()):
        where = "only here" if name in our_tensors else "not here"
        tensors.append(f"{name}: {where}")
    for name in sorted(our_tensors.keys() & stock_tensors.keys()):
        tensor = our_tensors[name]
        other = stock_tensors[name]
        if shape(tensor) != shape(other) or tensor.tensor_type != other.tensor_type:
            tensors.append(
                f"{name}: {shape(tensor)} {tensor.tensor_type.name}, "
                f"there {shape(other)} {other.tensor_type.name}"
            )
        elif tensor.data.tobytes() != other.data.tobytes():
            apart = ulps(tensor, other)
            if apart > 1:
                tensors.append(f"{name}: other bytes, {apart} ulp")

    keys = []
    our_keys = keys_of(our_reader)
    stock_keys = keys_of(stock_reader)
    for name in sorted(our_keys.keys() | stock_keys.keys()):
        value = our_keys.get(name)
        if value != stock_keys.get(name):
            here = our_keys.get(name, "absent")
            there = stock_keys.get(name, "absent")
            keys.append(f"{name} = {here}, there {there}")
    return tensors, keys


def converted(source: Path, out: Path, root: Path, options: list[str]) -> str:
    """Run the stock converter without a tokenizer.

    Args:
        source: The checkpoint.
        out: The GGUF file.
        root: The root of llama.cpp.
        options: Options of the converter.

    Returns:
        The last line of its error; empty where it succeeds.
    """
    runner = Path(__file__).with_name("unknown_tokenizer.py")
    converter = root / "convert_hf_to_gguf.py"
    command = [sys.executable, str(runner), "--without-vocabulary", str(converter), str(source)]
    command += [*options, "--outfile", str(out)]
    env = {**os.environ, "PYTHONPATH": str(root / "gguf-py"), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode == 0:
        return ""
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else "no message"


def record(root: Path, model_types: list[str]) -> None:
    """Write the types of the stock converter's tensors, one line for each model type.

    Args:
        root: The root of llama.cpp.
        model_types: The model types; the record keeps those of others.
    """
    kept = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    for model_type in model_types:
        with tempfile.TemporaryDirectory() as scratch:
            source, _ = in_bfloat16(model_type, Path(scratch) / "source")
            files = by_converter(source, list(TYPES), str(root))
            types_of_files = [types(file) for file in files.values()]

        # for each tensor, its type in the file of each outtype, such as "F32 F16 Q8_0"
        kept[model_type] = {}
        for name in types_of_files[0]:
            kept[model_type][name] = " ".join(
                types_by_name[name] for types_by_name in types_of_files
            )
        _write_lines(RECORD, kept)
        print(model_type, flush=True)


def _write_lines(path: Path, record: dict[str, Any]) -> None:
    """Write a JSON object with a line for each of its keys, sorted."""
    lines = [f"{json.dumps(name)}: {json.dumps(record[name])}" for name in sorted(record)]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def record_keys(root: Path, model_types: list[str]) -> None:
    """Write the keys of the stock converter's files, one line for each model type.

    Args:
        root: The root of llama.cpp.
        model_types: The model types; the record keeps those of others.
    """
    kept = json.loads(KEYS.read_text()) if KEYS.exists() else {}
    with tempfile.TemporaryDirectory() as name, converter_server(root) as convert:
        tree = find_converter(tree_for_tiny_models(Path(name) / "llama.cpp", root))
        for model_type in model_types:
            folder = Path(name) / model_type
            source = published(model_type, folder / "Tiny")
            out = folder / "out.gguf"
            # without the option, three such layers are expected of every MiMo 2
            config = json.loads((source / "config.json").read_text())
            predicts = bool(config.keys() & PREDICTING)
            try:
                convert(tree, source, out, "bf16", predicts=predicts, header_only=True)
            except RopeconvError as problem:
                print(f"{model_type}: {problem}", flush=True)
                continue
            kept[model_type] = keys_of(GGUFReader(out))
            _write_lines(KEYS, kept)
            print(model_type, flush=True)


def main() -> int:
    """Compare every model type, or those that are named; return 1 where a file differs.

    Keys that only ropeconv writes do not count.
    """
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

    is_wrong = False
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

        result = "equal"
        if tensors or keys:
            result = f"{len(tensors)} tensors, {len(keys)} keys"
        print(f"{model_type}: {result}", flush=True)
        for line in (*tensors, *keys):
            print(f"  {line}", flush=True)
        lacks_key = any("= absent" in line for line in keys)
        if tensors or lacks_key:
            is_wrong = True
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main())
