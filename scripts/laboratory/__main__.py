"""Executes runtimes on the configs of the lab, and writes what they did as
`ropeconv/runtimes/lab/NAME.json`.

`scripts/lab` executes the versions that install quickly, `scripts/lab --all` every one, and
`scripts/lab vllm@0.33.0 mlx-lm` those. With `--check` nothing is written: what was seen has to be
what the records say. With `--new` only models are executed that the record lacks, and added to it.
The table of runtimes is compared with the results in every case.
"""

import argparse
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from difflib import get_close_matches
from typing import Any

from ropeconv.runtimes.evidence import executed_models, records
from ropeconv.runtimes.lab_file import ModelRecord, Record, lab_file, lab_models, runtime_records
from ropeconv.runtimes.runtime import runtimes

from .agree import Disagreement, disagreements, with_option
from .cells import SAMPLE, Cell, cells, sources
from .compare import outcome
from .draft import CannotDraft, changes, draft, previous, row_of
from .environment import LabRuntime, NotInstallable
from .execute import answers
from .records import extended, in_file_name, load, model_record, save, save_models
from .runtimes import RUNTIMES

SHOWN = 8


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    check: bool
    """Compare with the records, and write nothing."""

    reuse: bool
    """Take the answers of the last run where there are any."""

    new: bool = False
    """Execute only models that the record lacks, and add them to it."""

    models: tuple[str, ...] = ()
    """Execute only these, and put them into the record; empty for all."""

    words: str = ""
    """An option of the server that the row of the runtime has; empty for none."""


class Models(dict[str, list[Cell]]):
    """The cells of each model by its name, made when they are asked for."""

    def __init__(self, configs: dict[str, dict[str, Any]], sample: tuple[str, ...]) -> None:
        """Make no cell yet.

        Args:
            configs: The config of each model, by its name.
            sample: The names of the cells that are made; empty for all.
        """
        super().__init__()
        self.configs = configs
        self.sample = sample

    def __missing__(self, name: str) -> list[Cell]:
        """Make the cells of a model, which Python asks for when they are not here yet."""
        cells_of_model = []
        for cell in cells(name, self.configs[name]):
            if not self.sample or cell.name in self.sample:
                cells_of_model.append(cell)
        self[name] = cells_of_model
        return cells_of_model


def main() -> int:
    """Execute what the command line names; return 1 where something was seen that is recorded
    otherwise.
    """
    parser = argparse.ArgumentParser(prog="scripts/lab", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME[@VERSION]", help="runtimes to execute")
    parser.add_argument(
        "--all", action="store_true", help="every version, not only those that install quickly"
    )
    parser.add_argument(
        "--check", action="store_true", help="compare with the records and write nothing"
    )
    parser.add_argument(
        "--sample",
        action="store_true",
        help="with --check: small models, and a method per rope type",
    )
    parser.add_argument(
        "--daily", type=int, default=0, metavar="N", help="only N versions, others on other days"
    )
    parser.add_argument(
        "--reuse", action="store_true", help="take the answers of the last run where there are any"
    )
    parser.add_argument("--new", action="store_true", help="only models that the record lacks")
    parser.add_argument(
        "--jobs", type=int, default=1, help="versions that are executed at the same time"
    )
    parser.add_argument(
        "--models",
        default="",
        metavar="A,B",
        help="only these models, by their names in the records",
    )
    parser.add_argument(
        "--with-option",
        default="",
        metavar="WORDS",
        help="start servers with an option of their row, as in --with-option='--model-impl"
        " transformers'",
    )
    given = parser.parse_args()
    if given.sample and not given.check:
        parser.error("--sample goes with --check: a record is about all cells")

    # transformers warns of tokens outside of the tiny vocabularies
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    models = Models(sources(published=not given.sample), SAMPLE if given.sample else ())
    options = Options(
        check=given.check,
        reuse=given.reuse,
        new=given.new,
        models=tuple(filter(None, given.models.split(","))),
        words=given.with_option,
    )
    for name in options.models:
        if name not in models.configs:
            near = get_close_matches(name, models.configs, 1)
            help_with_name = f"use {near[0]!r}" if near else "the records name them"
            parser.error(f"there is no model {name!r}; {help_with_name}")

    programs = selected(given.names, given.all)
    if given.daily:
        programs = of_today(programs, given.daily)

    def report_program(program: tuple[LabRuntime, str]) -> bool:
        runtime, version = program
        return report(runtime, version, models, options)

    with ThreadPoolExecutor(given.jobs) as pool:
        has_disagreements = list(pool.map(report_program, programs))
    return 1 if any(has_disagreements) else 0


def of_today(programs: list[tuple[LabRuntime, str]], count: int) -> list[tuple[LabRuntime, str]]:
    """Return some of the runtimes, others on other days, so that each has its turn.

    Args:
        programs: The runtimes, each with a version.
        count: How many are returned.
    """
    day = int(os.environ.get("ROPECONV_TESTS_DAY") or date.today().toordinal())
    first = day * count
    return [programs[(first + index) % len(programs)] for index in range(count)]


def selected(names: list[str], everything: bool) -> list[tuple[LabRuntime, str]]:
    """Return the runtimes to execute, each with a version.

    Args:
        names: Such as "vllm@0.33.0", or "vllm" for all its versions; empty for every runtime.
        everything: Without names: every version, and not only those that install quickly.
    """
    programs = []
    for runtime in RUNTIMES:
        if not names:
            versions = runtime.versions if everything else runtime.quick
            programs += [(runtime, version) for version in versions]
        for name in names:
            runtime_name, _, version = name.partition("@")
            if runtime_name != runtime.name:
                continue
            versions = (version,) if version else runtime.versions
            programs += [(runtime, release) for release in versions]
    if names and not programs:
        known = ", ".join(runtime.name for runtime in RUNTIMES)
        raise SystemExit(f"no such runtime in the lab; known: {known}")
    return programs


def report(runtime: LabRuntime, version: str, models: Models, options: Options) -> bool:
    """Execute one version, print what disagrees, and return whether something does."""
    started = time.monotonic()
    try:
        problems = execute(runtime, version, models, options)
    except NotInstallable as reason:
        print(f"{runtime.name} {version}: not executed, {reason}", flush=True)
        return False
    seconds = time.monotonic() - started
    title = f"{runtime.name} {version}: {seconds:.0f} s, {len(problems)} disagreements"
    print("\n  ".join([title, *problems[:SHOWN]]), flush=True)
    return bool(problems)


def execute(runtime: LabRuntime, version: str, models: Models, options: Options) -> list[str]:
    """Execute one version on the configs of the lab, and write its record unless it is a check.

    Args:
        runtime: The runtime.
        version: Its version.
        models: The configs, and the cells of each: what is written with each method and encoding.
        options: Those of the command line. With `check`, only models that the record has are
            executed; with `new`, only those that it has not.

    Returns:
        Sentences on what disagrees with the table of runtimes or, with `check`, with the record.
    """
    row, covered = row_of(runtime.name, version)
    option = next((option for option in row.options if option.words == options.words), None)
    if options.words and option is None:
        return [f"its row does not have the option {options.words}"]

    # the models to execute, and what an earlier run has recorded
    known = None
    if options.check or options.new or options.models:
        known = load(runtime.name, version, options.words)
    names = list(options.models or models.configs)
    if known is not None and (options.check or options.new):
        wants_recorded = not options.new
        names = [name for name in names if (name in known.models) is wants_recorded]
    chosen = {name: models[name] for name in names}

    # one question about each cell
    questions = []
    for cells_of_model in chosen.values():
        for cell in cells_of_model:
            question = cell.question
            if option is not None:
                question = question | {"options": option.settings}
            questions.append(question)
    kind = in_file_name(options.words)
    by_question = answers(runtime, version, questions, options.reuse, kind)

    # what came out, by model and cell
    recorded = {}
    problems = []
    statuses: dict[str, dict[str, str]] = {}
    for name, cells_of_model in chosen.items():
        outcomes = {cell.name: outcome(cell, by_question[cell.key]) for cell in cells_of_model}
        statuses[name] = {cell: result.status for cell, result in outcomes.items()}
        recorded[name] = model_record(cells_of_model, outcomes)
        if not options.check or known is None:
            continue
        if statuses[name] != known.models[name].statuses(tuple(outcomes)):
            problems.append(
                f"{name}: the record of {known.date} says something else; run scripts/lab"
                f" {runtime.name}"
            )
    if not options.check:
        today = date.today().isoformat()
        record = Record(runtime.name, version, today, runtime.how, recorded, options.words)
        save(record if known is None else extended(known, recorded, today))
        save_models(models.configs)
        for read in (lab_file, runtime_records, records, lab_models, executed_models, runtimes):
            read.cache_clear()

    # what the table says otherwise
    against: list[Disagreement] = []
    for name, cells_of_model in chosen.items():
        if option is not None:
            against += with_option(row, option, cells_of_model, statuses[name])
        else:
            against += disagreements(row, cells_of_model, statuses[name])
    if option is None and not covered and not options.check:
        problems += draft_row(runtime.name, version, recorded, against)
    return [*problems, *map(str, against)]


def draft_row(
    name: str, version: str, recorded: dict[str, ModelRecord], against: list[Disagreement]
) -> list[str]:
    """Draft the row of a version that the table lacks, and print what changed since the one before.

    Args:
        name: The runtime.
        version: Its version.
        recorded: The results, by the name of the model.
        against: The results that the nearest row does not say.

    Returns:
        Why there is no draft; empty where it was written.
    """
    problems = []
    lines = []
    before = previous(name, version)
    if before is not None:
        lines = [f"changed since {before.version}: {line}" for line in changes(before, recorded)]
    try:
        lines.append(draft(name, version, against))
    except CannotDraft as reason:
        problems.append(str(reason))
    print("\n".join(lines), flush=True)
    runtimes.cache_clear()
    return problems


if __name__ == "__main__":
    sys.exit(main())
