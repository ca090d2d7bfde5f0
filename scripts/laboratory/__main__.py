"""Executes runtimes on the configs of the lab, and writes what they did as
`ropeconv/runtimes/lab/*.json`.

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

from ropeconv.runtimes.evidence import Record, executed_models, lab_models, records
from ropeconv.runtimes.runtime import runtimes

from .agree import disagreements, with_option
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
    """What to do. check: compare with the records and write nothing. reuse: take the answers of the
    last run. new: execute only models that the record lacks, and add them to it. models: execute
    these, and put them into the record.
    """

    check: bool
    reuse: bool
    new: bool = False
    models: tuple[str, ...] = ()
    words: str = ""
    """An option of the server that the row of the runtime has; empty for none."""


class Models(dict[str, list[Cell]]):
    """The cells of each model by its name, made when they are asked for.

    configs: by name. sample: the names of cells; empty for all.
    """

    def __init__(self, configs: dict[str, dict[str, Any]], sample: tuple[str, ...]) -> None:
        super().__init__()
        self.configs, self.sample = configs, sample

    def __missing__(self, name: str) -> list[Cell]:
        self[name] = [
            cell
            for cell in cells(name, self.configs[name])
            if not self.sample or cell.name in self.sample
        ]
        return self[name]


def main() -> int:
    """Executes what the command line names. Returns 1 where something was seen that is not as it is
    said.
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
    os.environ.setdefault(
        "TRANSFORMERS_VERBOSITY", "error"
    )  # it warns of tokens outside of the tiny vocabularies
    models = Models(sources(published=not given.sample), SAMPLE if given.sample else ())
    options = Options(
        given.check,
        given.reuse,
        given.new,
        tuple(filter(None, given.models.split(","))),
        given.with_option,
    )
    for name in options.models:
        if name not in models.configs:
            near = get_close_matches(name, models.configs, 1)
            parser.error(
                f"there is no model {name!r}; "
                + (f"use {near[0]!r}" if near else "the records name them")
            )
    with ThreadPoolExecutor(given.jobs) as pool:
        chosen = selected(given.names, given.all)
        if given.daily:
            day = int(os.environ.get("ROPECONV_TESTS_DAY") or date.today().toordinal())
            chosen = [
                chosen[(day * given.daily + index) % len(chosen)] for index in range(given.daily)
            ]
        results = list(pool.map(lambda program: report(*program, models, options), chosen))
    return int(any(results))


def selected(names: list[str], everything: bool) -> list[tuple[LabRuntime, str]]:
    """The runtimes and versions to execute."""
    programs = []
    for runtime in RUNTIMES:
        if not names:
            programs += [
                (runtime, version)
                for version in (runtime.versions if everything else runtime.quick)
            ]
        for name in names:
            runtime_name, _, version = name.partition("@")
            if runtime_name == runtime.name:
                programs += [
                    (runtime, release) for release in ((version,) if version else runtime.versions)
                ]
    if names and not programs:
        raise SystemExit(
            f"no such runtime in the lab; known: {', '.join(runtime.name for runtime in RUNTIMES)}"
        )
    return programs


def report(runtime: LabRuntime, version: str, models: Models, options: Options) -> bool:
    """Executes one version and prints what came of it. Returns whether something is not as it is
    said.
    """
    started = time.monotonic()
    try:
        problems = execute(runtime, version, models, options)
    except NotInstallable as reason:
        print(f"{runtime.name} {version}: not executed, {reason}", flush=True)
        return False
    lines = [
        f"{runtime.name} {version}: {time.monotonic() - started:.0f} s, {len(problems)}"
        " disagreements"
    ]
    print("\n  ".join([*lines, *problems[:SHOWN]]), flush=True)
    return bool(problems)


def execute(runtime: LabRuntime, version: str, models: Models, options: Options) -> list[str]:
    """Executes one version. Returns sentences on what disagrees with the table or, with `check`,
    with the records.

    With `check`, only models that its record has are executed; with `new`, only those that it has
    not.
    """
    row, covered = row_of(runtime.name, version)
    option = next((option for option in row.options if option.words == options.words), None)
    if options.words and option is None:
        return [f"its row does not have the option {options.words}"]

    known = None
    if options.check or options.new or options.models:
        known = load(runtime.name, version, options.words)
    names = list(options.models or models.configs)
    if known is not None and (options.check or options.new):
        names = [name for name in names if (name in known.models) is not options.new]
    chosen = {name: models[name] for name in names}
    questions = [cell.question for of_model in chosen.values() for cell in of_model]
    if option is not None:
        questions = [question | {"options": option.settings} for question in questions]
    kind = in_file_name(options.words)
    by_question = answers(runtime, version, questions, options.reuse, kind)
    recorded = {}
    problems = []
    results: dict[str, dict[str, str]] = {}
    for name, of_model in chosen.items():
        outcomes = {cell.name: outcome(cell, by_question[cell.key]) for cell in of_model}
        results[name] = {cell: result.status for cell, result in outcomes.items()}
        recorded[name] = model_record(of_model, outcomes)
        if (
            options.check
            and known is not None
            and results[name] != known.models[name].statuses(tuple(outcomes))
        ):
            problems.append(
                f"{name}: the record of {known.date} says something else; run scripts/lab"
                f" {runtime.name}"
            )
    if not options.check:
        today = date.today().isoformat()
        record = Record(runtime.name, version, today, runtime.how, recorded, options.words)
        save(record if known is None else extended(known, recorded, today))
        save_models(models.configs)
        for read in (records, lab_models, executed_models):
            read.cache_clear()
    if option is not None:
        return problems + [
            str(problem)
            for name, of_model in chosen.items()
            for problem in with_option(row, option, of_model, results[name])
        ]
    against = [
        problem
        for name, of_model in chosen.items()
        for problem in disagreements(row, of_model, results[name])
    ]
    if not covered and not options.check:
        before = previous(runtime.name, version)
        lines = (
            [f"changed since {before.version}: {line}" for line in changes(before, recorded)]
            if before
            else []
        )
        try:
            lines.append(draft(runtime.name, version, against))
        except CannotDraft as reason:
            problems.append(str(reason))
        print("\n".join(lines), flush=True)
        runtimes.cache_clear()
    return [*problems, *map(str, against)]


if __name__ == "__main__":
    sys.exit(main())
