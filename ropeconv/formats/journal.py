"""Journal: a file of JSON lines with checksums that only grows; a killed run continues from it.

`bake/hidden.py` writes lines of the same form into the hidden folder of an output, whose lock holds
for them. It is not an SQLite database: the line that a kill cuts off is skipped and the rest is
read, journals lie on network filesystems, where SQLite's locks fail
(https://sqlite.org/faq.html#q5), and people read them with the tools for text.
"""

import itertools
import os
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Generic, Self, TypeVar

import msgspec

from ..environment import user_folder
from ..errors import BadSource
from ..rope.errors import counted
from .disk import TAKEN, make_folder, rename_new, sync_folder
from .files import try_lock

MOST_FIRST_BYTES = 1 << 20
"""Bytes that are read before it is clear that a file is a journal."""
CHECKSUM = b',"crc32":"%08x"}'
"""The end of each line, in place of its last brace: the checksum of the part before it."""
CHECKSUM_KEY = b',"crc32":"'
CHECKSUM_LENGTH = len(CHECKSUM % 0)


class Line(msgspec.Struct, frozen=True):
    """A line of a journal."""

    key: str
    """Its subject; of several lines with one key the last is valid."""


L = TypeVar("L", bound=Line)


class Head(msgspec.Struct, frozen=True):
    """The first line."""

    journal: str
    """The command that writes it."""

    format: int
    source: str = ""
    """Identity of the model, or empty."""


@dataclass(frozen=True)
class JournalKind(Generic[L]):
    """A kind of journal."""

    command: str
    format: int
    """The version of the lines; others are not read."""

    line: type[L]
    elsewhere: str = "give another --journal"
    """The repair that names another place."""


def encode_line(line: msgspec.Struct, seed: int = 0) -> bytes:
    """Return a line with its checksum.

    Args:
        line: The content.
        seed: The seed of the checksum: `crc32` of the first line, 0 for the first line.
    """
    body = msgspec.json.encode(line)[:-1]
    return body + CHECKSUM % zlib.crc32(body, seed) + b"\n"


def decode_line(text: bytes, kind: Any, seed: int = 0) -> Any:
    """Return the content of a line; None for a damaged line, and for a line of another journal."""
    body = text[:-CHECKSUM_LENGTH]
    if text[-CHECKSUM_LENGTH:] != CHECKSUM % zlib.crc32(body, seed):
        return None
    # the checksum took the place of the last brace
    try:
        return msgspec.json.decode(body + b"}", type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


class Journal(Generic[L]):
    """A journal that is open for appending, with a lock."""

    def __init__(
        self, path: Path, kind: JournalKind[L], source: str = "", fresh: bool = False
    ) -> None:
        """Open a journal, the file to which a long run appends each result as a line of JSON.

        A run that was interrupted continues behind the lines that are there.

        Args:
            path: The file.
            kind: The command that writes the journal, and the form of its lines.
            source: Identity of the model; empty for a journal that belongs to no model.
            fresh: Whether to begin a new journal, and to rename an existing one.

        Raises:
            BadSource: The file is not a journal, or the journal of another model or version, or
                another run is writing to it. The file is unchanged.
            OSError: The file cannot be written.
        """
        self.path = path
        self.kind = kind

        self.lines = dict[str, L]()
        """The lines by key."""

        self.notes = list[str]()
        """Sentences for the user on damaged lines, and on the file that `fresh` moved."""

        # The first line names the model and the version. Its checksum is the start value (seed) for
        # the checksums of all other lines, so that a line of another journal is noticed.
        self._head = Head(f"ropeconv {kind.command}", kind.format, source)
        # a line is {"key":...,"crc32":"..."}: the checksum is of the part before ,"crc32"
        head_without_brace = msgspec.json.encode(self._head)[:-1]
        self._seed = zlib.crc32(head_without_brace)

        # after an error, `make_folder` removes the folder if it has made it
        with make_folder(path.parent):
            self._file = self._open_locked()
            try:
                complete_bytes = self._load_lines(fresh)
                self._prepare_file(complete_bytes, fresh)
            except BaseException:
                self._file.close()
                raise

    def add(self, line: L) -> L:
        """Append a line, and return it when it is on the disk. Raises OSError."""
        self._write(encode_line(line, self._seed))
        self.lines[line.key] = line
        return line

    def close(self) -> None:
        """Close the file, which ends the lock."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def _open_locked(self) -> BinaryIO:
        """Open the file and lock it. Raises BadSource while another run has the lock."""
        while True:
            file = self.path.open("a+b")
            if try_lock(file) == "busy":
                file.close()
                raise BadSource(
                    f"another run writes to {self.path}; wait for its end, or {self.kind.elsewhere}"
                )

            # another run may have moved the file between opening and locking it; then this one
            # opens the next file of that name
            with suppress(FileNotFoundError):
                has_its_name = os.path.samestat(os.fstat(file.fileno()), self.path.stat())
                if has_its_name:
                    return file
            file.close()

    def _load_lines(self, fresh: bool) -> int:
        """Read the lines of the file into `self.lines`.

        Args:
            fresh: Whether a new journal is begun, before which an existing one is renamed.

        Returns:
            The length of the complete lines in bytes, where the next line is written. It is 0 for a
            file without results, which a new first line may replace.

        Raises:
            BadSource: The file is not a journal, or is the journal of another model or version.
        """
        # a journal without results, which has its first line only
        self._file.seek(0)
        data = self._file.read(MOST_FIRST_BYTES)
        first_line = encode_line(self._head)
        if data == first_line:
            return 0 if fresh else len(first_line)

        # an empty file, or a part of the first line, from a run that was killed
        is_part_of_first_line = first_line.startswith(data)
        if is_part_of_first_line:
            return 0
        # zeros in place of the first line: at a loss of power, the length of the file was on the
        # disk, and its bytes were not
        is_zeroed = len(data) <= len(first_line) and not data.strip(b"\0")
        if is_zeroed:
            return 0

        # a file of something else: every line of a journal ends in a checksum
        has_checksums = CHECKSUM_KEY in data
        if not has_checksums:
            raise self._not_a_journal()
        return self._parse_lines(data + self._file.read(), fresh)

    def _parse_lines(self, data: bytes, fresh: bool) -> int:
        """Put the lines of a journal into `self.lines`, and return their length in bytes.

        Args:
            data: The content of the file.
            fresh: Whether a new journal is begun, before which this one is renamed. It may then be
                the journal of another model or version.

        Raises:
            BadSource: The file is not a journal, or is the journal of another model or version.
        """
        # the complete lines; a run that was killed may have left a part of a line behind them
        length_of_lines = data.rfind(b"\n") + 1
        first_line, *result_lines = data[:length_of_lines].removesuffix(b"\n").split(b"\n")

        # The first line names the command, the model and the version. The journal of another model
        # or version is not read, and only `fresh` may rename it.
        head = decode_line(first_line, Head)
        head_is_damaged = head is None
        is_of_another_run = not head_is_damaged and head != self._head
        if is_of_another_run:
            is_of_another_command = head.journal != self._head.journal
            if is_of_another_command:
                raise self._not_a_journal()
            if not fresh:
                raise self._error_for_other_head(head)
            return length_of_lines

        # the other lines, each with a result
        self.lines = {}
        damaged = 0
        for text in result_lines:
            line = decode_line(text, self.kind.line, self._seed)
            if line is None:
                damaged += 1
            else:
                self.lines[line.key] = line

        # With a damaged first line, the results show whose journal it is: their checksums depend on
        # the first line, so that no result of another journal is decoded.
        if head_is_damaged and not self.lines:
            raise self._not_a_journal()

        # say how many lines are damaged, with the first line and a part of a line at the end
        if head_is_damaged:
            damaged += 1
        if length_of_lines < len(data):
            damaged += 1
        if damaged and not fresh:
            be = "is" if damaged == 1 else "are"
            self.notes.append(
                f"{counted(damaged, 'line')} of {self.path} {be} damaged and skipped."
            )
        return length_of_lines

    def _prepare_file(self, complete_bytes: int, fresh: bool) -> None:
        """Make the file ready for more lines.

        Args:
            complete_bytes: The length of the complete lines in the file; 0 for a file without
                results. A part of a line behind them, which a killed run left, is cut off.
            fresh: Whether to begin a new journal, and to rename a file that has results.
        """
        # Rename the journal with results, and open a new file with its name. The lock on the
        # renamed file ends only when the new file is locked, so that no other run comes in between.
        if fresh and complete_bytes:
            earlier_file = self._file
            new_name = self._set_aside()
            self.lines = {}
            self.notes.append(f"The earlier journal is now {new_name}.")
            self._file = self._open_locked()
            earlier_file.close()  # which ends its lock
            complete_bytes = 0

        self._file.truncate(complete_bytes)
        if not complete_bytes:  # a new file, or one that was only begun
            self._write(encode_line(self._head))
            sync_folder(self.path.parent)

    def _set_aside(self) -> Path:
        """Rename the file to a free name behind `.old`, and return that."""
        for number in itertools.count(1):
            suffix = "" if number == 1 else str(number)
            aside = self.path.with_name(f"{self.path.name}.old{suffix}")
            try:
                rename_new(self.path, aside)
            except OSError as problem:
                if problem.errno not in TAKEN:
                    raise
            else:
                break
        return aside

    def _not_a_journal(self) -> BadSource:
        return BadSource(
            f"{self.path} is not a journal of `ropeconv {self.kind.command}`; {self.kind.elsewhere}"
        )

    def _error_for_other_head(self, head: Head) -> BadSource:
        """Return the error for the journal of another model, or of another version of lines."""
        of = "model" if head.format == self.kind.format else "version of ropeconv"
        return BadSource(
            f"{self.path} is the journal of another {of}; {self.kind.elsewhere}, or --fresh,"
            " which gives this one another name"
        )

    def _write(self, data: bytes) -> None:
        """Append bytes, and wait until they are on the disk."""
        self._file.write(data)
        self._file.flush()
        os.fsync(self._file.fileno())


def default_path(source: str, command: str = "eval") -> Path:
    """Return the path of the journal of a model in the user's cache.

    Args:
        source: Identity of the model.
        command: The command that writes the journal.

    Raises:
        RopeconvError: The user has no home.
    """
    return user_folder("cache") / command / f"{source[:16]}.jsonl"
