"""Models with modelling code of their own: llama.cpp computes what a class of transformers does.

The record has every model and method; here a few are computed again, with controls that a mapping
between the two checkpoints is needed and seen.
"""

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ropeconv.models.registry import by_name
from scripts.llamacpp.stock_matrix import (
    METHODS,
    OUT,
    architectures,
    compare,
    count,
    plan_own_code,
)

from ...support.extent import sample
from ...support.llamacpp import EXPORTED
from ...support.optional import MISSING, skip
from ...support.own_code import MODELS, OwnCode, of_twin, write_published, write_twin

if "llama_cpp" in MISSING:
    skip("llama_cpp")

pytestmark = pytest.mark.usefixtures("quick")

RIGHT = 5e-6  # of 8 layers with linear attention; the others stay below 2e-6
DIFFERENT = 0.1
RECORD: dict[str, Any] = json.loads(OUT.read_text("utf-8"))
PAGE = OUT.parents[1] / "gguf.md"


def result(
    model: OwnCode,
    tree: Path,
    folder: Path,
    method: str = "as-is",
    twin_changes: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The outcome of a method for a model whose twin is as in the table, but for some changes."""
    folder.mkdir(exist_ok=True)
    known = next(other for other in MODELS.values() if other.architecture == model.architecture)
    known = msgspec.structs.replace(known, **(twin_changes or {}))
    twin = write_twin(known, folder / "Twin")
    source = write_published(model, twin, folder / "Tiny")
    out = folder / "out.gguf"
    plan_it = partial(plan_own_code, model, source, tree, METHODS[method], out)
    return compare(plan_it, partial(of_twin, known, twin), out)


def arch_of(name: str) -> str:
    """The architecture in llama.cpp of a table."""
    return MODELS[name].arch or name


def assert_wrong(found: dict[str, Any]) -> None:
    """llama.cpp computes something else, far beyond rounding."""
    assert found["status"] == "wrong"
    assert found["kl"] > DIFFERENT


@pytest.mark.parametrize(
    "name", sample(["orion", "llada", "graniteswitch", "step35", "minimax-01"], 3)
)
def test_llama_cpp_computes_an_extended_model_as_its_twin(
    name: str, tree: Path, tmp_path: Path
) -> None:
    found = result(MODELS[name], tree, tmp_path, "yarn")
    assert found["status"] == "right"
    assert found["arch"] == name
    assert found["kl"] < RIGHT
    # the control: the twin that is not extended
    assert found["control"] > DIFFERENT


def test_the_order_of_pairs_is_seen(tree: Path, tmp_path: Path) -> None:
    maincoder = MODELS["maincoder"]
    found = result(maincoder, tree, tmp_path)
    assert found["status"] == "right"
    assert found["kl"] < RIGHT

    halves = msgspec.structs.replace(maincoder, neighbours="")
    assert_wrong(result(halves, tree, tmp_path / "control"))


def test_llama_cpp_computes_a_bitnet_with_three_values(tree: Path, tmp_path: Path) -> None:
    bitnet = MODELS["bitnet_b1_58"]
    found = result(bitnet, tree, tmp_path, "yarn")
    assert found["status"] == "right"
    assert found["arch"] == "bitnet"
    assert found["kl"] < RIGHT
    assert found["control"] > DIFFERENT

    # the control: the converter rounds, and a twin with the stored weights computes something else
    assert_wrong(result(bitnet, tree, tmp_path / "control", twin_changes={"ternary": ""}))


def test_an_encoder_is_compared_by_its_states(tree: Path, tmp_path: Path) -> None:
    embed = MODELS["llama-embed"]
    found = result(embed, tree, tmp_path, "mixed")
    assert found["status"] == "right"
    assert found["control"] > DIFFERENT

    # the control is a finding: without the key, the file has the causal mask of a decoder
    causal = msgspec.structs.replace(embed, removed=("is_causal",))
    assert_wrong(result(causal, tree, tmp_path / "control"))


def test_llama_cpp_reads_the_heads_of_neobert_in_another_order(tree: Path, tmp_path: Path) -> None:
    """A finding: as published, the rows of a head's queries, keys and values follow each other."""
    neobert = MODELS["neo-bert"]
    assert neobert.fused[0].by_heads
    assert_wrong(result(neobert, tree, tmp_path))

    # all else is right
    blocks = msgspec.structs.replace(neobert.fused[0], by_heads=False)
    in_blocks = msgspec.structs.replace(neobert, fused=(blocks, *neobert.fused[1:]))
    other = result(in_blocks, tree, tmp_path / "blocks")
    assert other["status"] == "right"
    assert other["kl"] < RIGHT


def test_the_record_has_every_model() -> None:
    rows = {name: RECORD["rows"][name] for name in MODELS}
    for name, model in MODELS.items():
        assert rows[name]["class"] == model.architecture
        assert rows[name]["reference"].endswith(f", {model.same_as}")
        for cell in rows[name]["stock"].values():
            assert cell.get("arch", arch_of(name)) == arch_of(name)


def test_the_page_counts_the_record() -> None:
    """Each number of the two sentences is counted in the rows."""
    rows = RECORD["rows"]
    statuses = list(RECORD["by_architecture"].values())
    assert RECORD["right"] == count(rows)
    assert RECORD["by_architecture"] == architectures(rows)
    unknown = [row for row in rows.values() if row["stock"]["as-is"]["status"] == "unknown"]
    of_mlx = [row for row in rows.values() if row.get("reference", "").startswith("mlx-lm")]

    text = " ".join(PAGE.read_text().split())
    said = re.search(
        r"It has (\d+) model types. The converter does not have the class of (\d+). (\d+) of the"
        r" others end right .*?, as do all (\d+) that ropeconv converts",
        text,
    )
    assert said is not None
    right = RECORD["right"]
    assert [int(number) for number in said.groups()] == [
        len(rows),
        len(unknown),
        right["stock"],
        right["own"],
    ]
    said = re.search(r"own conversions, .*?, end right in (\d+) architectures", text)
    assert said is not None
    assert int(said[1]) == list(architectures(rows, ("own",)).values()).count("right")
    said = re.search(
        r"both, (\d+) of the (\d+) architectures .*? (\d+) architectures are not compared", text
    )
    assert said is not None
    assert [int(number) for number in said.groups()] == [
        statuses.count("right"),
        len(statuses),
        statuses.count("untested"),
    ]
    said = re.search(r"For (\d+) others .*? are those of mlx-lm", text)
    assert said is not None
    assert int(said[1]) == len(of_mlx)


def test_the_page_counts_the_families_that_are_converted() -> None:
    """And the record has a result of every one that has a tiny checkpoint."""
    said = re.search(r"`--to gguf` converts (\d+) families", PAGE.read_text())
    assert said is not None
    assert int(said[1]) == len([family for family in by_name().values() if family.gguf])
    assert [name for name in EXPORTED if "own" not in RECORD["rows"][name]] == []


def test_the_page_counts_them() -> None:
    """The sentence says how many are right, of how many."""
    statuses = [RECORD["by_architecture"][arch_of(name)] for name in MODELS]
    said = re.search(r"(\d+) of (\d+) models with modelling\s+code of their own", PAGE.read_text())
    assert said is not None
    assert (int(said[1]), int(said[2])) == (statuses.count("right"), len(MODELS))
