"""Writes docs/evidence/stock-converter.json: which models llama.cpp's convert_hf_to_gguf.py and
ropeconv's own converter convert so that llama.cpp computes what transformers does.

    python -m scripts.llamacpp.stock_matrix LLAMA_CPP [MODEL_TYPE ...] [--fresh | --again]
        [--mlx PYTHON]

LLAMA_CPP is a folder with its source, such as vendor/llama.cpp of llama-cpp-python's sdist. Each
tiny checkpoint of the tests is converted by both, with and without a method, and the logits of
llama.cpp are compared with those of transformers up to four times the trained length; for encoders,
the states of all tokens. Model types that the record has are passed over, unless --fresh or
--again. A model type is unknown where the converter does not have its class.

Models that transformers has no class for are compared with mlx-lm, where --mlx names the Python of
an environment with it (pip install "mlx[cpu]" mlx-lm). Their rows say so, as `reference`.

The converter runs in forks of one process; `ropeconv apply` runs it in a process of its own.
"""

import argparse
import importlib.metadata
import json
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from ropeconv.bake.apply import apply
from ropeconv.bake.plan import Plan
from ropeconv.convert.to_gguf.stock import StockConverter, find_converter
from ropeconv.errors import UnsupportedBake
from ropeconv.formats.gguf.file import GgufFile
from ropeconv.models.config import detect
from ropeconv.rope.errors import RopeconvError
from ropeconv.runtimes.llamacpp.archs import arch_table
from tests.support.baking import AS_IS, MIXED, NTK, YARN, make_plan
from tests.support.converter_server import converter_server
from tests.support.embedding_gemma import embedding_gemma
from tests.support.llamacpp import beyond, checkpoint, of_llamacpp, of_transformers
from tests.support.mlx_models import MODELS as OF_MLX
from tests.support.mlx_models import MlxLm, mlx_checkpoint, of_mlx
from tests.support.models import TINY
from tests.support.stock_tree import published, tree_for_tiny_models
from tests.support.vision import MODELS as VISION
from tests.support.vision import vision_checkpoint

OUT = Path(__file__).parents[2] / "docs" / "evidence" / "stock-converter.json"
METHODS = {"as-is": AS_IS, "yarn": YARN, "mixed": MIXED, "ntk": NTK}
USUAL = ["as-is", "yarn", "mixed"]
OTHERWISE = "ntk"
"""Another base, for an architecture in which no usual method but as-is can be written."""
RIGHT = 2e-5
"""The largest mean KL divergence of a right result: a wrong one is above 1e-2."""
UNREGISTERED = "is not supported"
"""The last words of the converter for a class that it does not have: the status is unknown."""
LONGEST = 300
EMBEDDING_GEMMA = "embedding_gemma"


Reference = Callable[[Path, Plan | None], torch.Tensor]
"""From a checkpoint and a plan, or None for the unscaled model, to logits at every position."""


def result_of(
    source: Path, method: str, folder: Path, reference: Reference = of_transformers, **options: Any
) -> dict[str, Any]:
    """The outcome for a checkpoint: a status with the divergence, or with the reason."""
    out = folder / "out.gguf"
    out.unlink(missing_ok=True)
    try:
        plan = make_plan(source, METHODS[method], out, to="gguf", outtype="f32", **options)
        apply(plan, check=False, fsync=False, remember=True)
        expected = reference(source, plan)
        computed = of_llamacpp(out)
        kl = max(bucket.kl_mean for bucket in beyond(expected, computed))
        unscaled = reference(source, None)
        control = max(bucket.kl_mean for bucket in beyond(expected, unscaled))
    except UnsupportedBake as refusal:
        return {"status": "refused", "reason": str(refusal)[:LONGEST]}
    except (RopeconvError, RuntimeError, ValueError, AttributeError) as problem:
        if UNREGISTERED in str(problem):
            return {"status": "unknown"}
        return {"status": "fails", "reason": str(problem)[:LONGEST]}
    status = "right" if kl < RIGHT else "wrong"
    return {
        "status": status,
        "kl": float(f"{kl:.2g}"),
        "control": float(f"{control:.2g}"),
        "arch": GgufFile.open(out).get("general.architecture"),
    }


def checkpoint_of(model_type: str, folder: Path) -> Path:
    """A tiny checkpoint of a model type, or of EmbeddingGemma, which is a Gemma 3 by its type."""
    if model_type == EMBEDDING_GEMMA:
        return embedding_gemma(folder)
    if model_type in VISION:
        return vision_checkpoint(model_type, folder)
    return published(model_type, folder)


def row_of(model_type: str, tree: Path, methods: list[str], own: bool) -> dict[str, Any]:
    """The results of a model type, by converter and method."""
    row: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = checkpoint_of(model_type, folder / "Tiny")
        config = json.loads((source / "config.json").read_text())
        row["class"] = (config["architectures"] or [""])[0]
        known = detect(config).gguf
        converters: dict[str, dict[str, Any]] = {"stock": {"converter": tree}}
        if known and own:
            converters["own"] = {}
        for converter, options in converters.items():
            results: dict[str, Any] = {}
            # the converter takes only a Ministral 3 that is scaled, and a method one that is not
            if model_type == "ministral3" and converter == "own":
                source = checkpoint(model_type, folder / "Unscaled")
            for method in methods:
                results[method] = result_of(source, method, folder, **options)
                if results["as-is"]["status"] in ("fails", "refused", "unknown"):
                    break
            row[converter] = results
    return row


def mlx_row(name: str, tree: Path, methods: list[str], mlx: MlxLm) -> dict[str, Any]:
    """The results of a model that is compared with mlx-lm, by method."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        source = mlx_checkpoint(name, folder / "Tiny", mlx)
        config = json.loads((source / "config.json").read_text())
        row: dict[str, Any] = {"class": config["architectures"][0], "reference": mlx.version}

        def reference(source: Path, plan: Plan | None) -> torch.Tensor:
            return of_mlx(source, plan, mlx, folder / "logits.npy")

        results: dict[str, Any] = {}
        for method in methods:
            results[method] = result_of(source, method, folder, reference, converter=tree)
            if results["as-is"]["status"] in ("fails", "refused", "unknown"):
                break
        scaled = [cell["status"] for method, cell in results.items() if method != "as-is"]
        if scaled and set(scaled) == {"refused"}:
            results[OTHERWISE] = result_of(source, OTHERWISE, folder, reference, converter=tree)
        row["stock"] = results
    return row


def count(rows: dict[str, dict[str, Any]]) -> dict[str, int]:
    """How many rows are right in every method that the architecture has, by converter."""
    counts = {}
    for converter in ("stock", "own"):
        right = 0
        for row in rows.values():
            statuses = {method: cell["status"] for method, cell in row.get(converter, {}).items()}
            no_mixed = {key: value for key, value in statuses.items() if value != "refused"}
            right += statuses.get("as-is") == "right" and set(no_mixed.values()) == {"right"}
        counts[converter] = right
    return counts


def architectures(rows: dict[str, dict[str, Any]]) -> dict[str, str]:
    """The best result for each architecture of llama.cpp that rotates: right, wrong or untested.

    It is right where a model of it ends right in every method that the architecture has, by one of
    both converters.
    """
    results = dict.fromkeys(arch_table().arch, "untested")
    for row in rows.values():
        for converter in ("stock", "own"):
            cells = row.get(converter, {})
            statuses = {cell["status"] for cell in cells.values()} - {"refused"}
            for cell in cells.values():
                arch = cell.get("arch")
                if arch in results and results[arch] != "right":
                    results[arch] = "right" if statuses == {"right"} else "wrong"
    return results


def main() -> None:
    """Convert every model type, or those that are named, and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path, metavar="LLAMA_CPP")
    parser.add_argument("model_types", nargs="*", metavar="MODEL_TYPE")
    parser.add_argument("--mlx", type=Path, metavar="PYTHON")
    parser.add_argument("--methods", nargs="*", default=USUAL, choices=list(METHODS))
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--again", action="store_true", help="convert the named ones again")
    parser.add_argument("--stock-only", action="store_true")
    given = parser.parse_args()
    model_types = [*TINY, *VISION, EMBEDDING_GEMMA]
    if given.mlx is not None:
        model_types += OF_MLX
    if given.model_types:
        model_types = given.model_types

    record = {"rows": {}} if given.fresh or not OUT.exists() else json.loads(OUT.read_text())
    converter = find_converter(given.root)
    assert converter is not None
    with ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory())
        convert = stack.enter_context(converter_server(given.root))
        mlx = stack.enter_context(MlxLm(given.mlx)) if given.mlx is not None else None
        StockConverter.convert = convert  # type: ignore[method-assign]
        tree = tree_for_tiny_models(Path(name) / "llama.cpp", given.root)
        for model_type in model_types:
            if model_type in record["rows"] and not given.again:
                continue
            if mlx is not None and model_type in OF_MLX:
                row = mlx_row(model_type, tree, given.methods, mlx)
            else:
                row = row_of(model_type, tree, given.methods, own=not given.stock_only)
            record["rows"][model_type] = row
            print(model_type, json.dumps(row), flush=True)
            whole = {
                "converter": {"version": converter.version, "sha256": converter.sha256},
                "transformers": importlib.metadata.version("transformers"),
                "llama_cpp": importlib.metadata.version("llama-cpp-python"),
                "architectures": len(arch_table().arch),
                "right": count(record["rows"]),
                "by_architecture": architectures(record["rows"]),
                "rows": record["rows"],
            }
            OUT.write_text(json.dumps(whole, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
