"""Writes docs/evidence/stock-converter.json: which models llama.cpp's convert_hf_to_gguf.py and
ropeconv's own converter convert so that llama.cpp computes what transformers does.

    python -m scripts.llamacpp.stock_matrix LLAMA_CPP [MODEL_TYPE ...] [--fresh | --again]
        [--mlx PYTHON]

LLAMA_CPP is a folder with its source, such as vendor/llama.cpp of llama-cpp-python's sdist. Each
tiny checkpoint of the tests is converted by both, with and without a method, and the logits of
llama.cpp are compared with those of transformers up to four times the trained length; for encoders,
the states of all tokens. Model types that the record has are passed over, unless --fresh or
--again. A model type is unknown where the converter does not have its class.

Models that are published with code of their own have a name in tests/data/own_code.toml, where a
class of transformers computes the same, or in tests/data/mlx_models.toml, where mlx-lm does. mlx-lm
runs where --mlx names the Python of an environment with it (pip install "mlx[cpu]" mlx-lm). Their
rows name the program as `reference`.

The converter runs in forks of one process; `ropeconv apply` runs it in a process of its own.
"""

import argparse
import functools
import importlib.metadata
import json
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch import Tensor

import ropeconv
from ropeconv.bake.apply import apply
from ropeconv.bake.plan import Plan
from ropeconv.convert.to_gguf.stock import StockConverter, find_converter
from ropeconv.errors import UnsupportedBake
from ropeconv.formats.gguf.file import GgufFile
from ropeconv.models.config import detect
from ropeconv.rope.errors import RopeconvError
from ropeconv.rope.recipe import Recipe
from ropeconv.runtimes.llamacpp.archs import arch_table
from tests.support.baking import AS_IS, MIXED, NTK, YARN, make_plan
from tests.support.converter_server import converter_server
from tests.support.embedding_gemma import embedding_gemma
from tests.support.llamacpp import beyond, checkpoint, of_llamacpp, of_transformers
from tests.support.mlx_models import MODELS as OF_MLX
from tests.support.mlx_models import MlxLm, mlx_checkpoint, of_mlx
from tests.support.models import TINY
from tests.support.own_code import MODELS as OWN_CODE
from tests.support.own_code import OwnCode, of_twin, write_published, write_twin
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
CONVERTERS = ("stock", "own")
"""llama.cpp's converter, and ropeconv's own conversion."""
LONGEST = 300
EMBEDDING_GEMMA = "embedding_gemma"
STOPS = ("fails", "refused", "unknown")
"""Outcomes without a method after which no method is tried."""


def compare_methods(
    methods: list[str],
    plan_for: Callable[[Recipe, Path], Plan],
    reference: Callable[[Plan | None], Tensor],
    folder: Path,
) -> dict[str, Any]:
    """The outcome of each method, up to one after which no other is tried.

    plan_for: the plan for a recipe and an output. reference: see `compare`.
    """
    out = folder / "out.gguf"
    results: dict[str, Any] = {}
    for method in methods:
        results[method] = compare(functools.partial(plan_for, METHODS[method], out), reference, out)
        if results["as-is"]["status"] in STOPS:
            break
    return results


def compare(
    plan_it: Callable[[], Plan], reference: Callable[[Plan | None], Tensor], out: Path
) -> dict[str, Any]:
    """Write the file of a plan, run it in llama.cpp, and compare its logits with a reference.

    Args:
        plan_it: Makes the plan, or raises an error that the result has as its reason.
        reference: Returns the logits that another program computes, scaled as a plan says; unscaled
            for None.
        out: The file that the plan writes.

    Returns:
        The status: "right" or "wrong" with the divergence, "refused" or "fails" with the reason, or
        "unknown".
    """
    out.unlink(missing_ok=True)
    try:
        plan = plan_it()
        apply(plan, check=False, fsync=False, remember=True)
        expected = reference(plan)
        computed = of_llamacpp(out)
        kl = max(bucket.kl_mean for bucket in beyond(expected, computed))
        # the control: the model without the method is far away
        unscaled = reference(None)
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
    """Return the results of a model type, by converter ("stock" or "own") and method.

    Args:
        model_type: The model type.
        tree: The sources of llama.cpp with its converter.
        methods: The methods to try.
        own: Whether ropeconv's own export is tried too, where it has one.
    """
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
            # the converter takes only a Ministral 3 that is scaled, and a method one that is not
            if model_type == "ministral3" and converter == "own":
                source = checkpoint(model_type, folder / "Unscaled")
            plan_for = functools.partial(plan_export, source, **options)
            reference = functools.partial(of_transformers, source)
            row[converter] = compare_methods(methods, plan_for, reference, folder)
    return row


def plan_export(source: Path, recipe: Recipe, out: Path, **options: Any) -> Plan:
    """A plan for a checkpoint in float32."""
    return make_plan(source, recipe, out, to="gguf", outtype="f32", **options)


def row_of_own_code(name: str, tree: Path, methods: list[str]) -> dict[str, Any]:
    """Return the results of a model that is published with code of its own, by method.

    The route says what a user runs: `apply --family NAME --converter`, or the converter and then
    `apply` on its file.

    Args:
        name: A key of OWN_CODE.
        tree: The sources of llama.cpp with its converter.
        methods: The methods to try.
    """
    model = OWN_CODE[name]
    version = importlib.metadata.version("transformers")
    row: dict[str, Any] = {
        "class": model.architecture,
        "reference": f"transformers {version}, {model.same_as}",
        "route": f"--family {model.family}" if model.family else "the converter's file",
    }
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        twin = write_twin(model, folder / "Twin")
        source = write_published(model, twin, folder / "Tiny")
        plan_for = functools.partial(plan_own_code, model, source, tree)
        reference = functools.partial(of_twin, model, twin)
        row["stock"] = compare_methods(methods, plan_for, reference, folder)
    return row


def plan_own_code(model: OwnCode, source: Path, tree: Path, recipe: Recipe, out: Path) -> Plan:
    """A plan for a published checkpoint, by its route."""
    if model.family:
        opened = ropeconv.open_source(str(source), family=model.family)
        return make_plan(opened, recipe, out, to="gguf", outtype="f32", converter=tree)
    converter = find_converter(tree)
    assert converter is not None
    converted = out.with_name("converted.gguf")
    converter.convert(source, converted, "f32")
    return make_plan(converted, recipe, out)


def row_of_mlx(name: str, tree: Path, methods: list[str], mlx: MlxLm) -> dict[str, Any]:
    """The results of a model that is compared with mlx-lm, by converter and method."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        source = mlx_checkpoint(name, folder / "Tiny", mlx)
        config = json.loads((source / "config.json").read_text())
        reference = functools.partial(of_mlx, source, mlx, folder / "logits.npy")
        row: dict[str, Any] = {"class": config["architectures"][0], "reference": mlx.version}
        converters: dict[str, dict[str, Any]] = {"stock": {"converter": tree}}
        if detect(config).gguf is not None:
            converters["own"] = {}
        for converter, options in converters.items():
            plan_for = functools.partial(plan_export, source, **options)
            results = compare_methods(methods, plan_for, reference, folder)
            scaled = [cell["status"] for method, cell in results.items() if method != "as-is"]
            if scaled and set(scaled) == {"refused"}:
                plan_it = functools.partial(plan_for, METHODS[OTHERWISE], folder / "out.gguf")
                results[OTHERWISE] = compare(plan_it, reference, folder / "out.gguf")
            row[converter] = results
    return row


def count(rows: dict[str, dict[str, Any]]) -> dict[str, int]:
    """How many rows are right in every method that the architecture has, by converter."""
    counts = {}
    for converter in CONVERTERS:
        right = 0
        for row in rows.values():
            statuses = {method: cell["status"] for method, cell in row.get(converter, {}).items()}
            no_mixed = {key: value for key, value in statuses.items() if value != "refused"}
            right += statuses.get("as-is") == "right" and set(no_mixed.values()) == {"right"}
        counts[converter] = right
    return counts


def architectures(
    rows: dict[str, dict[str, Any]], converters: Sequence[str] = CONVERTERS
) -> dict[str, str]:
    """Return the best result for each architecture that rotates: "right", "wrong" or "untested".

    An architecture is right where one of its models is right in every method that it can have, by
    one of the converters.

    Args:
        rows: The results by model type, as `row_of` returns them.
        converters: The converters whose results count.
    """
    best = dict.fromkeys(arch_table().arch, "untested")
    for row in rows.values():
        for converter in converters:
            results = row.get(converter, {}).values()  # of each method
            statuses = {result["status"] for result in results} - {"refused"}
            status = "right" if statuses == {"right"} else "wrong"
            for result in results:
                arch = result.get("arch")
                if arch in best and best[arch] != "right":
                    best[arch] = status
    return best


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
    model_types = given.model_types or [*TINY, *VISION, EMBEDDING_GEMMA, *OWN_CODE]
    if given.mlx is not None and not given.model_types:
        model_types += OF_MLX
    if given.mlx is None and not set(model_types).isdisjoint(OF_MLX):
        parser.error("models of tests/data/mlx_models.toml need --mlx PYTHON")

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
            if model_type in OWN_CODE:
                row = row_of_own_code(model_type, tree, given.methods)
            elif mlx is not None and model_type in OF_MLX:
                row = row_of_mlx(model_type, tree, given.methods, mlx)
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
