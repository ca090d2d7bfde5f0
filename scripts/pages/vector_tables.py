"""Tables of docs/engines.md and docs/vectors.md, from docs/evidence/vectors.json, which
`python -m scripts.vectors run` writes. `tables.py` puts them into the pages.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[2] / "docs" / "evidence" / "vectors.json"
ORDER = ("transformers", "llama.cpp", "vLLM", "mlx-lm", "ONNX Runtime", "OpenVINO")
"""The engines in the order of the columns."""
NOT_RUN = "not run"
PASS = "pass"

Result = Mapping[str, Any]


@cache
def results() -> dict[str, dict[str, Any]]:
    """Return the results by engine."""
    document: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return {engine: document[engine] for engine in ORDER if engine in document}


def by_family(engine: str) -> dict[str, dict[str, Result]]:
    """Return the results of an engine by architecture and method."""
    families: dict[str, dict[str, Result]] = {}
    for name, result in results()[engine]["results"].items():
        family, _, method = name.partition("/")
        families.setdefault(family, {})[method] = result
    return families


def cell(found: Mapping[str, Result]) -> str:
    """Return what an engine computes for an architecture, by the methods of its packets."""
    methods: dict[str, list[str]] = {}
    for method, result in found.items():
        methods.setdefault(result["outcome"], []).append(method)
    if not methods:
        return ""
    if len(methods) == 1:
        return next(iter(methods))
    parts = []
    for outcome, names in methods.items():
        parts.append(f"{outcome}: {', '.join(names)}")
    return "; ".join(parts)


def vector_results() -> str:
    """Return the table of engines and architectures."""
    columns = {engine: by_family(engine) for engine in results()}
    families = sorted({family for column in columns.values() for family in column})
    lines = [
        "| architecture | " + " | ".join(columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for family in families:
        cells = [cell(column.get(family, {})) for column in columns.values()]
        lines.append(f"| `{family}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def vector_versions() -> str:
    """Return the table of engines with their versions and how many packets pass."""
    lines = ["| engine | version | pass | mistake | not run |", "|---|---|---|---|---|"]
    for engine, document in results().items():
        outcomes = [result["outcome"] for result in document["results"].values()]
        passed = outcomes.count(PASS)
        missing = outcomes.count(NOT_RUN)
        wrong = len(outcomes) - passed - missing
        lines.append(f"| {engine} | {document['version']} | {passed} | {wrong} | {missing} |")
    return "\n".join(lines)


def vector_defects() -> str:
    """Return the table of packets that do not pass."""
    lines = [
        "| engine | packet | it computes | distance of that | distance of the method | allowed |",
        "|---|---|---|---|---|---|",
    ]
    for engine, document in results().items():
        for name, result in document["results"].items():
            if result["outcome"] in (PASS, NOT_RUN):
                continue
            numbers = ("distance", "from_method", "allowed")
            cells = [f"{result[key]:.1e}" if key in result else "" for key in numbers]
            lines.append(
                f"| {engine} | `{name}` | {result['outcome']} | " + " | ".join(cells) + " |"
            )
    return "\n".join(lines)


def vector_not_run() -> str:
    """Return why packets were not run, by engine."""
    lines = []
    for engine, document in results().items():
        reasons: dict[str, list[str]] = {}
        for name, result in document["results"].items():
            if result["outcome"] == NOT_RUN:
                reasons.setdefault(result["sentence"], []).append(name)
        for reason, names in sorted(reasons.items()):
            lines.append(f"- {engine}: {', '.join(names)}: {reason}")
    return "\n".join(lines)
