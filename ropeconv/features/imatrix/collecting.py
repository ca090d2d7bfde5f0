"""`ropeconv.imatrix`: computes an importance matrix from a text, in llama.cpp."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ropeconv.convert.to_gguf.imatrix import imatrix_file
from ropeconv.engines.process import ProgramProcess
from ropeconv.environment import require, without_secrets
from ropeconv.errors import UsageError
from ropeconv.formats.disk import threads
from ropeconv.formats.drafts import write_file
from ropeconv.formats.files import expand_home, scratch
from ropeconv.formats.gguf.file import GgufFile
from ropeconv.formats.jsontext import JsonObject
from ropeconv.formats.kind import is_gguf, refusal
from ropeconv.reporting import Reporter, SilentReporter
from ropeconv.rope.errors import RopeconvError, command_line, counted
from ropeconv.verbs.arguments import check_arguments

from .options import PieceOptions

PROGRAM = Path(__file__).with_name("program.py")


@dataclass(frozen=True)
class CollectedImatrix:
    """An importance matrix that was written."""

    path: Path
    """The file."""

    entries: int
    """The weights in it."""

    chunks: int
    """The pieces of text that the model saw."""

    chunk_size: int
    """The tokens of a piece."""

    unseen: int
    """The experts of all layers that no token has reached."""

    @property
    def sentence(self) -> str:
        """The file and what it is made from, in words."""
        text = (
            f"Wrote {self.path}: {counted(self.entries, 'weight')}, from"
            f" {counted(self.chunks, 'piece')} of {self.chunk_size} tokens."
        )
        if self.unseen:
            text += f" {counted(self.unseen, 'expert')} saw no token, so a longer text would help."
        return text

    def to_dict(self) -> JsonObject:
        """Return it as JSON-ready data."""
        return {
            "path": str(self.path),
            "entries": self.entries,
            "chunks": self.chunks,
            "chunk_size": self.chunk_size,
            "unseen_experts": self.unseen,
        }


@check_arguments
def imatrix(
    model: Path | str,
    text: Path | str,
    out: Path | str | None = None,
    chunk_size: int = PieceOptions.chunk_size,
    chunks: int = PieceOptions.chunks,
    force: bool = False,
    reporter: Reporter | None = None,
) -> CollectedImatrix:
    """Compute an importance matrix from a text, and write it as llama-imatrix does.

    The matrix has, for each weight, the sums of the squares of its inputs over all tokens.
    llama.cpp's quantiser weighs the errors of a column by them. Any length of context gives nearly
    the same matrix, so one serves the model and all its extensions.

    Args:
        model: A GGUF file, best in BF16 or Q8_0.
        text: A text file.
        out: The file to write; None for NAME.imatrix.gguf.
        chunk_size: The tokens of a piece of text.
        chunks: The most pieces; 0 for the whole text.
        force: Replace a file that is there.
        reporter: Gets the progress.

    Raises:
        UsageError: For another file than a GGUF model, a text that is too short, and numbers that
            are out of bounds.
        RopeconvError: Where llama.cpp does not run the model.
    """
    PieceOptions(chunk_size, chunks)  # refuses numbers that are out of their bounds
    require("llama_cpp", "an importance matrix")
    reporter = reporter or SilentReporter()
    source = expand_home(Path(model))
    _refuse_model(source)
    text_file = expand_home(Path(text))
    if not text_file.is_file():
        raise UsageError(refusal(text_file, "a text file"))
    place = Path(f"{source.stem}.imatrix.gguf") if out is None else expand_home(Path(out))
    if place.exists() and not force:
        raise UsageError(f"{place} exists; pass --force to replace it, or choose another -o")

    # llama.cpp runs in another process, which leaves the sums in a file
    with scratch() as folder:
        arrays = folder / "sums.npz"
        settings = {
            "model": str(source),
            "text": str(text_file),
            "chunk_size": chunk_size,
            "chunks": chunks,
            "threads": threads(),
            "out": str(arrays),
        }
        pieces_read = _collect(settings, chunk_size, reporter)
        sums, counts = _read_sums(arrays)
    if not sums:
        raise RopeconvError(f"{source} has no layer whose inputs llama.cpp shows; report it")

    write_file(place, imatrix_file(sums, counts, text_file.name, pieces_read, chunk_size))
    unseen_experts = 0
    for rows_of_experts in counts.values():
        unseen_experts += int((rows_of_experts == 0).sum())
    return CollectedImatrix(place, len(sums), pieces_read, chunk_size, unseen_experts)


def _refuse_model(source: Path) -> None:
    """Raise UsageError for a model that is not a GGUF file, and BadSource for a damaged one."""
    if (source / "config.json").is_file():
        convert = command_line("apply", str(source), "--as-is", "--to", "gguf", "--outtype", "bf16")
        raise UsageError(f"{source} is a checkpoint; `{convert}` writes the GGUF file for it")
    if not is_gguf(source):
        raise UsageError(refusal(source, "a GGUF file"))
    GgufFile.open(source)


def _read_sums(path: Path) -> tuple[dict[str, NDArray[np.float32]], dict[str, NDArray[np.int64]]]:
    """Return the sums of squares and the counts of rows that the program wrote, by weight.

    The file has two arrays for each weight: "sums blk.0.attn_q.weight", [matrices, columns], and
    "counts blk.0.attn_q.weight", one number or one for each expert.
    """
    sums: dict[str, NDArray[np.float32]] = {}
    counts: dict[str, NDArray[np.int64]] = {}
    with np.load(path) as stored:
        for title in stored.files:
            kind, _, weight = title.partition(" ")
            if kind == "sums":
                sums[weight] = stored[title]
            else:
                counts[weight] = stored[title]
    return sums, counts


def _collect(settings: JsonObject, chunk_size: int, reporter: Reporter) -> int:
    """Run the program that computes an importance matrix; return how many pieces of text it read.

    Args:
        settings: Its argument: the model, the text, and where the sums are written.
        chunk_size: The tokens of a piece.
        reporter: Receives progress.

    Raises:
        UsageError: The text is shorter than a piece.
        RopeconvError: llama.cpp does not run the model.
    """
    # -P keeps modules of the current folder out
    command = [sys.executable, "-P", str(PROGRAM), json.dumps(settings)]
    pieces = 0
    with (
        ProgramProcess(command, without_secrets()) as program,
        reporter.counting("Reading", "tokens") as (set_total, advance),
    ):
        # It writes a line of JSON first, {"tokens": 5000, "chunks": 9}, and then one after each
        # piece, {"read": 512}. An empty line is the end.
        line = program.receive()
        while line:
            message = json.loads(line)
            if "chunks" in message:
                pieces = message["chunks"]
                set_total(pieces * chunk_size)
                if not pieces:
                    raise UsageError(
                        f"the text has {counted(message['tokens'], 'token')}, and a piece has"
                        f" {chunk_size}; give a longer text, or a smaller --chunk-size"
                    )
            else:
                advance(message["read"])
            line = program.receive()
        code, errors = program.end()

    # the last line about an error is the reason
    if code != 0:
        reason = "it gives no reason"
        for error_line in errors.splitlines():
            if "error" in error_line.lower():
                reason = error_line
        raise RopeconvError(f"llama.cpp does not run {settings['model']}: {reason[:300]}")
    return pieces
