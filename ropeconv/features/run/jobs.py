"""From a plan and its sources to jobs, and the journal of those that have ended."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import msgspec

from ropeconv.bake.apply import make_plan
from ropeconv.bake.file_checks import is_document
from ropeconv.bake.finished import made_from
from ropeconv.bake.plan import Plan
from ropeconv.bake.verify import verify_output
from ropeconv.errors import UsageError, reason
from ropeconv.features.evaluation.texts import read_files
from ropeconv.formats.disk import sha256, text_digest
from ropeconv.formats.files import expand_home
from ropeconv.formats.journal import Journal, JournalKind, Line
from ropeconv.formats.jsontext import JsonObject
from ropeconv.formats.kind import has_gguf_name, is_gguf
from ropeconv.hub.options import repository
from ropeconv.inspection.receipts.storage import read_receipt
from ropeconv.models.gguf import GgufSource
from ropeconv.models.hub import HubSource, answers
from ropeconv.models.open import HUB_FILE, HUB_ID, open_source
from ropeconv.models.reference import names_gguf, resolve_reference
from ropeconv.rope.errors import RopeconvError
from ropeconv.rope.recipe import Recipe
from ropeconv.validate.comparison import Comparison
from ropeconv.verbs.rows import BASE, Row
from ropeconv.version import __version__

from .plan_file import RunPlan, TargetTable


class NamedRecipe(msgspec.Struct, frozen=True):
    """A row of a plan. name: its text there. recipe: of `Recipe.to_dict`; None for the unchanged
    model.
    """

    name: str
    recipe: JsonObject | None

    @classmethod
    def of(cls, row: Row) -> NamedRecipe:
        """That of a row of an evaluation."""
        return cls(row.name, None if row.recipe is None else row.recipe.to_dict())

    def row(self) -> Row:
        """The row of an evaluation."""
        return Row(self.name, None if self.recipe is None else Recipe.from_dict(self.recipe))


@dataclass(frozen=True)
class NamedSource:
    """A source of a plan.

    reference: for `open_source`, with the commit. name: in outputs and tables. identity: as sources
    have it. problem: why it cannot be opened, or empty.
    """

    reference: str
    name: str
    identity: str = ""
    problem: str = ""


class Unit(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One task, with everything that decides its result.

    task: its name. family: that the source is treated as, or empty. recipes: one, or for eval all
    rows. target: of the output; None for eval. out: the output, or for eval the file of the result.
    settings: of the task.
    """

    task: str
    source: NamedSource
    recipes: tuple[NamedRecipe, ...]
    out: str
    target: TargetTable | None = None
    family: str = ""
    settings: JsonObject = {}

    @cached_property
    def key(self) -> str:
        """sha256 over all fields and the version of ropeconv."""
        return hashlib.sha256(
            msgspec.json.encode([__version__, self], order="deterministic")
        ).hexdigest()

    def plan(self) -> Plan:
        """The plan of its output. Raises what `open_source` and `make_plan` raise."""
        assert self.target is not None
        recipe = self.recipes[0].row().recipe
        assert recipe is not None
        return make_plan(
            open_source(self.source.reference, self.family),
            recipe,
            self.target.target(Path(self.out)),
        )


Job = tuple[Unit, ...]
"""Units of one source that run one after the other in one worker, each with what the one before it
left.
"""


AT_ONCE = 8
"""Requests to the Hub."""
QUERY = re.compile(r"(?:(?:author|search|tag):\S+\s*)+")
MODELS = ("config.json", "params.json")
"""Files of a model; a pattern selects folders with one of them, and GGUF files."""


def named_sources(listed: Sequence[str], folder: Path) -> list[NamedSource]:
    """The sources that a plan lists, each once.

    A source that cannot be opened has a `problem`. Raises UsageError for a pattern, a collection or
    a query that gives none.
    """
    references: dict[str, None] = {}
    for text in listed:
        references.update(dict.fromkeys(_expand(text, folder)))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return _make_distinct(list(pool.map(_name_source, references)))


def _expand(text: str, folder: Path) -> list[str]:
    """The models of an entry: a collection, a query, a pattern or one model."""
    if text.startswith("collection:"):
        references = _collection(text.removeprefix("collection:"))
    elif QUERY.fullmatch(text):
        references = _query(text)
    elif any(mark in text for mark in "*?["):
        references = _matches(text, folder)
    else:
        local = (folder / expand_home(text)).resolve()
        references = [str(local) if local.exists() else resolve_reference(text)]
    if not references:
        raise UsageError(f"the source {text!r} matches no model; correct it, or leave it out")
    return references


def _matches(text: str, folder: Path) -> list[str]:
    """The models that a pattern matches, sorted."""
    start = folder
    pattern = text
    base = expand_home(text)
    if base.is_absolute():  # Path.glob refuses an absolute pattern
        start = Path(base.anchor)
        pattern = str(base)[len(base.anchor) :]

    models = []
    for path in sorted(start.glob(pattern)):
        if is_gguf(path) or any((path / name).exists() for name in MODELS):
            models.append(str(path))
    return models


def _collection(slug: str) -> list[str]:
    from huggingface_hub import HfApi

    with answers(slug):
        items = HfApi(library_name="ropeconv").get_collection(slug).items
    return [item.item_id for item in items if item.item_type == "model"]


def _query(text: str) -> list[str]:
    """The models of a query, such as `author:me search:llama`."""
    from huggingface_hub import HfApi

    api = HfApi(library_name="ropeconv")
    filters = [part.split(":", 1) for part in text.split()]
    with answers(text):
        values = dict(filters)
        if values.get("author") == "me":
            values["author"] = str(api.whoami()["name"])
        tags = [value for key, value in filters if key == "tag"] or None
        models = api.list_models(
            author=values.get("author"), search=values.get("search"), filter=tags
        )
        return sorted(model.id for model in models)


def _name_source(reference: str) -> NamedSource:
    """A source with its name and identity, or with the problem of opening it."""
    path = Path(reference)
    name = (path.stem if has_gguf_name(reference) else path.name) or reference
    try:
        if path.exists():
            return NamedSource(reference, name, open_source(reference).identity)
        match = re.fullmatch(HUB_FILE, reference) or re.fullmatch(HUB_ID, reference)
        if match is None:
            return NamedSource(
                reference, name, problem=f"{reference} is neither a path nor a Hub id; correct it"
            )
        source = HubSource(match[1], match[2])
        identity = source.identity
        file = f"/{match[3]}" if match.re.groups > 2 else ""
        name = Path(file).stem if file else source.name
        return NamedSource(f"{match[1]}@{source.commit}{file}", name, identity)
    except Exception as problem:
        return NamedSource(reference, name, problem=reason(problem))


def _make_distinct(sources: list[NamedSource]) -> list[NamedSource]:
    """Sources with distinct names: those that share one get the owner or the folder before it."""
    counts = Counter(source.name for source in sources)
    longer = []
    for source in sources:
        if counts[source.name] > 1:
            parent = Path(source.reference.split("@")[0]).parent.name
            source = replace(source, name=f"{parent}-{source.name}")
        longer.append(source)

    # owners and folders may share a name too, and then numbers tell them apart
    counts = Counter(source.name for source in longer)
    used = Counter[str]()
    distinct = []
    for source in longer:
        used[source.name] += 1
        if counts[source.name] > 1:
            source = replace(source, name=f"{source.name}-{used[source.name]}")
        distinct.append(source)
    return distinct


CHAIN = ("apply", "validate", "push")
"""Tasks on one output, in their order."""


def jobs_of(plan: RunPlan, sources: Sequence[NamedSource], folder: Path, out: Path) -> list[Job]:
    """Return the jobs of a plan: for each source one for every output, and one for its evaluation.

    Args:
        plan: The plan.
        sources: Its sources.
        folder: The folder that paths of the plan are relative to.
        out: The folder of the outputs.

    Raises:
        UsageError: Where two outputs or repositories would have one name, and for texts that cannot
            be read.
    """
    rows = plan.rows
    labels = _labels([row for row in rows if row.recipe is not None])
    evaluated = _eval_settings(plan, folder) if "eval" in plan.tasks else None

    jobs = []
    for source in sources:
        for row in rows:
            for target in plan.targets:
                chain = _chain(plan, source, row, labels.get(row.name, ""), target, out)
                if chain:
                    jobs.append(chain)
        if evaluated is not None:
            listed = list(rows)
            if all(row.recipe is not None for row in rows):
                listed.insert(0, Row(BASE))  # the source itself, which others are compared with
            unit = Unit(
                task="eval",
                source=source,
                recipes=tuple(map(NamedRecipe.of, listed)),
                family=plan.family,
                settings=evaluated,
                out=str(out / "eval" / f"{source.name}.json"),
            )
            jobs.append((unit,))

    units: list[Unit] = []
    for job in jobs:
        units += job
    _refuse_twice(units, bool(plan.push and plan.push.exist_ok))
    return jobs


def _chain(
    plan: RunPlan, source: NamedSource, row: Row, label: str, target: TargetTable, out: Path
) -> Job:
    """The units of one output."""
    stem = "-".join(filter(None, (source.name, label, target.name)))
    gguf = target.to == "gguf" or (target.to is None and names_gguf(source.reference))
    settings: dict[str, JsonObject] = {"apply": {}, "validate": msgspec.to_builtins(plan.validate)}
    if plan.push is not None:
        known = {"name": source.name, "recipe": label, "target": target.name}
        is_kept = "apply" in plan.tasks
        to = _filled(plan.push.to, known)
        settings["push"] = {**msgspec.to_builtins(plan.push), "to": to, "kept": is_kept}
        if "push" in plan.tasks:
            target = target.published_by(to.partition("/")[0])
    return tuple(
        Unit(
            task=task,
            source=source,
            recipes=(NamedRecipe.of(row),),
            target=target,
            family=plan.family,
            settings=settings[task],
            out=str(out / (stem + ".gguf" * gguf)),
        )
        for task in CHAIN
        if task in plan.tasks
    )


def _labels(rows: Sequence[Row]) -> dict[str, str]:
    """The part of each recipe in names of outputs: as `apply` has it, or the whole text where two
    would be one.
    """
    short = {row.name: row.recipe.method.label for row in rows if row.recipe is not None}
    counts = Counter(short.values())
    return {
        name: label if counts[label] == 1 else re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-")
        for name, label in short.items()
    }


def _filled(template: str, known: dict[str, str]) -> str:
    """The repository of a template. Raises UsageError for unknown names in it, and where it is not
    owner/name.
    """
    unknown = [name for name in re.findall(r"{(.*?)}", template) if name not in known]
    if unknown:
        raise UsageError(
            f"push.to has {{{unknown[0]}}}; the names are"
            f" {', '.join(f'{{{name}}}' for name in known)}"
        )
    return repository(re.sub(r"{(.*?)}", lambda match: known[match[1]], template).rstrip("-"))


def _eval_settings(plan: RunPlan, folder: Path) -> JsonObject:
    """[eval], with absolute paths and the digest of the texts."""
    assert plan.eval is not None
    names = [name if name.startswith("/") else str(folder / name) for name in plan.eval.text]
    digest = hashlib.sha256()
    for name, text in read_files(names):
        digest.update(f"{Path(name).name} {len(text)}\n{text}".encode(errors="surrogatepass"))
    return {**msgspec.to_builtins(plan.eval), "text": names, "sha256": digest.hexdigest()}


def _refuse_twice(units: Sequence[Unit], shared: bool) -> None:
    """Raises UsageError for two units with one place. shared: whether several may go into one
    repository.
    """
    outputs = Counter(unit.out for unit in units if unit.task in (CHAIN[0], "eval"))
    repositories = Counter(unit.settings["to"] for unit in units if unit.task == "push")
    for place, count in outputs.items():
        if count > 1:
            raise UsageError(
                f"{count} outputs would be {place}; give targets names that tell them apart"
            )
    for place, count in repositories.items():
        if count > 1 and not shared:
            raise UsageError(
                f"{count} outputs would go to {place}; add {{name}}, {{recipe}} or {{target}} to"
                " push.to, or set exist_ok"
            )


class RunLine(Line, frozen=True, kw_only=True):
    """A unit that has ended.

    key: of the unit. task, source, recipe, target: what it was. seconds: it took. failed: why it
    failed, in a sentence; empty where it did not. result: of its task.
    """

    task: str
    source: str
    recipe: str = ""
    target: str = ""
    seconds: float = 0.0
    failed: str = ""
    result: JsonObject = {}

    @classmethod
    def of(
        cls, unit: Unit, seconds: float, failed: str = "", result: JsonObject | None = None
    ) -> RunLine:
        """The line of a unit. seconds, failed, result: as above."""
        recipe = target = ""
        if unit.target is not None:
            recipe = unit.recipes[0].name
            target = unit.target.name
        return cls(
            key=unit.key,
            task=unit.task,
            source=unit.source.reference,
            recipe=recipe,
            target=target,
            seconds=round(seconds, 3),
            failed=failed,
            result=result or {},
        )


RUN = JournalKind("run", 2, RunLine, "give the plan another `out`")


class RunJournal(Journal[RunLine]):
    """A journal that is open for appending. path, fresh: as in `Journal`, and it raises the
    same.
    """

    def __init__(self, path: Path, fresh: bool = False) -> None:
        super().__init__(path, RUN, fresh=fresh)
        self._intact: dict[str, bool] = {}

    def add(self, line: RunLine) -> RunLine:
        """Appends a unit, and returns it when it is on the disk."""
        self._intact.pop(line.key, None)
        return super().add(line)

    def done(self, unit: Unit) -> RunLine | None:
        """The line of a unit that has succeeded; None for others, and where its output has
        changed.
        """
        line = self.lines.get(unit.key)
        if line is None or line.failed:
            return None
        if unit.key not in self._intact:
            self._intact[unit.key] = _intact(line)
        return line if self._intact[unit.key] else None

    def verify(self, unit: Unit) -> None:
        """Compares the output of a unit that has succeeded, byte by byte, with what its source and
        its recipe give.

        One that differs is not done any more.
        """
        line = self.done(unit)
        if unit.task == "apply" and line is not None:
            try:
                verify_output(Comparison.open(Path(line.result["path"]), unit.source.reference))
            except (RopeconvError, OSError):
                self._intact[unit.key] = False


def stamp(path: Path) -> str:
    """Return a digest of what an output was made of, and of the sizes of its files.

    Documents in it may change. Raises OSError, and BadSource for something that is neither a
    folder, a GGUF file nor a result of an evaluation.
    """
    if path.suffix == ".json":
        return sha256(path)

    receipt = read_receipt(path)
    if is_gguf(path):
        files = list(GgufSource(path).file.paths)
    else:
        files = [path / file.name for file in receipt.files]
    sizes = []
    for file in files:
        if not is_document(file.name):
            sizes.append((file.name, file.stat().st_size))
    sizes.sort()
    return text_digest(made_from(receipt).decode(), repr(sizes))


def _intact(line: RunLine) -> bool:
    """Whether the output of a unit is unchanged; true for tasks without an output here."""
    if "stamp" not in line.result:
        return True
    try:
        return stamp(Path(line.result["path"])) == str(line.result["stamp"])
    except (RopeconvError, OSError):
        return False
