"""The table of runtimes against what the lab saw when it executed them: every cell of the models of
the day.

`scripts/lab` writes the records. One that is about other configs than today's is red here, and is
made again there.
"""

import os
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from ropeconv.bake.advice import counts, matrix
from ropeconv.models.registry import by_model_type
from ropeconv.runtimes.evidence import records
from ropeconv.runtimes.lab_file import Record
from ropeconv.runtimes.runtime import runtimes
from scripts.laboratory.agree import disagreements, with_option
from scripts.laboratory.cells import Cell, cells, sources
from scripts.laboratory.draft import row_of
from scripts.laboratory.records import digest
from scripts.laboratory.runtimes import RUNTIMES

from ..support.extent import sample
from ..support.models import TINY

ROOT = Path(__file__).parents[2]

EXECUTED = ("transformers", "vllm", "sglang", "mlx-lm", "exllamav3", "llama-cpp", "lmdeploy")
SOURCES = sources()
TODAY = set(sample(sorted(SOURCES), 10))


@cache
def cells_of(model: str) -> list[Cell]:
    return list(cells(model, SOURCES[model]))


def config_records() -> Iterator[Record]:
    names = {runtime.name for runtime in RUNTIMES}
    return (record for record in records() if record.runtime in names and not record.options)


@pytest.mark.parametrize(
    "record", list(config_records()), ids=lambda record: f"{record.runtime}-{record.version}"
)
def test_the_table_says_what_the_lab_saw(record: Record) -> None:
    assert set(record.models) <= set(SOURCES)
    errors = []
    for name in TODAY & set(record.models):
        grid = cells_of(name)
        model = record.models[name]
        assert model.digest == digest(grid), (
            f"{name} has other configs now; run scripts/lab {record.runtime}"
        )
        statuses = model.statuses(tuple(cell.name for cell in grid))
        assert len(statuses) == len(grid)
        errors += [
            str(error)
            for error in disagreements(row_of(record.runtime, record.version)[0], grid, statuses)
        ]
    assert errors == []


@pytest.mark.parametrize(
    "record",
    [record for record in records() if record.options],
    ids=lambda record: f"{record.runtime}-{record.version}",
)
def test_an_option_is_offered_only_where_the_lab_saw_that_it_helps(record: Record) -> None:
    """Every cell that is exact with the option by the table was so in the lab, and some are."""
    row, _ = row_of(record.runtime, record.version)
    (option,) = (option for option in row.options if option.words == record.options)
    offered = 0
    for name in record.models:
        grid = cells_of(name)
        model = record.models[name]
        assert model.digest == digest(grid)
        statuses = model.statuses(tuple(cell.name for cell in grid))
        assert list(map(str, with_option(row, option, grid, statuses))) == []
        # the control: were nothing exact, each offer would be a disagreement
        nothing = dict.fromkeys(statuses, "differs")
        offered += len(list(with_option(row, option, grid, nothing)))
    assert offered >= 5


def test_every_version_of_the_lab_has_a_record() -> None:
    recorded = {(record.runtime, record.version) for record in records()}
    assert {
        (runtime.name, version) for runtime in RUNTIMES for version in runtime.versions
    } <= recorded


def test_the_workflow_runs_releases_of_runtimes_in_the_lab() -> None:
    """It finds the record of a release where the lab saves it, and no other one."""
    text = (ROOT / ".github" / "workflows" / "runtimes.yml").read_text()
    names = set(yaml.safe_load(text)["jobs"]["lab"]["strategy"]["matrix"]["runtime"])
    assert names <= {runtime.name for runtime in RUNTIMES}
    looked_up = set(re.findall(r"grep -qF .*?\.json\"", text))
    assert len(looked_up) == 2

    newest = {record.runtime: record.version for record in records() if not record.options}
    for name in names:
        for version, code in ((newest[name], 0), ("99.0.0", 1)):
            for command in looked_up:
                words = {"RUNTIME": name, "VERSION": version, "version": version}
                done = subprocess.run(["bash", "-c", command], cwd=ROOT, env=os.environ | words)
                assert done.returncode == code, (name, version, command)


def test_every_tiny_family_is_in_the_lab() -> None:
    tiny = {by_model_type()[model_type].name for model_type in TINY}
    assert tiny <= set(SOURCES)
    (newest_record,) = (
        entry for entry in records() if (entry.runtime, entry.version) == ("transformers", "5.23.0")
    )
    assert tiny <= set(newest_record.models)


def test_what_is_executed_is_said_to_be() -> None:
    """At least 85 % of what the table states of the runtimes that can be executed here was
    executed.
    """
    names = {row.key for row in runtimes() if row.name in EXECUTED}
    grades = counts(cell for cell in matrix() if cell.verdict.runtime.partition("@")[0] in EXECUTED)
    assert names
    assert grades["run"] >= 0.85 * (grades["run"] + grades["read"]), grades


def test_llama_cpp_computes_what_the_gguf_encodings_write() -> None:
    record = next(record for record in records() if record.runtime == "llama-cpp-gguf")
    assert {name: model.others for name, model in record.models.items() if model.others} == {}
    assert {"keys", "tensor"} <= {
        encoding for model in record.models.values() for encoding in model.rope_types
    }
