"""Executes a plan: files are written into a hidden folder, checked, and then moved to their final
names.

A later run continues from the files that an interrupted one has finished.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event, Lock

import msgspec

from ..errors import BadSource, Interruption
from ..formats.disk import (
    FULL,
    Advance,
    FileIdentity,
    copy_file,
    human,
    identity,
    link_file,
    make_folder,
    refuse_changed,
    sample_digest,
    sha256,
    sync_file,
    sync_folder,
    sync_tree,
    writing_back,
)
from ..inspection.receipts.receipt import CheckRecord, FileRecord
from ..inspection.receipts.storage import clear_drafts, remove_results, write_receipt
from ..rope.errors import RopeconvError
from ..version import __version__
from .finished import is_finished, may_be_finished
from .hidden import (
    Begun,
    FinishedFile,
    HiddenFolder,
    OutputJournal,
    SideFile,
    locked,
    refuse_full,
    refuse_occupied,
    refuse_place,
    settle,
    take_names,
)
from .plan import FilePlan, PlannedFile

BOOT = Path("/proc/sys/kernel/random/boot_id")
COPIED = ("copy", "patch")
"""Actions that make a file from one file of the source, unchanged or with changes in it."""
COPIES_AT_ONCE = 2
SECONDS_TO_STOP = 5.0
"""Seconds that the current copies have to stop when a run is stopped."""

Verify = Callable[[Path], CheckRecord | None]


@dataclass(frozen=True)
class ApplyOptions:
    """How a plan is executed."""

    link: bool = False
    """Hard-link unchanged files."""

    force: bool = False
    """Replace an earlier output."""

    checksum: bool = False
    """Hash copied weights too, for the receipt."""

    staged: bool = False
    """Leave out files that are copied unchanged, for a caller that takes them from the source."""

    fsync: bool = True
    """Wait until everything is on the disk before it gets its final name."""


@dataclass(frozen=True)
class Placed:
    """An output that is in its place."""

    path: Path
    """A folder, or a GGUF file (of several shards the first)."""

    was_there: bool = False
    """Whether the place had exactly this output already, so that nothing was changed."""


def execute_plan(
    plan: FilePlan,
    options: ApplyOptions,
    verify: Verify = lambda folder: None,
    advance: Advance = lambda done: None,
    beside: SideFile | None = None,
) -> Placed:
    """Write the output and return its place.

    An interrupted run leaves its finished files in a hidden folder, from which the same command
    continues; a killed replacement of an earlier output is undone at the next start. Where the
    place has exactly this output already, it is written again beside that, compared, and removed:
    nothing changes.

    Args:
        plan: The plan of the output.
        options: How it is written.
        verify: Called with the folder of the finished files before they are moved to their final
            names. It returns the check for the receipt, or raises to stop.
        advance: Called with the bytes done since the last call.
        beside: A small file that gets its final name together with a GGUF output, such as a
            Modelfile. It is not written where the place has this output already.

    Raises:
        RopeconvError: For an occupied or missing place, one that another process writes to, a full
            or failing disk, and a source that changes meanwhile.
    """
    refuse_place(plan)
    with (
        _explain_disk_errors(plan),
        make_folder(plan.out.parent, options.fsync),
        locked(plan.out) as hidden,
    ):
        # end what a killed run had begun
        journal = settle(hidden, OutputJournal.read(hidden.journal))

        # The place must be free, but it may have this very output from an earlier run. Names and
        # sizes say whether that is possible. Then the output is written again into the hidden
        # folder, and compared with what is there before anything is replaced.
        may_be_there = not options.staged and _keeps_finished(plan, options.force)
        if not may_be_there:
            refuse_occupied(plan, options.force)
        clear_drafts(plan.out)

        try:
            _write(plan, hidden, journal, options, verify, advance, beside)
        except Exception:
            hidden.clear()
            # a changed source may be the cause, and has a better message
            refuse_changed(plan.identities)
            raise

        is_there = may_be_there and is_finished(plan, hidden.new)
        if may_be_there and not is_there:
            # the place has another output after all, which this refuses or --force replaces
            hidden.clear()
            refuse_occupied(plan, options.force)
        if not is_there:
            _publish(plan, hidden, journal, options, beside)
        hidden.clear()

    if options.fsync:
        # the output is on the disk; this is for the removal of the hidden folder
        with suppress(OSError):
            sync_folder(plan.out.parent)
    return Placed(plan.out, is_there)


def write_ahead(
    plans: Sequence[FilePlan],
    options: ApplyOptions,
    make: Callable[[Sequence[Path], Advance], None],
    advance: Advance = lambda done: None,
) -> None:
    """Write the files of several outputs in one pass, before `execute_plan` is called for each.

    The outputs are GGUF files of one model in several types (F16, Q8_0), and the weights of the
    model are read once for all. Each file is left in the hidden folder of its output. The caller
    then calls `execute_plan` for each plan, which finds the finished file, checks it, and gives it
    its final name.

    Args:
        plans: The outputs.
        options: How each plan is executed afterwards.
        make: Writes the files of all plans. It gets their paths, and a function to call with the
            bytes done.
        advance: Called with the bytes done since the last call.

    Raises:
        RopeconvError: A place is refused, or the disk fails. No file is kept.
    """
    with ExitStack() as opened:
        writers = []
        folders = []
        for plan in plans:
            refuse_place(plan)
            opened.enter_context(_explain_disk_errors(plan))
            opened.enter_context(make_folder(plan.out.parent, options.fsync))
            hidden = opened.enter_context(locked(plan.out, keep=True))
            folders.append(hidden)
            # An earlier run may have been killed. Its journal lists the files that it finished.
            # `settle` undoes an exchange of files that it did not finish.
            journal = settle(hidden, OutputJournal.read(hidden.journal))
            writers.append(_begin(plan, hidden, journal, options, advance))

        try:
            # `resume` returns the files that are still to be written: the one file of the output,
            # or none if an earlier run has finished it. If any is finished, nothing is done here,
            # and `execute_plan` writes the other files.
            files_to_write = [writer.resume() for writer in writers]
            all_are_unwritten = all(len(files) == 1 for files in files_to_write)
            if all_are_unwritten:
                drafts = []  # paths of the incomplete files
                for writer, [file] in zip(writers, files_to_write, strict=True):
                    drafts.append(writer.draft(file))
                make(drafts, advance)
                for writer, [file] in zip(writers, files_to_write, strict=True):
                    writer.finish(file)
        except Exception:
            for hidden in folders:
                hidden.clear()
            raise


def _publish(
    plan: FilePlan,
    hidden: HiddenFolder,
    journal: OutputJournal,
    options: ApplyOptions,
    beside: SideFile | None,
) -> None:
    """Move the finished files to their final names.

    Args:
        plan: The plan of the output.
        hidden: The hidden folder beside the output, which has the finished files.
        journal: The journal in it, from which a killed run is undone.
        options: How the plan is executed.
        beside: A small file that gets its final name together with the output, such as a Modelfile.

    Raises:
        RopeconvError: A name is taken. The finished files stay in the hidden folder.
    """
    names = [plan.out.name]
    if not plan.is_folder:
        # the first shard of a GGUF model last, since the others cannot be loaded without it
        names = [file.name for file in reversed(plan.files)]
    try:
        refuse_occupied(plan, options.force)
        take_names(hidden, journal, names, options.force, options.fsync, beside)
    except RopeconvError as problem:
        raise RopeconvError(f"{problem}{_say_kept(plan)}") from None
    if not plan.is_folder:
        remove_results(plan.out)


def refuse_early(plan: FilePlan, force: bool) -> None:
    """Raise RopeconvError where `execute_plan` would refuse the place of an output.

    Files of an interrupted run, and an output that may be that of the same command, are not judged.
    """
    if HiddenFolder(plan.out).root.exists():
        return
    refuse_place(plan)
    if not _keeps_finished(plan, force):
        refuse_occupied(plan, force)


def _keeps_finished(plan: FilePlan, force: bool) -> bool:
    """Whether the place may have the output of the same command, which is kept then."""
    # an output without a receipt, such as a restored source, is not replaced by --force either
    keeps = not force or plan.receipt() is None
    return keeps and may_be_finished(plan)


def _write(
    plan: FilePlan,
    hidden: HiddenFolder,
    journal: OutputJournal,
    options: ApplyOptions,
    verify: Verify,
    advance: Advance,
    beside: SideFile | None,
) -> None:
    """Write the files of an output into a hidden folder, check them, and write the receipt.

    The receipt is the record of how the output was made.

    Args:
        plan: The output with all its files.
        hidden: The hidden folder, beside the final place of the output.
        journal: The list of finished files in the hidden folder.
        options: How the plan is executed.
        verify: Checks the finished files. It returns the result for the receipt, or raises.
        advance: Called with the bytes done since the last call.
        beside: A small file that gets its final name together with the output, such as a Modelfile;
            None without one.
    """
    # With `staged`, files that are copied unchanged are not written here: for an upload, the caller
    # takes them from the source. The receipt lists all files.
    plan_to_write = plan
    if options.staged:
        not_copied = tuple(file for file in plan.files if file.action != "copy")
        plan_to_write = replace(plan, files=not_copied)

    writer = _begin(plan_to_write, hidden, journal, options, advance)
    root = writer.root

    # The receipt of a folder: of a model, or of a companion such as an adapter. (A GGUF file has
    # its receipt in its header, which is written with the file.)
    model_receipt = plan.receipt() if plan.is_folder else None
    companion_receipt = plan.companion()  # None for a model

    # write the files that an earlier run has not finished, and check the output
    unfinished = writer.resume()
    refuse_full(plan_to_write, unfinished, hidden.root, options.link)
    writer.write(unfinished)
    check_result = verify(root)

    # The receipt comes last, since it has the size and digest of every file, and the result of the
    # check. For a file that was not written here, `record` returns the planned size and digest.
    records = tuple(writer.record(file) for file in plan.files)
    if model_receipt is not None:
        model_receipt = msgspec.structs.replace(model_receipt, files=records, check=check_result)
        write_receipt(root, model_receipt, options.fsync)
    if companion_receipt is not None:
        companion_receipt = msgspec.structs.replace(companion_receipt, files=records)
        write_receipt(root, companion_receipt, options.fsync)

    # the small file beside the output, such as a Modelfile
    if beside is not None:
        side_path = hidden.new / beside.name
        side_path.write_bytes(beside.text.encode())
        if options.fsync:
            sync_file(side_path)

    # raise if a source file has changed meanwhile, and wait until everything is on the disk
    refuse_changed(writer.identities)
    if options.fsync:
        sync_tree(root)


def _begin(
    plan: FilePlan,
    hidden: HiddenFolder,
    journal: OutputJournal,
    options: ApplyOptions,
    advance: Advance,
) -> Writer:
    """Return the writer of an output, after removing what another plan left in its hidden folder.

    Args:
        plan: The files that are written.
        hidden: The hidden folder beside the output, which may have files of an interrupted run.
        journal: The journal in it. It has a digest (`stamp`) of the plan and lists finished files.
        options: How the plan is executed.
        advance: Called with the bytes done since the last call.

    Raises:
        RopeconvError: The source has changed.
    """
    # Files of an earlier run are only used for the same plan, options and source, which have the
    # same digest. Otherwise the folder is emptied, and the journal begins with the new digest.
    stamp = _stamp(plan, options)
    if journal.stamp != stamp:
        hidden.clear()
        journal.add(Begun(stamp))

    # a folder is written as `new/NAME`, and shards of a GGUF model as `new/NAME.gguf`
    root = hidden.new
    if plan.is_folder:
        root = hidden.new / plan.out.name
    writer = Writer(
        plan=plan,
        root=root,
        drafts=hidden.drafts,
        journal=journal,
        options=options,
        advance=advance,
        identities=dict(plan.identities),
    )
    refuse_changed(writer.identities)
    return writer


def _stamp(plan: FilePlan, options: ApplyOptions) -> str:
    """Return a digest by which a run recognises finished files of an interrupted run as its own.

    It is the digest of the plan, the state of the source, and the options that change the files.
    """
    files = [(file.action, file.name, file.size, file.sha256, file.text) for file in plan.files]
    # the inode, size and time of each local file of the source
    identities = []
    for path, identity_before in plan.identities.items():
        identities.append((str(path), msgspec.to_builtins(identity_before)))

    # a loss of power undoes files that were not synced, so only the same boot may use them
    boot_id = ""
    if not options.fsync and BOOT.exists():
        boot_id = BOOT.read_text()
    settings = [options.link, options.checksum, options.fsync, boot_id, __version__]

    common = [
        plan.source.reference,
        plan.source.identity,
        plan.resume_key,
        settings,
        files,
        identities,
    ]
    return hashlib.sha256(json.dumps(common).encode()).hexdigest()


@contextmanager
def _explain_disk_errors(plan: FilePlan) -> Iterator[None]:
    """Turn errors of the disk into RopeconvError. Errors of the network are left unchanged."""
    try:
        yield
    except OSError as problem:
        # the errors of requests are an OSError without a number
        if problem.errno is None or isinstance(problem, ConnectionError | TimeoutError):
            raise
        if problem.errno in FULL:
            message = (
                f"the disk is full; {human(plan.bytes)} are needed at {plan.out.parent}, free some"
                " or use -o"
            )
        else:
            message = (
                f"{plan.out} cannot be written ({problem.strerror}:"
                f" {problem.filename or plan.out.parent}); check the disk and its permissions, or"
                " choose another place with -o"
            )
        raise RopeconvError(message + _say_kept(plan)) from None


def _say_kept(plan: FilePlan) -> str:
    """A sentence on the finished files that an error leaves behind; empty without any."""
    root = HiddenFolder(plan.out).root
    if not root.is_dir():
        return ""
    return f". {root} has the finished files: the same command continues; else remove it"


@dataclass
class Writer:
    """Writes the files of a plan."""

    plan: FilePlan

    root: Path
    """The folder of complete files."""

    drafts: Path
    """The folder of incomplete files, with names of their own, since a source may have any name."""

    journal: OutputJournal
    options: ApplyOptions
    advance: Advance

    identities: dict[Path, FileIdentity | None] = field(default_factory=dict)
    """The files of the source that are read, as they were before."""

    _lock: Lock = field(default_factory=Lock)
    _stopping: Event = field(default_factory=Event)

    def resume(self) -> list[PlannedFile]:
        """Remove all but unchanged finished files, and return the files that are left to write."""
        self.root.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self.drafts, ignore_errors=True)
        self.drafts.mkdir(exist_ok=True)

        pending = list[PlannedFile]()
        finished_sizes = dict[str, int]()  # by name
        for file in self.plan.files:
            if self._is_finished(file):
                finished_sizes[file.name] = file.size
            else:
                pending.append(file)

        # remove files that were not finished, and those whose source has changed since
        for folder, _, names in os.walk(self.root):
            for name in names:
                path = Path(folder, name)
                if path.relative_to(self.root).as_posix() not in finished_sizes:
                    path.unlink()
        if finished_sizes:
            self.advance(sum(finished_sizes.values()))
        return pending

    def _is_finished(self, file: PlannedFile) -> bool:
        """Whether an earlier run has written a file, and neither it nor its source has changed.

        The journal has the identity of the file (inode, size, time) and a digest of samples of its
        bytes; an unchanged copy has the samples of its source.
        """
        path = self.root / file.name
        journal_line = self.journal.finished.get(file.name)
        if journal_line is None or identity(path) != journal_line.identity:
            return False
        if not _has_planned_size(file, journal_line.identity.size):
            return False

        # a local source may have changed and kept its sizes; a commit on the Hub cannot change
        is_local_copy = file.action == "copy" and self.plan.source.kind != "hub"
        if is_local_copy:
            origin = self.plan.origin(file)
            if origin is not None and sample_digest(origin) != journal_line.sample:
                return False
        return sample_digest(path) == journal_line.sample

    def write(self, pending: Iterable[PlannedFile]) -> None:
        """Write files, copies two at a time, since one does not use the whole bandwidth of a disk.

        Raises OSError, and BadSource where the source is not as it was planned.
        """
        # what is made here is written one file after the other, and copies by threads
        copies = []
        for file in pending:
            if file.action in COPIED:
                copies.append(file)
            else:
                self._write(file)

        pool = ThreadPoolExecutor(COPIES_AT_ONCE)
        running: list[Future[None]] = []
        try:
            for file in copies:
                running.append(pool.submit(self._write, file))
            for future in as_completed(running):
                future.result()
        except BaseException:
            self._stopping.set()
            pool.shutdown(wait=False, cancel_futures=True)
            # threads may still be in a download that hangs; it no longer touches anything here
            wait(running, SECONDS_TO_STOP)
            raise
        pool.shutdown()

    def record(self, file: PlannedFile) -> FileRecord:
        """Return the record of a file for the receipt, with its real size and sha256.

        A copy is hashed only with `--checksum`, since that takes longer than copying it. Otherwise
        it has the sha256 that the source lists, as the Hub does, or None.
        """
        # a file that the caller takes from the source (`staged`) was not written here, so it has
        # its planned size
        size = file.size
        digest = file.sha256
        finished = self.journal.finished.get(file.name)
        if finished is not None:
            size = finished.identity.size
            digest = finished.sha256 or file.sha256
        return FileRecord(
            name=file.name, action=file.action, size=size, sha256=digest, origin=file.origin or None
        )

    def _write(self, file: PlannedFile) -> None:
        """Write a file as a draft, check it, give it its name, and note it in the journal."""
        draft = self.draft(file)
        with writing_back(draft) if self.options.fsync else nullcontext():
            self._fill(file, draft)
            self.finish(file)

    def draft(self, file: PlannedFile) -> Path:
        """Return where a file is written before it is complete."""
        suffix = (self.root / file.name).suffix
        return self.drafts / f"{self.plan.files.index(file)}{suffix}"

    def finish(self, file: PlannedFile) -> None:
        """Check the draft of a file, give it its name, and note it in the journal."""
        draft = self.draft(file)
        target = self.root / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        sample, digest = self._check(file, draft)
        if self.options.fsync:
            sync_file(draft)

        # only now: a file with its name in the hidden folder is complete and on the disk
        draft.replace(target)
        after = identity(target)
        assert after is not None, target
        with self._lock:
            self.journal.add(
                FinishedFile(name=file.name, identity=after, sample=sample, sha256=digest)
            )

    def _fill(self, file: PlannedFile, draft: Path) -> None:
        """Write the content of a planned file: made, from its text, as a link or as a copy."""
        # a file on the Hub is downloaded only now, and must not change from here on
        origin = self.plan.origin(file)
        if origin is not None:
            self.identities.setdefault(origin, identity(origin))
        self._done(0)  # raises in a run that was stopped during the download

        if file.make is not None:
            file.make(draft, self._done)
        elif file.text is not None:
            draft.write_bytes(file.text.encode())
            self._done(file.size)
        elif origin is None:
            raise RopeconvError(f"{file.name} is planned without a content; report it")
        elif self.options.link and link_file(origin, draft):
            self._done(file.size)
        else:
            copy_file(origin, draft, self._done)

    def _done(self, done: int) -> None:
        """Count bytes. Raises Interruption in a run that is stopped, so that its threads end."""
        if self._stopping.is_set():
            raise Interruption("stopped with the run")
        if done:
            self.advance(done)

    def _check(self, file: PlannedFile, draft: Path) -> tuple[str, str | None]:
        """Compare a written file with its plan, and return its digests.

        Args:
            file: The planned file.
            draft: The path of the written file, which does not have its final name yet.

        Returns:
            The digest of samples of the file, and the sha256 of the whole file. The sha256 is None
            for a large file that need not be read completely.

        Raises:
            BadSource: The file is not as planned.
        """
        # 1. The size, and samples of 4 MB in all. These notice a source that was replaced while it
        # was copied.
        sample = sample_digest(draft)
        if not self._is_as_planned(file, draft, sample):
            raise BadSource(
                f"{file.name} changed while it was copied; leave the source unchanged and run again"
            )

        planned_digest = file.sha256
        if file.text is not None:
            planned_digest = hashlib.sha256(file.text.encode()).hexdigest()

        # 2. The sha256, which takes a reading of the whole file.
        is_copy = file.action in COPIED
        if is_copy:
            # the user asks for it with --checksum
            needs_digest = self.options.checksum
        else:
            # The receipt of a folder lists the digests of files that were made. (A GGUF file has
            # its receipt inside, which cannot have the digest of the file.)
            needs_digest = self.plan.is_folder or planned_digest is not None
        if not needs_digest:
            return sample, None

        digest = sha256(draft)
        if planned_digest is not None and digest != planned_digest:
            raise BadSource(
                f"{file.name} has another content than was planned; check the disk and the source"
            )
        return sample, digest

    def _is_as_planned(self, file: PlannedFile, draft: Path, sample: str) -> bool:
        """Whether a written file has the planned size, and a copy the samples of its origin."""
        if not _has_planned_size(file, draft.stat().st_size):
            return False
        if file.action != "copy":
            return True
        origin = self.plan.origin(file)
        return origin is None or sample == sample_digest(origin)


def _has_planned_size(file: PlannedFile, size: int) -> bool:
    """Whether a file has its planned size, as far as that is known."""
    if file.estimated or size == file.size:
        return True
    # the Hub does not tell the size of some files, which are planned with 0
    return file.size == 0 and file.text is None
