"""Tables of docs/engines.md and docs/vectors.md, from docs/evidence/vectors.json, which
`python -m scripts.vectors run` writes. `tables.py` puts them into the pages.
"""

import json
import textwrap
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[2] / "docs" / "evidence" / "vectors.json"
ORDER = ("transformers", "llama.cpp", "vLLM", "mlx-lm", "ONNX Runtime", "OpenVINO")
"""The engines in the order of the columns."""
FEW = 7
"""The most methods that a cell names."""
NOT_RUN = "not run"
PASS = "pass"
NONE = "none of these"
"""The outcome where no known mistake fits."""

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
    for outcome, names in sorted(methods.items(), key=lambda item: -len(item[1])):
        if len(names) > FEW:
            parts.append(f"{outcome}: {len(names)} methods")
        else:
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


FROM_FILES = ("longrope", "inv-freq")
"""Methods whose option is given a file."""
CAUSES = {
    ("mlx-lm", "unscaled"): (
        "these model files of mlx_lm/models build `nn.RoPE` with the base only, and never pass"
        " `rope_scaling` to `initialize_rope` (rope_utils.py)"
    ),
    ("llama.cpp", "long-list"): (
        "`get_rope_factors` (llama-model.cpp) chooses the list by the context that llama.cpp was"
        " started with, and not by the length of the prompt. Started with `-c` up to the trained"
        " context, it has the short list"
    ),
    ("vLLM", "long-list"): (
        "`Phi3LongRoPEScaledRotaryEmbedding` chooses the list by `max_model_len`, and not by the"
        " length of the prompt (phi3_long_rope_scaled_rope.py). Started with the trained context,"
        " it has the short list"
    ),
    ("mlx-lm", "long-list"): (
        "`SuScaledRoPE` computes its frequencies from `long_factor` once, and never reads"
        " `short_factor`, also for sequences up to `original_max_position_embeddings`"
        " (rope_utils.py)"
    ),
    ("mlx-lm", "none of these"): (
        "two causes at once, by the source. `--ntk-fixed` is written as a larger `rope_theta` with"
        " a linear factor, and the model files that never pass `rope_scaling` use the base only;"
        " for deepseek_v3 `SuScaledRoPE` has the long list and the other layout"
    ),
    ("mlx-lm", "layout"): (
        "`SuScaledRoPE`, which `initialize_rope` builds for `longrope`, calls `mx.fast.rope` with"
        " `traditional=False` whatever the model passes (rope_utils.py)"
    ),
}
"""The cause in the source of an engine, with its place, by engine and mistake."""


def vector_defects() -> str:
    """Return a report for each mistake of each engine."""
    reports = []
    for engine, document in results().items():
        mistakes: dict[str, dict[str, Result]] = {}
        for name, result in document["results"].items():
            if result["outcome"] not in (PASS, NOT_RUN):
                mistakes.setdefault(result["outcome"], {})[name] = result
        for mistake, found in mistakes.items():
            reports.append(report(engine, document["version"], mistake, found))
    return "\n\n".join(reports)


def example(found: Mapping[str, Result]) -> str:
    """Return the command that writes one of the packets; one without a file if there is one."""
    for name, result in found.items():
        family, _, method = name.partition("/")
        if method not in FROM_FILES:
            return " ".join(("ropeconv", "vectors", family, result["recipe"], "-o", "packet"))
    family, _, method = next(iter(found)).partition("/")
    return f"python -m scripts.vectors build packet --families {family} --methods {method}"


def report(engine: str, version: str, mistake: str, found: Mapping[str, Result]) -> str:
    """Return the report of one mistake of an engine.

    Args:
        engine: Its name.
        version: Its version.
        mistake: The name of the mistake.
        found: The results of the packets in which it makes it.
    """
    families: dict[str, list[str]] = {}
    for name in found:
        family, _, method = name.partition("/")
        families.setdefault(method, []).append(family)
    methods: dict[str, list[str]] = {}  # by the architectures that they share
    for method, names in families.items():
        methods.setdefault(", ".join(names), []).append(f"`{method}`")
    packets = "; ".join(f"{', '.join(flags)} of {names}" for names, flags in methods.items())
    command = example(found)
    allowed = max(result.get("allowed", 0.0) for result in found.values())
    farthest = max(result.get("distance", 0.0) for result in found.values())
    method_away = min(result.get("from_method", 0.0) for result in found.values())
    if mistake == NONE:
        seen = "the logits of no known mistake"
    else:
        seen = f"{mistake}, at most {farthest:.1e} away from its logits"

    parts = [
        f"- Program: {version}",
        (
            f"- Input: the packets of {packets}; for example `{command}`, and in the engine the"
            " token ids of `packet/packet.json`"
        ),
        f"- Expected: logits at most {allowed:.1e} from those of the method",
        f"- Seen: {seen}; those of the method are at least {method_away:.2g} away",
    ]
    if (engine, mistake) in CAUSES:
        parts.append(f"- Cause: {CAUSES[engine, mistake]}")
    lines = [textwrap.fill(part, 119, subsequent_indent="  ") for part in parts]
    return "\n".join([f"### {engine}: {mistake}", "", *lines])
