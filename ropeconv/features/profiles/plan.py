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
from ropeconv.models.source import RECEIPT, Source, is_weights
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


def plan_each_profile(
    source: Source | GgufSource, recipes: Sequence[Recipe], target: Target
) -> dict[str, Plan]:
    """Plan the outputs of one model with several methods (profiles), which share its weights.

    Args:
        source: The model, as `open_source` opens it.
        recipes: A recipe for each profile.
        target: Format, runtimes, and `out`, the folder of all profiles. `out` is None if the
            profiles are only published.

    Returns:
        A plan for each profile, by its name: "yarn4" for YaRN by 4, "base" for the unchanged model
        (`AsIs`). A GGUF file always has "base", as the first profile.

    Raises:
        UsageError: Two profiles have one name, or "base" of a GGUF file is the only profile.
        RopeconvError: The folder is taken, a profile changes weights, or as in `make_plan`.
    """
    # profiles have links to the weight files of the model, so these must exist
    has_no_weight_files = isinstance(source, Source) and (
        source.kind == "config" or source.generated_files()
    )
    if has_no_weight_files:
        raise UsageError(
            f"{source.reference} has no weights in the format of its profiles; make a checkpoint of"
            " it first, with `ropeconv apply SOURCE --as-is -o FOLDER`"
        )

    # A GGUF model is split into shards: the first has the settings, the others have the weights.
    # Each profile gets its own first shard, and links to the weights of "base", the unchanged
    # model. So "base" must be there.
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
        target_of_profile = replace(target, out=out / name)
        plans[name] = _plan_profile(source, recipe, target_of_profile, name)
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


def _plan_profile(source: Source | GgufSource, recipe: Recipe, target: Target, name: str) -> Plan:
    """Plan one profile: an output that shares the weights of the other profiles.

    Args:
        source: The model.
        recipe: The method and its modifiers.
        target: The target, with the folder of the profile as `out`.
        name: The name of the profile.

    Raises:
        RopeconvError: The profile changes weights, which the others share.
    """
    # the output of a GGUF profile is a file in its folder, such as yarn4/model-yarn4.gguf
    if target.out and isinstance(source, GgufSource):
        folder = target.out
        if name == BASE_PROFILE:
            target = replace(target, out=folder / f"{source.name}.gguf", encoding="auto")
        else:
            target = replace(target, out=folder / f"{source.name}-{name}.gguf")

    # --replace removes the present scaling of the model before a method scales it anew. It is not
    # for the unchanged model, nor for a recipe that builds on the present scaling (--on-top).
    keeps_scaling = name == BASE_PROFILE or recipe.on_top
    if keeps_scaling:
        target = replace(target, replace=False)

    try:
        plan = make_plan(source, recipe, target)
    except AlreadyExtended as problem:
        # problem.short: "MODEL is scaled already; pass --replace to start from its unscaled RoPE"
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
    """Plan the files of a folder with several profiles, in which the weights are only once.

    Profiles are outputs of one model with several methods.

    Args:
        source: The model.
        plans: The plan of each profile, by name.
        out: The folder of all profiles.
        copied: Whether the folder gets a copy of the weights. By default it has links to the weight
            files of the source.
    """
    # GGUF: only the shards of the unchanged model are planned here. `_finish_gguf` makes the other
    # profiles from them.
    if isinstance(source, GgufSource):
        return ProfilesPlan(
            source=source,
            out=out,
            files=tuple(split_files(source)),
            skipped=(),
            plans=plans,
            copied=copied,
        )

    # a checkpoint
    files = []
    skipped: set[str] = set()
    first_profile = next(iter(plans))
    for profile, plan in plans.items():
        skipped.update(plan.skipped)
        for file in plan.files:
            # weights are planned for the first profile; the others get links to them at the end
            is_weights_file = is_shared(file)
            if is_weights_file and profile != first_profile:
                continue

            # file.make: the function that writes a file. An unchanged file without one may become a
            # link to the source. Small files get one, so that each profile has its own copy, which
            # a user can edit.
            name_in_source = file.origin or file.name  # `origin` is empty if the names are equal
            write_file = file.make
            if file.action == "copy" and not is_weights_file:
                write_file = partial(source.copy, name_in_source)
            path_in_folder = f"{profile}/{file.name}"
            planned = replace(file, name=path_in_folder, origin=name_in_source, make=write_file)
            files.append(planned)
    return ProfilesPlan(
        source=source,
        out=out,
        files=tuple(files),
        skipped=tuple(sorted(skipped)),
        plans=plans,
        copied=copied,
    )


def first_shard(file: GgufFile, edit: Edit | None = None) -> Edit:
    """Return the edit that makes a first shard with only metadata and RoPE tensors.

    A GGUF model can be split into shards. Outputs of one model with several methods (profiles) then
    differ only in the first shard.

    Args:
        file: The model.
        edit: Further changes of the first shard.
    """
    edit = edit or Edit()
    in_first_shard = file.header.tensors
    removed = {name for name in in_first_shard if name not in ROPE_TENSORS}

    # rope tensors of other shards are copied into the first one
    copies = {}
    for name in file.tensors:
        if name in ROPE_TENSORS and name not in in_first_shard:
            copies[name] = file.read(name)

    # The number of tensors in all shards stays the same. `write_new` adds the copies to the number
    # in the metadata, and subtracts what is removed from this shard, which other shards have.
    tensors_before_edit = len(file.tensors) - len(copies) + len(removed)
    keys = split_keys(file, number=0, tensors=tensors_before_edit)
    return replace(
        edit,
        values={**edit.values, **keys},
        removed=edit.removed | removed,
        added={**copies, **edit.added},
    )


def split_keys(file: GgufFile, number: int, tensors: int) -> dict[str, GgufValue]:
    """Return the metadata keys that make a GGUF file one of several shards.

    gguf-split of llama.cpp writes {"split.no": 0, "split.count": 3, "split.tensors.count": 290},
    for example.

    Args:
        file: The model.
        number: The number of the shard, from 0.
        tensors: The number of tensors in all shards. `write_new` adds the number of those that this
            shard gets, and subtracts that of those that are removed from it.
    """
    # a model without a first shard for the metadata gets one before its own files
    count = len(file.shards)
    if not is_split(file):
        count += 1
    return {  # with the types of gguf-split
        "split.no": _gguf_integer(UINT16, number),
        "split.count": _gguf_integer(UINT16, count),
        COUNT: _gguf_integer(INT32, tensors),  # "split.tensors.count"
    }


def _gguf_integer(kind: int, value: int) -> GgufValue:
    """Return a number as a value of GGUF metadata, of a type such as UINT16."""
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
    """Return the files of the unchanged GGUF model, split into shards.

    The first shard has the metadata and the RoPE tensors (such as `rope_freqs`). The other shards
    have the weights. If the source is split in this way already, these are copies.
    """
    file = source.file
    edit = first_shard(file)

    # llama.cpp finds the other shards by the name of the first, base/model-00001-of-00003.gguf
    shard_count = edit.values["split.count"].decode()  # the number of shards, such as 3
    names = [f"{BASE_PROFILE}/{name}" for name in shard_names(f"{source.name}.gguf", shard_count)]
    first_name, *other_names = names

    # the first shard is made from the first file of the source (index 0), without the weights
    first_file = 0
    make_first = partial(write_new, file, first_file, edit)
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
    """Return the files of a model as shards with the numbers 1, 2, ...

    The shard with the number 0 is new and has the metadata and the RoPE tensors. These are removed
    from the files of the model, which keep only weights.

    Args:
        file: The model, in one file or in several.
        names: The name of each shard.
    """
    files = []
    shards = zip(names, file.shards, file.headers, strict=True)
    for number, (name, shard, header) in enumerate(shards, start=1):
        # of the old metadata only the alignment of the data stays
        kept_keys = {key: value for key, value in header.values.items() if key == ALIGNMENT}
        rope_tensors = frozenset(header.tensors.keys() & set(ROPE_TENSORS))
        shard_keys = split_keys(file, number, len(file.tensors) + len(rope_tensors))
        edit = Edit(shard_keys, base=kept_keys, removed=rope_tensors)

        # the file is edited as if it were a whole model, whose only file has the index 0
        single_file = GgufFile((shard,), (header,))
        first_file = 0
        make = partial(write_new, single_file, first_file, edit)
        files.append(PlannedFile("patch", name, new_size(header, edit), make=make))
    return files


def write_profiles(
    plan: ProfilesPlan, advance: Advance = lambda done: None
) -> dict[str, AppliedPlan]:
    """Write all profiles of a plan, and return the output of each by its name.

    Profiles are outputs of one model with several methods, which share its weights. If one of them
    fails, no profile is kept.

    Args:
        plan: The plan of all profiles.
        advance: Called with the bytes that were written since the last call.

    Raises:
        Disagreement: The installed transformers computes other frequencies from an output.
        RopeconvError: The disk has no links, or as in `execute_plan`.
    """
    is_gguf = isinstance(plan.source, GgufSource)
    finished: dict[str, AppliedPlan] = {}  # filled by `finish`

    def finish(folder: Path) -> None:
        """Check the profiles in the hidden folder, complete them, and write the receipt."""
        if is_gguf:
            finished.update(_finish_gguf(plan, folder))
        else:
            finished.update(_finish_checkpoints(plan, folder))
        write_receipt(folder, _receipt_of_folder(plan, folder))

    # First the planned files are written into a hidden folder. Then `finish` is called, and the
    # folder gets its name.
    options = ApplyOptions(link=not plan.copied)
    placed = execute_plan(plan, options, finish, advance)
    outputs = {}
    for name, output in finished.items():
        # was_there: an earlier run has written the same folder
        outputs[name] = replace(output, was_complete=True) if placed.was_there else output

    # Remember the source of each profile for `validate`. The profiles of a GGUF file are compared
    # with the unchanged model ("base"), which itself has no source.
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
    """Link, check and complete each profile of a checkpoint; yield its name and its output.

    A profile is a folder with the model and one method. It gets links to the shared weights. The
    installed transformers computes its frequencies, which are checked. Then its receipt is written.

    Args:
        plan: The plan of all profiles, whose files were written already.
        folder: The hidden folder of all profiles.
    """
    # one process with transformers for all profiles, since to import it takes seconds
    probe = SharedProbe() if Probe.available() else None
    try:
        for name, profile in plan.plans.items():
            assert isinstance(profile, CheckpointPlan)
            _link_weights(plan, profile, folder, name)

            # the receipt (ropeconv.json) is written last, since it has the result of the check
            profile_folder = folder / name
            check = OutputCheck.by_probe(profile, probe)
            result_of_check = check(profile_folder)
            files = tuple(_record(file, profile_folder) for file in profile.files)
            receipt = msgspec.structs.replace(profile.receipt(), files=files, check=result_of_check)
            write_receipt(profile_folder, receipt)
            yield name, check.outcome(profile.out)
    finally:
        if probe is not None:
            probe.close()


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
    """Write the first shard of each GGUF profile, link its other shards, and check the profile.

    Profiles are outputs of one model with several methods. They differ only in the first shard,
    which has the metadata.

    Args:
        plan: The plan of all profiles. The shards of the unchanged model were written already.
        folder: The hidden folder of all profiles.

    Yields:
        The name of each profile, and its output.
    """
    assert isinstance(plan.source, GgufSource)
    first_of_base, *_ = plan.files  # such as base/model-00001-of-00002.gguf
    base = GgufSource(folder / first_of_base.name)
    for name, profile in plan.plans.items():
        # the unchanged model is only checked
        if name == BASE_PROFILE:
            result_of_check = check_split(plan.source.file, base.file.path)
            yield name, AppliedPlan(plan.out / first_of_base.name, result_of_check)
            continue

        # The profile was planned for the source, which may be a single file. It is planned again
        # for the shards of the unchanged model, of which only the first changes.
        profile_folder = folder / name
        profile_folder.mkdir(exist_ok=True)  # it exists after an interrupted run
        target = replace(profile.target, out=profile_folder / profile.out.name)
        plan_in_shards = gguf_plan(base, profile.recipe, target)
        first, *others = plan_in_shards.files
        assert first.make is not None  # the first shard is written, and not copied
        first_path = profile_folder / first.name
        first.make(first_path, lambda done: None)  # small, so its progress is not shown
        sync_file(first_path)

        # the other shards are links to the shards of the unchanged model
        _, *shards_of_base = base.file.shards
        for file, shard in zip(others, shards_of_base, strict=True):
            _link(shard.path(), profile_folder / file.name, out=plan.out)
        result_of_check = check_gguf(plan_in_shards, first_path)
        yield name, AppliedPlan(profile.out.with_name(first.name), result_of_check)


def _receipt_of_folder(plan: ProfilesPlan, folder: Path) -> CompanionReceipt:
    """Return the receipt of a folder of profiles: a record of each file, and of each profile.

    Args:
        plan: The plan of all profiles.
        folder: The folder in which the profiles were written.
    """
    is_gguf = isinstance(plan.source, GgufSource)

    # a record of each file; links to one file have the same inode, and are read only once
    digest_of_inode: dict[int, str] = {}
    records = []
    for name in sorted(files_of(folder)):
        path = folder / name
        if path.name == RECEIPT:
            continue
        status = path.stat()

        # the weights of a checkpoint have no sha256: `validate` compares them with the source
        if is_weights(name) and not is_gguf:
            records.append(FileRecord(name=name, action="copy", size=status.st_size, sha256=None))
            continue

        if status.st_ino not in digest_of_inode:
            digest_of_inode[status.st_ino] = sha256(path)
        digest = digest_of_inode[status.st_ino]
        records.append(FileRecord(name=name, action="write", size=status.st_size, sha256=digest))

    # for each profile a digest of its own receipt
    members = {}
    for name in plan.plans:
        is_unchanged_gguf = is_gguf and name == BASE_PROFILE  # has no receipt
        if is_unchanged_gguf:
            continue
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
