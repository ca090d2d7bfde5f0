"""Profiles: one model for several contexts, as folders that share its weights.

`plan_each_profile` plans each profile, `plan_shared_folder` the folder of all of them, and
`write_profiles` writes it.

The weights of a checkpoint are hard links, which loaders and `hf upload` see as files. Other files
are small copies, so that an edit of one profile changes neither the others nor the source.

llama.cpp reads the keys of a model from its first shard. So the tensors of a GGUF file are put into
further shards once, as `llama-gguf-split --no-tensor-first-split` does, and each profile has a
first shard of its own, with the rope tensors, beside links to the others
(src/llama-model-loader.cpp:599-660, 0c1e570).
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

import msgspec

from ropeconv.bake.apply import AppliedPlan, OutputCheck, make_plan
from ropeconv.bake.checkpoint import CheckpointPlan
from ropeconv.bake.execution import COPIED, ApplyOptions, execute_plan
from ropeconv.bake.file_checks import files_of
from ropeconv.bake.finished import member_digest
from ropeconv.bake.gguf import GgufPlan, gguf_plan
from ropeconv.bake.gguf_check import check_gguf, check_split
from ropeconv.bake.hidden import is_empty
from ropeconv.bake.plan import FilePlan, Plan, PlannedFile, source_record
from ropeconv.bake.set_check import output_in
from ropeconv.bake.start import AlreadyExtended
from ropeconv.convert.target import Target
from ropeconv.engines.probe import Probe, SharedProbe
from ropeconv.errors import UsageError
from ropeconv.formats.disk import Advance, human, link_file, sha256, sync_file
from ropeconv.formats.gguf.edit import COUNT, Edit, new_size, write_new
from ropeconv.formats.gguf.file import GgufFile, shard_names
from ropeconv.formats.gguf.header import ALIGNMENT, FORMATS, INT32, UINT16, GgufValue
from ropeconv.formats.jsontext import JsonObject
from ropeconv.inspection.receipts.companion import CompanionReceipt
from ropeconv.inspection.receipts.places import remember_source
from ropeconv.inspection.receipts.receipt import FileRecord
from ropeconv.inspection.receipts.storage import has_receipt, read_receipt, write_receipt
from ropeconv.models.gguf import GgufSource
from ropeconv.models.source import OTHER_WEIGHTS, RECEIPT, Source
from ropeconv.rope.errors import RopeconvError, command_line, counted
from ropeconv.rope.methods.vectors import AsIs
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.summary import SummaryTable
from ropeconv.runtimes.llamacpp.read_header import ROPE_TENSORS
from ropeconv.version import __version__

BASE_PROFILE = "base"
"""The name of the profile that is the unchanged model."""


@dataclass(frozen=True)
class ProfilesPlan(FilePlan):
    """A folder with one output per profile, written as a whole or not at all.

    For GGUF, `files` are those of `out/base`, the source in shards, which the profiles are made
    from.
    """

    plans: Mapping[str, Plan]
    """The plans of the profiles, by name; their outputs are `out/NAME`, and for GGUF the first
    shards in it.
    """

    copied: bool
    """Whether the weights are a copy that the profiles share, and not links to the source as well.
    """

    @property
    def resume_key(self) -> str:
        """The resume keys of all profiles."""
        return "\n".join(f"{name} {plan.resume_key}" for name, plan in self.plans.items())

    @property
    def shared(self) -> list[PlannedFile]:
        """The files of weights, which all profiles have."""
        if isinstance(self.source, GgufSource):
            return list(self.files[1:])
        return [file for file in self.files if is_shared(file)]

    @property
    def sentence(self) -> str:
        """The size and place of the output, in words."""
        profiles = counted(len(self.plans), "profile")
        shared = human(self.shared_bytes)
        return f"Would write {profiles} with {shared} of shared weights to {self.out}."

    @property
    def shared_bytes(self) -> int:
        """The size in bytes of the weights, which all profiles have."""
        return sum(file.size for file in self.shared)

    def summary(self) -> dict[str, str]:
        """Return what is shown, by name."""
        return {
            "sentence": self.sentence,
            "source": self.source.reference,
            "out": str(self.out),
            "shared_bytes": f"{self.shared_bytes:,}",
        }

    def shown_tables(self) -> list[SummaryTable]:
        """Return a table with a row for each profile."""
        rows = []
        for name, plan in self.plans.items():
            method = plan.summary()["recipe"]
            size = human(self.own_bytes(name))
            rows.append((name, f"{plan.context:,}", method, size, plan.result.exact_share))
        columns = ("profile", "context", "method", "own files", "runtimes")
        return [SummaryTable("plans", columns, rows)]

    def to_dict(self) -> JsonObject:
        """Return the plan as JSON-ready data, with that of each profile."""
        profiles = []
        for name, plan in self.plans.items():
            own = {"name": name, "own_bytes": self.own_bytes(name)}
            profiles.append(own | plan.to_dict())
        return {"out": str(self.out), "shared_bytes": self.shared_bytes, "profiles": profiles}

    def own_bytes(self, name: str) -> int:
        """Return the size in bytes of what a profile has for itself."""
        plan = self.plans[name]
        if not isinstance(plan, GgufPlan):
            return sum(file.size for file in plan.files if not is_shared(file))
        if name == BASE_PROFILE:
            return self.files[0].size
        model = plan.source.file
        return new_size(model.header, first_shard(model, plan.edit))

    def origin(self, file: PlannedFile) -> Path | None:
        if file.action != "copy" or not isinstance(self.source, GgufSource):
            return super().origin(file)
        shards = {shard.name: shard for shard in self.source.file.shards}
        return shards[file.origin].path()


def is_shared(file: PlannedFile) -> bool:
    """Return whether all profiles have the same file: unchanged weights, by its name."""
    return file.action == "copy" and is_weights(file.name)


def is_weights(name: str) -> bool:
    """Return whether a file of a checkpoint holds weights, by its name."""
    return any(fnmatch(name, pattern) for pattern in ("*.safetensors", *OTHER_WEIGHTS))


def plan_each_profile(
    source: Source | GgufSource, recipes: Sequence[Recipe], target: Target
) -> dict[str, Plan]:
    """Plan the output of each profile, by name: `base` for `AsIs`, else the label of its method.

    Profiles are outputs of one model with several methods, which have its weights only once.
    `base` is the model unchanged.

    Args:
        source: The model, as `open_source` opens it.
        recipes: One for each profile.
        target: Format, runtimes, and `out`, the folder of all profiles; None where none is written.

    Returns:
        The plans in the order of the recipes. For a GGUF file `base` is always there, and first.

    Raises:
        UsageError: For two profiles of one name, and where only `base` of a GGUF file is left.
        RopeconvError: For a place that is taken, and a profile that changes weights; else as
            `make_plan`.
    """
    # profiles are links to weight files, so these must be there and stay as they are written
    if isinstance(source, Source) and (source.kind == "config" or source.generated_files()):
        raise UsageError(
            f"{source.reference} has no weights in the format of its profiles; make a checkpoint of"
            " it first, with `ropeconv apply SOURCE --as-is -o FOLDER`"
        )

    # A GGUF file has its settings and its tensors in one file. So `base` is split into shards, and
    # every other profile has a first shard with its own settings, and links to the other shards of
    # `base`, which have the tensors.
    is_gguf = isinstance(source, GgufSource)
    if is_gguf:
        others = [recipe for recipe in recipes if not isinstance(recipe.method, AsIs)]
        recipes = [Recipe(AsIs()), *others]

    # a folder for each profile, such as OUT/base and OUT/yarn4
    out = target.out or Path(source.name)
    plans: dict[str, Plan] = {}
    for recipe in recipes:
        name = BASE_PROFILE if isinstance(recipe.method, AsIs) else recipe.method.label
        if name in plans:
            raise UsageError(
                f"two profiles would be named {name}; leave one out, or write it with `ropeconv"
                " apply`"
            )
        plans[name] = _profile_plan(source, recipe, replace(target, out=out / name), name)
    if is_gguf and len(plans) == 1:
        raise UsageError(
            "base of a GGUF file is always written; name a profile beside it, such as yarn:4"
        )

    if target.out is not None:
        _refuse_taken_place(out, plans, source)
    return plans


def _refuse_taken_place(out: Path, plans: Mapping[str, Plan], source: Source | GgufSource) -> None:
    """Raise RopeconvError where the folder for the profiles exists and has other files.

    The same command after it was interrupted finds its own profiles there, and continues.
    """
    if not out.exists() or is_empty(out):
        return
    if are_there(plans, out):
        return

    repair = "remove it"
    if not isinstance(source, GgufSource):
        adding = command_line("apply", source.reference, "METHOD", "--link", "-o", f"{out}/NAME")
        repair = f"add one profile to it with `{adding}`"
    raise RopeconvError(f"{out} exists; choose another place with -o, or {repair}")


def are_there(plans: Mapping[str, Plan], out: Path) -> bool:
    """Return whether a folder has the planned profiles already, and no others.

    Then an earlier run of the same command has written them. A profile is recognised by the recipe
    in its receipt; `write_profiles` compares the files.

    Args:
        plans: The plans of the profiles, by name.
        out: The folder of all profiles.
    """
    names = {path.name for path in out.iterdir()} - {RECEIPT}
    if names != set(plans):
        return False
    for name, plan in plans.items():
        is_gguf = isinstance(plan, GgufPlan)
        if is_gguf and name == BASE_PROFILE:
            continue  # the source in shards, without a receipt of its own

        # a GGUF profile has its receipt in its first shard, whose name has the number of shards
        places = [plan.out]
        if is_gguf:
            places = sorted(plan.out.parent.glob("*-00001-of-*.gguf"))
        written_recipes = [read_receipt(place).recipe for place in places if has_receipt(place)]
        planned_recipe = plan.recipe.to_dict()
        if written_recipes != [planned_recipe]:  # another recipe, none, or several
            return False
    return True


def _profile_plan(source: Source | GgufSource, recipe: Recipe, target: Target, name: str) -> Plan:
    """Plan one profile: an output that shares the weights of the other profiles.

    Args:
        source: The model.
        recipe: The method and its modifiers.
        target: The target, with the folder of the profile as `out`.
        name: The name of the profile.

    Raises:
        RopeconvError: The profile changes weights, which the others share.
    """
    # a GGUF profile is a file in the folder, such as yarn4/model-yarn4.gguf
    if target.out and isinstance(source, GgufSource):
        folder = target.out
        if name == BASE_PROFILE:
            target = replace(target, out=folder / f"{source.name}.gguf", encoding="auto")
        else:
            target = replace(target, out=folder / f"{source.name}-{name}.gguf")

    # --replace removes the scaling that the model has, before a method scales it anew. Two kinds of
    # profiles need that scaling: base, which is the unchanged model, and a recipe with --on-top.
    keeps_scaling = name == BASE_PROFILE or recipe.on_top
    if keeps_scaling:
        target = replace(target, replace=False)

    try:
        plan = make_plan(source, recipe, target)
    except AlreadyExtended as problem:
        # "MODEL is scaled already; pass --replace to start from its unscaled RoPE, which leaves
        # base unchanged"
        raise RopeconvError(f"{problem.short}, which leaves base unchanged") from None

    change = changed_weights(plan)
    if change:
        raise RopeconvError(
            f"the profile {name} cannot share weights, since {change}; choose another method or"
            " --runtime, or write it with `ropeconv apply`"
        )
    return plan


def changed_weights(plan: Plan) -> str:
    """Return in words how a plan changes weights; empty where it leaves them unchanged."""
    if isinstance(plan, GgufPlan):
        changed = plan.edit.changes.keys() | plan.edit.removed
        if changed - set(ROPE_TENSORS):
            return f"its encoding in GGUF, {plan.result.encoding}, changes tensors"
    if isinstance(plan, CheckpointPlan) and plan.result.fold is not None:
        return "its factor is multiplied into weights"
    return ""


def plan_shared_folder(
    source: Source | GgufSource, plans: Mapping[str, Plan], out: Path, copied: bool
) -> ProfilesPlan:
    """Plan the files of a folder with several profiles: the weights once, and all other files.

    Profiles are outputs of one model with several methods.

    Args:
        source: The model.
        plans: The plan of each profile, by name, with its model card where it gets one.
        out: The folder.
        copied: Give it a copy of the weights, instead of links to those of the source.
    """
    if isinstance(source, GgufSource):
        # Here only the shards of the unchanged model are planned. `_finish_gguf` writes the other
        # profiles after them, since these are changes of its first shard.
        return ProfilesPlan(
            source=source,
            out=out,
            files=tuple(split_files(source)),
            skipped=(),
            plans=plans,
            copied=copied,
        )

    files = []
    skipped: set[str] = set()
    first_name = next(iter(plans))
    for name, plan in plans.items():
        skipped.update(plan.skipped)
        for file in plan.files:
            # unchanged weights are written for the first profile only; at the end the others get
            # links to these
            is_weights_file = is_shared(file)
            if is_weights_file and name != first_name:
                continue

            # Small files are copied even where weights are linked: someone may edit one of them.
            # `make` is the function that writes a file; without one, a copy may be a link.
            name_in_source = file.origin or file.name  # `origin` is empty where both are equal
            write_file = file.make
            if file.action == "copy" and not is_weights_file:
                write_file = partial(source.copy, name_in_source)
            place = f"{name}/{file.name}"
            files.append(replace(file, name=place, origin=name_in_source, make=write_file))
    return ProfilesPlan(
        source=source,
        out=out,
        files=tuple(files),
        skipped=tuple(sorted(skipped)),
        plans=plans,
        copied=copied,
    )


def first_shard(file: GgufFile, edit: Edit | None = None) -> Edit:
    """Return the edit that makes a first shard with only the metadata and RoPE tensors of a model.

    A GGUF file can be split into shards. Profiles, outputs of one model with several methods,
    differ only in the first shard, and share the others.

    Args:
        file: The model.
        edit: Another edit, whose changes the result has too.
    """
    edit = edit or Edit()
    in_first_shard = file.header.tensors
    removed = {name for name in in_first_shard if name not in ROPE_TENSORS}

    # rope tensors of other shards are copied into the first one
    copies = {}
    for name in file.tensors:
        if name in ROPE_TENSORS and name not in in_first_shard:
            copies[name] = file.read(name)

    # All shards together have as many tensors as before. The key with their number is written lower
    # by the copies, since `write_new` adds the tensors of `added` to it.
    tensors_without_copies = len(file.tensors) - len(copies)
    keys = split_keys(file, number=0, tensors=tensors_without_copies)
    return replace(
        edit,
        values={**edit.values, **keys},
        removed=edit.removed | removed,
        added={**copies, **edit.added},
    )


def split_keys(file: GgufFile, number: int, tensors: int) -> dict[str, GgufValue]:
    """Return the metadata keys that make a GGUF file one of several shards.

    gguf-split writes these: {"split.no": 0, "split.count": 3, "split.tensors.count": 290}, say.

    Args:
        file: The model.
        number: The number of the shard, from 0.
        tensors: The number of tensors in all shards, before any are added.
    """
    # The first shard must have only metadata and rope tensors. If the model has no such shard yet,
    # one is put before its own shards.
    count = len(file.shards)
    if not is_split(file):
        count += 1
    return {  # with the types of gguf-split
        "split.no": _number(UINT16, number),
        "split.count": _number(UINT16, count),
        COUNT: _number(INT32, tensors),
    }


def _number(kind: int, value: int) -> GgufValue:
    return GgufValue(kind, struct.pack("<" + FORMATS[kind], value))


def is_split(file: GgufFile) -> bool:
    """Return whether the first shard of a GGUF model has all RoPE tensors, and no others.

    RoPE tensors are rope_freqs and those of LongRoPE. `gguf-split --no-tensor-first-split` writes
    shards of which the first has no tensors.
    """
    if len(file.shards) < 2:
        return False
    for number, header in enumerate(file.headers):
        is_first = number == 0
        for name in header.tensors:
            is_rope_tensor = name in ROPE_TENSORS
            if is_rope_tensor != is_first:
                return False
    return True


def split_files(source: GgufSource) -> list[PlannedFile]:
    """Return the files of `base`, the unchanged GGUF model in shards.

    The first shard has the metadata keys and the RoPE tensors (rope_freqs and its like), and the
    others all other tensors. If the source is in such shards already, all but the first are copied.
    """
    file = source.file
    edit = first_shard(file)

    # llama.cpp finds the other shards by the name of the first, base/model-00001-of-00003.gguf
    shard_count = edit.values["split.count"].decode()  # 3
    names = [f"{BASE_PROFILE}/{name}" for name in shard_names(f"{source.name}.gguf", shard_count)]
    first_name, *other_names = names

    # the new first shard is made from the first file of the source, without its other tensors
    make_first = partial(write_new, file, 0, edit)
    first_size = new_size(file.header, edit)
    first = PlannedFile("patch", first_name, first_size, make=make_first)

    if is_split(file):
        others = _copies_of_other_shards(file, other_names)
    else:
        others = _shards_after_new_first(file, other_names)
    return [first, *others]


def _copies_of_other_shards(file: GgufFile, names: Sequence[str]) -> list[PlannedFile]:
    """Return copies of the shards behind the first, which need no change."""
    _, *shards = file.shards
    _, *headers = file.headers
    files = []
    for name, shard, header in zip(names, shards, headers, strict=True):
        files.append(PlannedFile("copy", name, header.size, origin=shard.name))
    return files


def _shards_after_new_first(file: GgufFile, names: Sequence[str]) -> list[PlannedFile]:
    """Return the files of a model as the shards after a new first one.

    The new first shard, number 0, has the metadata and the rope tensors. So the first file of the
    model becomes the shard with the number 1, and so on. Each loses its rope tensors and its
    metadata, but for the alignment of the data, and gets the keys of a shard.

    Args:
        file: The model, in one file or in several.
        names: The name of each new file.
    """
    files = []
    shards = zip(names, file.shards, file.headers, strict=True)
    for number, (name, shard, header) in enumerate(shards, start=1):
        old_keys = {key: value for key, value in header.values.items() if key == ALIGNMENT}
        shard_keys = split_keys(file, number, len(file.tensors))
        rope_tensors = frozenset(header.tensors.keys() & set(ROPE_TENSORS))
        # `base` replaces all metadata of the file, and the keys of the shard are added to it
        edit = Edit(shard_keys, base=old_keys, removed=rope_tensors)
        shard_alone = GgufFile((shard,), (header,))
        make = partial(write_new, shard_alone, 0, edit)
        files.append(PlannedFile("patch", name, new_size(header, edit), make=make))
    return files


def write_profiles(
    plan: ProfilesPlan, advance: Advance = lambda done: None
) -> dict[str, AppliedPlan]:
    """Write all profiles, or none, and return their outputs by name.

    Profiles are outputs of one model with several methods, which share its weights.

    Args:
        plan: The plan of all profiles.
        advance: Is called with the bytes that were written since its last call.

    Raises:
        Disagreement: The installed transformers computes another schedule from an output.
        RopeconvError: The disk has no links; else as `execute_plan` does.
    """
    is_gguf = isinstance(plan.source, GgufSource)
    outputs: dict[str, AppliedPlan] = {}

    def finish(folder: Path) -> None:
        """Complete the hidden folder, which gets its name only after all profiles are checked.

        The finished profiles are added to `outputs`.
        """
        if is_gguf:
            finished = _finish_gguf(plan, folder)
        else:
            finished = _finish_checkpoints(plan, folder)
        for name, output in finished:
            outputs[name] = output
        write_receipt(folder, _receipt_of_folder(plan, folder))

    # this writes the planned files into a hidden folder, the weights among them, and then calls
    # `finish`
    placed = execute_plan(plan, ApplyOptions(link=not plan.copied), finish, advance)
    if placed.was_there:
        outputs = {name: replace(done, was_complete=True) for name, done in outputs.items()}

    # Remember where `validate` finds the source of each profile. The profiles of a GGUF file are
    # compared with `base`, the unchanged model, which has no source itself.
    source = plan.source
    if is_gguf:
        first_shard_of_base = plan.files[0]
        source = GgufSource(plan.out / first_shard_of_base.name)
    for name, output in outputs.items():
        if is_gguf and name == BASE_PROFILE:
            continue
        remember_source(output.path, source)
    return outputs


def _finish_checkpoints(plan: ProfilesPlan, folder: Path) -> Iterator[tuple[str, AppliedPlan]]:
    """Complete each profile in the hidden folder, and yield its name and its output.

    A profile is the model with one method, in a folder of its own. It gets links to the weights,
    which all profiles share; the installed transformers checks its frequencies; and then its
    receipt (ropeconv.json) is written.

    Args:
        plan: The plan of all profiles, whose files were written already.
        folder: The folder in which they are until all are checked.
    """
    # one process with transformers for all profiles, since to import it takes seconds
    probe = SharedProbe() if Probe.available() else None
    try:
        for name, profile in plan.plans.items():
            assert isinstance(profile, CheckpointPlan)
            _link_weights(plan, profile, folder, name)

            # the receipt is written last, since it has the result of the check
            place = folder / name
            check = OutputCheck.by_probe(profile, probe)
            record = check(place)
            files = tuple(_record(file, place) for file in profile.files)
            receipt = msgspec.structs.replace(profile.receipt(), files=files, check=record)
            write_receipt(place, receipt)
            yield name, AppliedPlan(profile.out, record, check.reason)
    finally:
        # Each check stops its probe after it. SharedProbe overrides `stop` to do nothing, so that
        # the next check finds the process running. Only `stop` of the base class ends the process.
        if probe is not None:
            Probe.stop(probe)


def _link_weights(plan: ProfilesPlan, profile: Plan, folder: Path, name: str) -> None:
    """Link the weights of a profile to the files that all profiles share.

    Args:
        plan: The plan of all profiles, whose shared files were written already.
        profile: The plan of the profile.
        folder: The folder of all profiles.
        name: The name of the profile, which is that of its folder.
    """
    # by the name of a file in the source: where it was written
    shared_files = {file.origin: folder / file.name for file in plan.shared}
    for file in profile.files:
        if is_shared(file):
            name_in_source = file.origin or file.name  # `origin` is empty where both are equal
            shared = shared_files[name_in_source]
            link = folder / name / file.name
            _link(shared, link, out=plan.out)


def _finish_gguf(plan: ProfilesPlan, folder: Path) -> Iterator[tuple[str, AppliedPlan]]:
    """Write the first shard of each profile of a GGUF file, and link its other shards.

    Profiles are outputs of one model with several methods. They differ in the first shard, which
    has the metadata, and share all others with `base`, the unchanged model, which was written
    before. Yields the name of each profile, and its output.
    """
    assert isinstance(plan.source, GgufSource)
    first_of_base, *_ = plan.files  # such as base/model-00001-of-00002.gguf
    base = GgufSource(folder / first_of_base.name)
    for name, profile in plan.plans.items():
        if name == BASE_PROFILE:
            record = check_split(plan.source.file, base.file.path)
            yield name, AppliedPlan(plan.out / first_of_base.name, record)
            continue

        # The profile was planned as a change of the source, which may be one file. Here it is
        # planned again as a change of base, which is in shards: then only the first shard changes.
        place = folder / name / profile.out.name
        place.parent.mkdir(exist_ok=True)  # it exists after an interrupted run
        plan_over_base = gguf_plan(base, profile.recipe, replace(profile.target, out=place))
        first, *others = plan_over_base.files
        assert first.make is not None  # it is written, and not a copy
        first_place = place.with_name(first.name)
        first.make(first_place, lambda done: None)  # small, so its progress is not shown
        sync_file(first_place)

        # the other shards are those of base
        _, *other_shards = base.file.shards
        for file, shard in zip(others, other_shards, strict=True):
            _link(shard.path(), place.with_name(file.name), out=plan.out)
        record = check_gguf(plan_over_base, first_place)
        yield name, AppliedPlan(profile.out.with_name(first.name), record)


def _receipt_of_folder(plan: ProfilesPlan, folder: Path) -> CompanionReceipt:
    """Return the receipt of a folder of profiles: the description of all that was written.

    The weights of a checkpoint are large, so they are not read for a sha256 here. `validate`
    compares them with the source.

    Args:
        plan: The plan of all profiles.
        folder: The folder in which they were written.
    """
    is_gguf = isinstance(plan.source, GgufSource)

    # the files of all profiles; several links to one file have one inode, and it is read once
    digest_of_inode: dict[int, str] = {}
    records = []
    for name in sorted(files_of(folder)):
        path = folder / name
        if path.name == RECEIPT:
            continue
        status = path.stat()
        if is_weights(name) and not is_gguf:
            records.append(FileRecord(name=name, action="copy", size=status.st_size, sha256=None))
            continue
        if status.st_ino not in digest_of_inode:
            digest_of_inode[status.st_ino] = sha256(path)
        digest = digest_of_inode[status.st_ino]
        records.append(FileRecord(name=name, action="write", size=status.st_size, sha256=digest))

    # the profiles, each with a digest of its own receipt
    members = {}
    for name in plan.plans:
        if is_gguf and name == BASE_PROFILE:
            continue  # the unchanged model in shards, which has no receipt
        output = output_in(folder / name)
        if output is not None:
            members[name] = member_digest(read_receipt(output))
    return CompanionReceipt(
        ropeconv=__version__,
        companion="profiles",  # the kind of receipt
        source=source_record(plan.source),
        context=max(profile.context for profile in plan.plans.values()),
        members=members,
        files=tuple(records),
    )


def _link(shared: Path, place: Path, out: Path) -> None:
    """Link a file of weights, unless an interrupted run has.

    Args:
        shared: The file.
        place: The path of the link.
        out: The folder of all profiles, which the error names.

    Raises:
        RopeconvError: The disk has no hard links.
    """
    if place.exists():
        return
    if not link_file(shared, place):
        raise RopeconvError(
            f"profiles share weights by hard links, which the disk of {out} does not have; choose"
            " another place with -o"
        )


def _record(file: PlannedFile, folder: Path) -> FileRecord:
    """Return the record of a file for a receipt. Copies are not read, as in `Writer.record`."""
    path = folder / file.name
    digest = file.sha256 if file.action in COPIED else sha256(path)
    return FileRecord(
        name=file.name,
        action=file.action,
        size=path.stat().st_size,
        sha256=digest,
        origin=file.origin or None,
    )
