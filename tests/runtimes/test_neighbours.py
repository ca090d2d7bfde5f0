"""The rows of each runtime in the order of versions: what a row says unlike both of its neighbours
needs a record.

A rule that a row lost looks so: dual chunk attention was refused in vLLM 0.11 and 0.20, and exact
in the rows between.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import msgspec
import pytest

from ropeconv.models.config import sample_config
from ropeconv.models.family import Family
from ropeconv.models.registry import by_name, package_families
from ropeconv.models.schema import DUAL_CHUNK, Config
from ropeconv.rope.errors import RopeconvError
from ropeconv.runtimes import evidence as evidence_module
from ropeconv.runtimes import verdict as verdict_module
from ropeconv.runtimes.evidence import evidence, read_keys
from ropeconv.runtimes.lab_file import ReadKeys
from ropeconv.runtimes.read_config import read_spec
from ropeconv.runtimes.runtime import (
    KeyStatement,
    RowFile,
    Runtime,
    find,
    runtimes,
    version_key,
)
from ropeconv.runtimes.stored import runtime_data
from ropeconv.runtimes.verdict import judge, rows_for

from ..support.extent import sample

ORIGINAL = {"factor": 4.0, "original_max_position_embeddings": 1024}
SPECIAL: dict[str, Config] = {
    "": {},
    DUAL_CHUNK: {
        DUAL_CHUNK: {"chunk_size": 512, "local_size": 64, "original_max_position_embeddings": 1024}
    },
    "quantization_config": {"quantization_config": {"quant_method": "awq"}},
}
"""Keys beside the RoPE dictionary that can decide, by the name of what has to be recorded."""


def ropes(pairs: int) -> dict[str, Config]:
    """RoPE dictionaries by what they are about. pairs: how many rotate."""
    lists = {"short_factor": [1.0] * pairs, "long_factor": [4.0] * pairs}
    return {
        "default": {},
        "linear": {"rope_type": "linear", "factor": 4.0},
        "dynamic": {"rope_type": "dynamic", "factor": 4.0},
        "yarn": {"rope_type": "yarn", **ORIGINAL},
        "yarn, attention factor": {"rope_type": "yarn", **ORIGINAL, "attention_factor": 1.3},
        "yarn, no truncation": {"rope_type": "yarn", **ORIGINAL, "truncate": False},
        "llama3": {
            "rope_type": "llama3",
            **ORIGINAL,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        },
        "longrope": {"rope_type": "longrope", **ORIGINAL, **lists},
        "longrope, one list": {
            "rope_type": "longrope",
            **ORIGINAL,
            **lists,
            "short_factor": [4.0] * pairs,
        },
    }


@dataclass(frozen=True)
class Run:
    """Neighbouring rows that say the same about a config."""

    status: str
    rows: tuple[Runtime, ...]


def runs(name: str, config: Config, family: Family) -> list[Run]:
    """What the rows of a runtime say about a config, in the order of versions."""
    spec = read_spec(config, family)
    rows = sorted(
        (row for row in rows_for(family) if row.name == name),
        key=lambda row: version_key(row.version),
    )
    judged = [(judge(config, family, spec.current(), spec, row).status, row) for row in rows]
    groups = groupby(judged, key=lambda pair: pair[0])
    return [Run(status, tuple(row for _, row in group)) for status, group in groups]


def is_recorded(row: Runtime, family: Family, key: str) -> bool:
    """Whether what a row says of a family, or of a config key, is known of that row itself."""
    if key == DUAL_CHUNK:  # which its code reads or does not read, by extraction from that version
        return any(row.covers(version) for version in evidence_module._records(row.name))
    if evidence(row, family.name).grade == "run":
        return True
    return any(
        family.name in statement.get("names", ()) and statement.get("source")
        for statement in own_statements(row)
    )


def own_statements(row: Runtime) -> list[dict[str, Any]]:
    """The statements of a row itself, without those that it inherits.

    `rows_for` divides a row where a version is the first with the code of a family, so a part of it
    begins later than the row of the file.
    """
    contents = runtime_data(f"data/{row.name}.toml", RowFile).contents()
    begun = [first for first in contents if version_key(first) <= version_key(row.version)]
    content = contents[max(begun, key=version_key)]
    statements: list[dict[str, Any]] = content.get("families", [])
    return statements


def unlike(config: Config, family: Family, key: str) -> Iterator[str]:
    """Yield the rows that say something else than both neighbours, without a record of their
    own.
    """
    for name in dict.fromkeys(row.name for row in runtimes()):
        stated = runs(name, config, family)
        for before, run, after in zip(stated, stated[1:], stated[2:], strict=False):
            if "unknown" in (before.status, run.status, after.status):  # nothing is claimed
                continue
            if not any(is_recorded(row, family, key) for row in run.rows):
                names = ", ".join(row.key for row in run.rows)
                yield (
                    f"{names}: {run.status} for {family.name}, and {before.status} and"
                    f" {after.status} beside it"
                )


def configs(family: Family) -> Iterator[tuple[str, str, Config]]:
    """Yield configs of a family by the RoPE dictionary and the special key."""
    base = sample_config(family)
    pairs = read_spec(base, family).rotary_dim // 2
    for name, rope in ropes(pairs).items():
        for key, more in SPECIAL.items():
            if not key or name in ("default", "yarn"):
                scaling = {"rope_scaling": {**rope, "type": rope["rope_type"]}} if rope else {}
                yield name, key, {**base, **more, **scaling}


MOST_USED = ("llama", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe")
FAMILIES = [family.name for family in package_families() if not (family.refuse or family.halves)]
TODAY = [*MOST_USED, *sample([name for name in FAMILIES if name not in MOST_USED], 8)]


@pytest.mark.parametrize("name", TODAY)
def test_a_row_unlike_both_neighbours_has_a_record_of_its_own(name: str) -> None:
    family = by_name()[name]
    found = list[str]()
    for rope, key, config in configs(family):
        try:
            found += [f"{rope} {key}: {line}" for line in unlike(config, family, key)]
        except RopeconvError:  # a rope type that the family does not have
            continue
    assert found == []


def test_a_rule_that_a_row_loses_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    family = by_name()["qwen2"]
    config = {
        **sample_config(family),
        **SPECIAL[DUAL_CHUNK],
        "rope_scaling": {"rope_type": "yarn", **ORIGINAL},
    }
    assert list(unlike(config, family, DUAL_CHUNK)) == []
    lost = {"vllm@0.12", "vllm@0.17", "vllm@0.19"}
    extracted = {"0.12.0", "0.16.0", "0.17.1", "0.18.1", "0.19.1"}
    stated = verdict_module.stated_key

    def without(
        config: Config, family: Family, runtime: Runtime
    ) -> tuple[str, KeyStatement] | None:
        return None if runtime.key in lost else stated(config, family, runtime)

    monkeypatch.setattr(verdict_module, "stated_key", without)
    records = dict(evidence_module._records("vllm"))
    kept = {version: keys for version, keys in records.items() if version not in extracted}
    monkeypatch.setattr(evidence_module, "_records", lambda name: kept if name == "vllm" else {})
    (line,) = unlike(config, family, DUAL_CHUNK)
    assert all(key in line for key in lost)


VLLM = (
    "0.11.0",
    "0.11.2",
    "0.12.0",
    "0.16.0",
    "0.17.1",
    "0.19.1",
    "0.20.2",
    "0.24.0",
    "0.25.0",
    "0.26.0",
    "0.27.1",
    "0.28.0",
    "0.29.0",
    "0.31.0",
    "0.33.0",
)


@pytest.mark.parametrize(
    ("runtime", "status"),
    [
        # each release from 0.11 on takes the branch of dual chunk attention first, and has no
        # backend for it
        *((f"vllm@{version}", "refused") for version in VLLM),
        # its backend was removed between 0.5.16 and 0.5.20
        ("sglang@0.5.10", "differs"),
        ("sglang@0.5.16", "differs"),
        ("sglang@0.5.20", "refused"),
        ("sglang@0.5.23", "refused"),
        ("transformers@5.23", "exact"),
    ],
)
@pytest.mark.parametrize("name", ["qwen2", "qwen2_moe", "qwen3"])
def test_yarn_beside_dual_chunk_attention(name: str, runtime: str, status: str) -> None:
    """Qwen2.5-1M and its siblings, with YaRN by 4."""
    family = by_name()[name]
    yarn = {"rope_type": "yarn", "type": "yarn", **ORIGINAL}
    config = {**sample_config(family), **SPECIAL[DUAL_CHUNK], "rope_scaling": yarn}
    spec = read_spec(config, family)
    (row,) = find(runtime)
    assert judge(config, family, spec.current(), spec, row).status == status


def test_the_keys_of_every_row_were_extracted_from_its_own_version() -> None:
    extracted = {row.name for row in runtimes() if evidence_module._records(row.name)}
    assert {"transformers", "vllm", "sglang", "mlx-lm", "exllamav3"} <= extracted
    for row in runtimes():
        if row.name in extracted:
            assert any(row.covers(version) for version in evidence_module._records(row.name)), (
                row.key
            )


def test_a_row_that_nobody_extracted_reads_what_the_row_before_it_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    versions = {"1.0": ReadKeys(("a",), {}), "1.2": ReadKeys(("b",), {})}
    monkeypatch.setattr(evidence_module, "_records", lambda name: versions)
    (row,) = find("vllm@0.33")
    read = {
        version: read_keys(msgspec.structs.replace(row, version=version, through="")).rope
        for version in ("0.9", "1.0", "1.1", "1.2", "1.3")
    }
    assert read == {"0.9": ("a",), "1.0": ("a",), "1.1": ("a",), "1.2": ("b",), "1.3": ("b",)}
    monkeypatch.setattr(evidence_module, "_records", lambda name: {})
    assert read_keys(row) == ReadKeys((), {})
