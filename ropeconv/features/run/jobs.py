"""From a plan and its sources to jobs, and the journal of those that have ended.

`named_sources` finds the sources that a plan lists, and `jobs_of` makes the jobs. A job is a few
units on one source, and a unit is one task. `RunJournal` has a line for each unit that has ended.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import msgspec

from ropeconv.bake.apply import make_plan
from ropeconv.bake.file_checks import is_document
from ropeconv.bake.finished import made_from
from ropeconv.bake.plan import Plan
from ropeconv.bake.verify import verify_output
from ropeconv.convert.to_gguf.stock import find_converter
from ropeconv.errors import UsageError, reason
from ropeconv.features.evaluation.texts import read_files
from ropeconv.formats.disk import sha256, text_digest
from ropeconv.formats.files import expand_home
from ropeconv.formats.gguf.file import SHARD, shard_names
from ropeconv.formats.journal import Journal, JournalKind, Line
from ropeconv.formats.jsontext import JsonObject
from ropeconv.formats.kind import has_gguf_name, is_gguf
from ropeconv.hub.options import repository
from ropeconv.inspection.receipts.storage import has_receipt, read_receipt
from ropeconv.models.gguf import GgufSource
from ropeconv.models.hub import HubSource, answers
from ropeconv.models.open import HUB_FILE, HUB_ID, open_source
from ropeconv.models.reference import names_gguf, resolve_reference
from ropeconv.models.source import RECEIPT
from ropeconv.options import changed_names
from ropeconv.rope.errors import RopeconvError
from ropeconv.rope.recipe import Recipe
from ropeconv.validate.comparison import Comparison
from ropeconv.verbs.rows import BASE, Row
from ropeconv.verbs.validation import OF_CHECKPOINTS
from ropeconv.version import __version__

from .plan_file import RunPlan, TargetTable


class NamedRecipe(msgspec.Struct, frozen=True):
    """A row of a plan."""

    name: str
    """The text in the plan."""

    recipe: JsonObject | None
    """The recipe as `Recipe.to_dict` has it; None for the unchanged model."""

    @classmethod
    def of(cls, row: Row) -> NamedRecipe:
        """Return that of a row of an evaluation."""
        if row.recipe is None:
            return cls(row.name, None)
        return cls(row.name, row.recipe.to_dict())

    def row(self) -> Row:
        """Return the row of an evaluation."""
        if self.recipe is None:
            return Row(self.name)
        return Row(self.name, Recipe.from_dict(self.recipe))


@dataclass(frozen=True)
class NamedSource:
    """A source of a plan."""

    reference: str
    """The reference for `open_source`, with the commit."""

    name: str
    """The name in outputs and tables."""

    identity: str = ""
    """As sources have it."""

    problem: str = ""
    """Why it cannot be opened, or empty."""


class Unit(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One task, with everything that decides its result."""

    task: str
    """The name of the task."""

    source: NamedSource

    recipes: tuple[NamedRecipe, ...]
    """One recipe; for eval all rows."""

    out: str
    """The output; for eval the file of the result."""

    target: TargetTable | None = None
    """The target of the output; None for eval."""

    family: str = ""
    """The family that the source is treated as, or empty."""

    settings: JsonObject = {}
    """The settings of the task."""

    digests: dict[str, str] = {}
    """Digests of the files that the target names, as `_digest_files` returns them."""

    @cached_property
    def key(self) -> str:
        """The sha256 over all fields and the version of ropeconv."""
        content = msgspec.json.encode([__version__, self], enc_hook=str, order="deterministic")
        return hashlib.sha256(content).hexdigest()

    def plan(self) -> Plan:
        """Return the plan of the output.

        Raises:
            RopeconvError: As `open_source` and `make_plan` do.
        """
        assert self.target is not None
        recipe = self.recipes[0].row().recipe
        assert recipe is not None
        source = open_source(self.source.reference, self.family)
        return make_plan(source, recipe, self.target.target(Path(self.out)))


Job = tuple[Unit, ...]
"""Units of one source that run one after the other in one worker.

Each has what the one before it left.
"""


HUB_REQUESTS_AT_ONCE = 8
"""Requests to the Hub."""
HUB_QUERY = re.compile(r"(?:(?:author|search|tag):\S+\s*)+")
MODEL_FILES = ("config.json", "params.json")
"""Files of a model; a pattern selects folders with one of them, and GGUF files."""


def named_sources(
    listed: Sequence[str], folder: Path, out: Path | None = None
) -> list[NamedSource]:
    """Return the sources that a plan lists, each once and with a name that no other one has.

    Args:
        listed: The entries of the plan: a path, a name on the Hub, or a pattern or query of these.
        folder: The folder that paths are relative to.
        out: The folder of the outputs, which patterns leave out; None without one.

    Returns:
        The sources; one that cannot be opened has a `problem`.

    Raises:
        UsageError: A pattern, a collection or a query gives none.
    """
    references: list[str] = []
    for text in listed:
        references += _references_of(text, folder, out)
    references_once = dict.fromkeys(references)

    # two sources may have one name, as me/llama and you/llama
    with ThreadPoolExecutor(HUB_REQUESTS_AT_ONCE) as pool:
        sources = list(pool.map(_name_source, references_once))
    return _give_distinct_names(sources)


def _references_of(text: str, folder: Path, out: Path | None) -> list[str]:
    """Return the models of an entry of `sources`: a collection, a query, a pattern or one model.

    Args:
        text: The entry, such as "collection:me/long-2f3a", "author:me", "./models/*" or "me/llama".
        folder: The folder that paths are relative to.
        out: The folder of the outputs; None without one.

    Raises:
        UsageError: There is none.
    """
    if text.startswith("collection:"):
        references = _collection(text.removeprefix("collection:"))
    elif HUB_QUERY.fullmatch(text):
        references = _query(text)
    elif any(mark in text for mark in "*?["):
        references = _matches(text, folder, out)
    else:
        # owner/name may be a folder here, which is meant then
        local = (folder / expand_home(text)).resolve()
        if local.exists():
            references = [str(local)]
        else:
            references = [resolve_reference(text)]
    if not references:
        raise UsageError(f"the source {text!r} matches no model; correct it, or leave it out")
    return references


def _matches(text: str, folder: Path, out: Path | None) -> list[str]:
    """Return the models that a pattern of paths matches, sorted.

    They are GGUF files, and folders with a file that every model has (`MODEL_FILES`). Outputs of
    the plan are left out: otherwise its next run would extend them again.

    Args:
        text: The pattern.
        folder: The folder that a relative pattern is in.
        out: The folder of the outputs; None without one.
    """
    # Path.glob refuses an absolute pattern, so it gets "models/*" below "/" for "/models/*"
    start = folder
    pattern = text
    expanded = expand_home(text)
    if expanded.is_absolute():
        start = Path(expanded.anchor)
        pattern = str(expanded).removeprefix(expanded.anchor)

    models = []
    for path in sorted(start.glob(pattern)):
        is_checkpoint = any((path / name).exists() for name in MODEL_FILES)
        is_model = is_gguf(path) or is_checkpoint
        if not is_model or _is_later_shard(path):
            continue
        if out is not None and _is_output(path, out):
            continue
        models.append(str(path))
    return models


def _is_later_shard(path: Path) -> bool:
    """Return whether a file belongs to a split GGUF model whose first file is beside it."""
    match = SHARD.match(path.name)
    if match is None:
        return False
    names = shard_names(path.name, int(match["count"]))
    return path.name in names[1:] and path.with_name(names[0]).exists()


def _is_output(path: Path, out: Path) -> bool:
    """Return whether a model is an output in the folder `out`, finished or not."""
    place = path.resolve()
    folder = out.resolve()
    if folder not in place.parents:
        return False
    # an output is written in a hidden folder (`HiddenFolder`), which a killed run leaves behind
    if any(part.endswith(".ropeconv-partial") for part in place.relative_to(folder).parts):
        return True
    if path.is_dir():
        return (path / RECEIPT).exists()
    return has_receipt(path)


def _collection(slug: str) -> list[str]:
    """Return the models of a collection on the Hub."""
    from huggingface_hub import HfApi

    with answers(slug):
        items = HfApi(library_name="ropeconv").get_collection(slug).items
    return [item.item_id for item in items if item.item_type == "model"]


def _query(text: str) -> list[str]:
    """Return the ids of the models on the Hub that match a query like `author:me search:llama`."""
    from huggingface_hub import HfApi

    author = None
    search = None
    tags = []
    for part in text.split():
        key, _, value = part.partition(":")
        if key == "author":
            author = value
        elif key == "search":
            search = value
        else:
            tags.append(value)

    api = HfApi(library_name="ropeconv")
    with answers(text):
        if author == "me":
            author = str(api.whoami()["name"])
        models = api.list_models(author=author, search=search, filter=tags or None)
        return sorted(model.id for model in models)


def _name_source(reference: str) -> NamedSource:
    """Return a source with its name and identity, or with the problem of opening it."""
    path = Path(reference)
    name = path.stem if has_gguf_name(reference) else path.name
    name = name or reference
    try:
        if path.exists():
            return NamedSource(reference, name, open_source(reference).identity)
        return _name_hub_source(reference, name)
    except Exception as problem:
        return NamedSource(reference, name, problem=reason(problem))


def _name_hub_source(reference: str, name: str) -> NamedSource:
    """Return a source on the Hub at its present commit, so that a long run reads one version of it.

    Qwen/Qwen3-8B becomes Qwen/Qwen3-8B@9c925d64, with the whole hash.

    Args:
        reference: owner/name@revision, or owner/name@revision/file.gguf; without @revision, the
            newest.
        name: The name of the source in the message, where the reference is of neither form.
    """
    of_file = re.fullmatch(HUB_FILE, reference)
    if of_file is not None:
        repo_id, revision, file = of_file.groups()
        source = HubSource(repo_id, revision)
        identity = source.identity
        return NamedSource(f"{repo_id}@{source.commit}/{file}", Path(file).stem, identity)

    of_repository = re.fullmatch(HUB_ID, reference)
    if of_repository is not None:
        repo_id, revision = of_repository.groups()
        source = HubSource(repo_id, revision)
        identity = source.identity
        return NamedSource(f"{repo_id}@{source.commit}", source.name, identity)

    problem = f"{reference} is neither a path nor a Hub id; correct it"
    return NamedSource(reference, name, problem=problem)


def _give_distinct_names(sources: list[NamedSource]) -> list[NamedSource]:
    """Give sources distinct names, since outputs are named after them.

    Those that share a name get the owner or the folder before it: me/llama and you/llama become
    me-llama and you-llama.
    """
    counts = Counter(source.name for source in sources)
    longer = []
    for source in sources:
        if counts[source.name] > 1:
            parent = Path(source.reference.split("@")[0]).parent.name
            source = replace(source, name=f"{parent}-{source.name}")
        longer.append(source)

    # owners and folders may share a name too: then they are numbered
    counts = Counter(source.name for source in longer)
    used = Counter[str]()
    distinct = []
    for source in longer:
        used[source.name] += 1
        if counts[source.name] > 1:
            source = replace(source, name=f"{source.name}-{used[source.name]}")
        distinct.append(source)
    return distinct


TASKS_OF_OUTPUT = ("apply", "validate", "push")
"""Tasks on one output, in their order."""


def jobs_of(plan: RunPlan, sources: Sequence[NamedSource], folder: Path, out: Path) -> list[Job]:
    """Return the jobs of a plan: for each source, a job per output and a job for the evaluation.

    Args:
        plan: The plan file.
        sources: The models of the plan.
        folder: The folder that paths in the plan are relative to.
        out: The folder of the outputs.

    Raises:
        UsageError: Two outputs or repositories have one name, or a text cannot be read.
    """
    # a row of the plan is a recipe such as "yarn:4", or the unchanged model ("base"), which has
    # no recipe
    rows = plan.rows(folder)
    rows_with_recipe = [row for row in rows if row.recipe is not None]
    labels = _output_labels(rows_with_recipe)  # for the names of outputs: {"yarn:4": "yarn4"}
    digests = {target.name: _digest_files(target) for target in plan.targets}
    eval_settings = None
    if "eval" in plan.tasks:
        eval_settings = _eval_settings(plan, folder)

    jobs: list[Job] = []
    for source in sources:
        for row in rows:
            label = labels.get(row.name, "")
            for target in plan.targets:
                job = _output_job(plan, source, row, label, target, out, digests[target.name])
                if job:  # a plan that only evaluates has none
                    jobs.append(job)
        if eval_settings is not None:
            jobs.append(_eval_job(plan, source, rows, eval_settings, out))

    units: list[Unit] = []
    for job in jobs:
        units.extend(job)  # a job is a tuple of units
    # with exist_ok, a repository may exist already, so several outputs may be pushed into one
    may_share_repository = plan.push is not None and plan.push.exist_ok
    _refuse_shared_places(units, may_share_repository)
    _refuse_ignored(plan, units)
    return jobs


def _eval_job(
    plan: RunPlan, source: NamedSource, rows: Sequence[Row], settings: JsonObject, out: Path
) -> Job:
    """Return the job that evaluates a source: one task, whose table has all recipes as rows.

    Args:
        plan: The plan file.
        source: The model.
        rows: Its recipes, such as "yarn:4"; "base" is the unchanged model.
        settings: Those of [eval], as `_eval_settings` returns them.
        out: The folder of the outputs.
    """
    # the recipes are compared with the unchanged model, whose row has no recipe
    evaluated = list(rows)
    has_base = any(row.recipe is None for row in rows)
    if not has_base:
        evaluated.insert(0, Row(BASE))
    unit = Unit(
        task="eval",
        source=source,
        recipes=tuple(NamedRecipe.of(row) for row in evaluated),
        family=plan.family,
        settings=settings,
        out=str(out / "eval" / f"{source.name}.json"),
    )
    return (unit,)  # a job can have several tasks, one after another


def _output_job(
    plan: RunPlan,
    source: NamedSource,
    row: Row,
    label: str,
    target: TargetTable,
    out: Path,
    digests: dict[str, str],
) -> Job:
    """Return the job of one output: a unit for each of apply, validate and push in the plan.

    Args:
        plan: The plan file.
        source: The model.
        row: A recipe of the plan, with its name there, such as "yarn:4".
        label: The recipe in the form for file names, such as "yarn4"; empty for "base".
        target: The format of the output, one of [[targets]].
        out: The folder of the outputs.
        digests: Those of the files that the target names.
    """
    # the name of the output, such as "llama-yarn4-q8.gguf"
    name = "-".join(part for part in (source.name, label, target.name) if part)
    stays_gguf = target.to is None and names_gguf(source.reference)
    if target.to == "gguf" or stays_gguf:
        name += ".gguf"

    # The settings of each task. They are a part of its unit's key in the journal: if the user
    # changes them in the plan file, the unit is run again.
    unit_target = target
    validate_settings = msgspec.to_builtins(plan.validate)
    if has_gguf_name(name):  # llama.cpp runs it, which has none of these
        for key in OF_CHECKPOINTS:
            validate_settings.pop(key, None)
    settings: dict[str, JsonObject] = {"apply": {}, "validate": validate_settings}
    if plan.push is not None:
        known = {"name": source.name, "recipe": label, "target": target.name}
        repo_id = _fill_template(plan.push.to, known)
        is_kept = "apply" in plan.tasks  # otherwise the output is removed after the upload
        settings["push"] = {**msgspec.to_builtins(plan.push), "to": repo_id, "kept": is_kept}
        if "push" in plan.tasks:
            # a quantised GGUF file names its owner (general.quantized_by)
            owner, _, _ = repo_id.partition("/")
            unit_target = target.published_by(owner)

    # a unit for each task of the plan, in the order in which they depend on each other
    units = []
    for task in TASKS_OF_OUTPUT:
        if task not in plan.tasks:
            continue
        unit = Unit(
            task=task,
            source=source,
            recipes=(NamedRecipe.of(row),),
            target=unit_target,
            family=plan.family,
            settings=settings[task],
            digests=digests,
            out=str(out / name),
        )
        units.append(unit)
    return tuple(units)


def _output_labels(rows: Sequence[Row]) -> dict[str, str]:
    """Return the part of each recipe in names of outputs, by the name of the row.

    It is that of `apply`, or the whole text where two would be the same.
    """
    labels = {row.name: row.recipe.method.label for row in rows if row.recipe is not None}
    counts = Counter(labels.values())
    for name, label in labels.items():
        if counts[label] > 1:
            labels[name] = re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-")
    return labels


NAME_IN_BRACES = re.compile("{(.*?)}")
"""A name in braces."""


def _fill_template(template: str, known: dict[str, str]) -> str:
    """Return the repository of a template such as `me/{name}-{recipe}`.

    Args:
        template: The text of push.to.
        known: The words for the names in braces.

    Raises:
        UsageError: There are unknown names in it, or it is not owner/name.
    """
    for name in NAME_IN_BRACES.findall(template):
        if name not in known:
            listed = ", ".join("{" + each + "}" for each in known)
            raise UsageError(f"push.to has {{{name}}}; the names are {listed}")
    filled = NAME_IN_BRACES.sub(lambda match: known[match[1]], template)
    return repository(filled.rstrip("-"))  # a recipe or a target may have no name


def _eval_settings(plan: RunPlan, folder: Path) -> JsonObject:
    """Return the table [eval], with absolute paths and the digest of the texts.

    Args:
        plan: The plan file.
        folder: The folder that its paths are relative to.
    """
    assert plan.eval is not None
    names = []
    for name in plan.eval.text:
        if not name.startswith("/"):
            name = str(folder / name)
        names.append(name)

    # the digest of the texts becomes a part of the unit's key in the journal, so that the unit is
    # run again where a text was changed
    digest = hashlib.sha256()
    for name, text in read_files(names):
        digest.update(f"{Path(name).name} {len(text)}\n{text}".encode(errors="surrogatepass"))
    return {**msgspec.to_builtins(plan.eval), "text": names, "sha256": digest.hexdigest()}


def _digest_files(target: TargetTable) -> dict[str, str]:
    """Return the digests of the importance matrix and the converter that a target names.

    They become a part of the unit's key in the journal, so that the unit is run again where one of
    them was changed. Files that cannot be read have none: `apply` says what is wrong with them.
    """
    digests = {}
    if target.imatrix is not None:
        with suppress(OSError):
            digests["imatrix"] = sha256(target.imatrix)
    if target.converter is not None:
        with suppress(OSError, UsageError):
            converter = find_converter(target.converter)
            if converter is not None:
                digests["converter"] = converter.sha256
    return digests


def _refuse_ignored(plan: RunPlan, units: Sequence[Unit]) -> None:
    """Refuse a key of [validate] that has an effect on no output of the plan.

    Args:
        plan: The plan file.
        units: All units.

    Raises:
        UsageError: All outputs that are validated are GGUF files, and the key is for folders.
    """
    validated = [unit for unit in units if unit.task == "validate"]
    if not validated or not all(has_gguf_name(unit.out) for unit in validated):
        return
    changed = changed_names(plan.validate)
    for key in OF_CHECKPOINTS:
        if key in changed:
            raise UsageError(
                f"validate.{key} is for checkpoints, and all outputs of the plan are GGUF files;"
                " leave it out"
            )


def _refuse_shared_places(units: Sequence[Unit], share_repository: bool) -> None:
    """Refuse units that would write the same file or folder, or publish the same repository.

    Args:
        units: All units.
        share_repository: Whether several may go into one repository.

    Raises:
        UsageError: Two units have one place.
    """
    outputs = Counter(unit.out for unit in units if unit.task in ("apply", "eval"))
    for place, count in outputs.items():
        if count > 1:
            raise UsageError(
                f"{count} outputs would be {place}; give targets names that tell them apart"
            )

    if share_repository:
        return
    repositories = Counter(unit.settings["to"] for unit in units if unit.task == "push")
    for place, count in repositories.items():
        if count > 1:
            raise UsageError(
                f"{count} outputs would go to {place}; add {{name}}, {{recipe}} or {{target}} to"
                " push.to, or set exist_ok"
            )


class RunLine(Line, frozen=True, kw_only=True):
    """A unit that has ended; its key is that of the unit."""

    task: str
    """The name of the task."""

    source: str
    """The reference of the source."""

    recipe: str = ""
    """The name of the recipe; empty for eval."""

    target: str = ""
    """The name of the target; empty for eval."""

    seconds: float = 0.0
    """The time that it took."""

    failed: str = ""
    """Why it failed, in a sentence; empty where it did not."""

    result: JsonObject = {}
    """The result of the task."""

    @classmethod
    def of(
        cls, unit: Unit, seconds: float, failed: str = "", result: JsonObject | None = None
    ) -> RunLine:
        """Return the line of a unit in the journal of a run, which is written when the unit ends.

        Args:
            unit: A task such as apply, with the source, recipe and target that it is for.
            seconds: How long it ran.
            failed: Why it failed, or empty.
            result: Facts about the output of the task, such as {"path": "out/llama-yarn4"}.
        """
        # an evaluation has several recipes and no target
        recipe = ""
        target = ""
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


RUN = JournalKind(command="run", format=2, line=RunLine, elsewhere="give the plan another `out`")


class RunJournal(Journal[RunLine]):
    """A journal that is open for appending."""

    def __init__(self, path: Path, fresh: bool = False) -> None:
        """Open it; parameters and errors are those of `Journal`."""
        super().__init__(path, RUN, fresh=fresh)
        self._intact: dict[str, bool] = {}  # whether an output is unchanged, by the key of its unit

    def add(self, line: RunLine) -> RunLine:
        """Append a unit, and return it when it is on the disk."""
        self._intact.pop(line.key, None)
        return super().add(line)

    def done(self, unit: Unit) -> RunLine | None:
        """Return the line of a unit that has succeeded.

        It is None for other units, and where the output has changed.
        """
        line = self.lines.get(unit.key)
        if line is None or line.failed:
            return None
        if unit.key not in self._intact:
            self._intact[unit.key] = _is_intact(line)
        return line if self._intact[unit.key] else None

    def verify(self, unit: Unit) -> None:
        """Compare the output of a unit that has succeeded with its source, byte by byte.

        One that differs from what source and recipe give is not done any more.
        """
        line = self.done(unit)
        if unit.task == "apply" and line is not None:
            try:
                verify_output(Comparison.open(Path(line.result["path"]), unit.source.reference))
            except (RopeconvError, OSError):
                self._intact[unit.key] = False


def stamp(path: Path) -> str:
    """Return a digest of what an output was made of, and of the sizes of its files.

    A later run knows by it that the output was not changed. Its card and other documents may be.

    Raises:
        OSError: The output cannot be read.
        BadSource: It is neither a folder, a GGUF file nor a result of an evaluation.
    """
    if path.suffix == ".json":  # the result of an evaluation
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


def _is_intact(line: RunLine) -> bool:
    """Whether the output of a unit is unchanged; true for tasks without an output here."""
    if "stamp" not in line.result:
        return True
    try:
        return stamp(Path(line.result["path"])) == str(line.result["stamp"])
    except (RopeconvError, OSError):
        return False
