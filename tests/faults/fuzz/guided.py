"""A search for inputs that reach new branches: those are kept and changed again.

It traces this process by `sys.settrace`, so that it needs no package. `search` is the first thing to
read; `coverage_of` counts branches with the package coverage.
"""

import re
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, NamedTuple

from ropeconv.rope.errors import RopeconvError

from .parsers import PARSERS, Parser

CORPUS = Path(__file__).with_name("corpus")
ROOT = str(Path(__file__).parents[3] / "ropeconv") + "/"
SECONDS = 10.0
"""Processor time of one input, twice that of SECURITY.md for slower machines."""
LONGEST = 1 << 16
"""Bytes of an input: longer ones only take longer."""
Arc = tuple[str, int, int]


class TooSlow(BaseException):
    """An input takes more than its time; a BaseException, so that no parser catches it."""


@dataclass(frozen=True)
class Finding:
    """An input that ends in something other than a result or a sentence."""

    parser: str
    content: bytes
    problem: str

    @property
    def name(self) -> str:
        return f"found-{sha256(self.content).hexdigest()[:12]}"


@dataclass
class Search:
    """What a search has found. kept: inputs that reach branches that none before them reaches."""

    runs: int = 0
    arcs: set[Arc] = field(default_factory=set)
    kept: list[bytes] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def corpus(name: str) -> dict[str, bytes]:
    """The kept inputs of a parser, by the names of their files."""
    return {path.name: path.read_bytes() for path in sorted((CORPUS / name).iterdir())}


@contextmanager
def place_of(parser: Parser) -> Iterator[Path]:
    """A folder with the other files that a parser needs."""
    with tempfile.TemporaryDirectory(prefix="ropeconv-fuzz-") as folder:
        parser.scene(Path(folder))
        yield Path(folder)


@contextmanager
def limited() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def problem_of(parser: Parser, folder: Path, content: bytes) -> str:
    """What is wrong with how an input is read; empty for a result and for a sentence."""
    parser.write(folder, content)
    try:
        with limited():
            parser.read(folder)
    except RopeconvError as problem:
        text = str(problem)
        return "" if text.strip() and "report it" not in text else f"no sentence: {text!r}"
    except (Exception, TooSlow) as problem:
        last = traceback.extract_tb(problem.__traceback__)[-1]
        return f"{type(problem).__name__}: {problem} ({Path(last.filename).name}:{last.lineno})"
    return ""


@contextmanager
def traced(arcs: set[Arc]) -> Iterator[None]:
    """Adds the pairs of lines of ropeconv that run one after another."""

    def local(name: str, first: int) -> Any:
        last = first

        def step(frame: FrameType, event: str, _: object) -> Any:
            nonlocal last
            if event == "line":
                arcs.add((name, last, frame.f_lineno))
                last = frame.f_lineno
            return step

        return step

    def begin(frame: FrameType, event: str, _: object) -> Any:
        name = frame.f_code.co_filename
        return local(name, -frame.f_lineno) if name.startswith(ROOT) else None

    before = sys.gettrace()
    sys.settrace(begin)
    try:
        yield
    finally:
        sys.settrace(before)


WORD = re.compile(rb'"[^"\n]{0,60}"|-?\d[\d.e+-]*|[A-Za-z_][\w.]{2,60}')
ODD = (
    b"0",
    b"-1",
    b"1e999",
    b"NaN",
    b"null",
    b"true",
    b"[]",
    b"{}",
    b'""',
    b"18446744073709551616",
    b"99999999999999999999",
    b"1099511627776",
    b'"\\ud800"',
    b'"../../x"',
    b"[" * 70,
    b"\0",
    b"\xff\xfe",
    "\u202e".encode(),
)
NUMBERS = (0, 1, 2, 7, 255, 4096, 1 << 20, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 63, (1 << 64) - 1)


def words_of(contents: Sequence[bytes]) -> list[bytes]:
    """Names, strings and numbers in some inputs."""
    return sorted({word for content in contents for word in WORD.findall(content)})


def changed(random: Random, contents: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    """An input with one to four changes of another one."""
    content = random.choice(contents)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        content = _change(random, content, contents, words)
    return content[:LONGEST]


def _change(
    random: Random, content: bytes, contents: Sequence[bytes], words: Sequence[bytes]
) -> bytes:
    places = list(WORD.finditer(content))
    if places and random.random() < 0.5:
        # a name, a string or a number becomes another one
        place = random.choice(places)
        new = random.choice(ODD) if random.random() < 0.5 or not words else random.choice(words)
        return content[: place.start()] + new + content[place.end() :]
    at = random.randrange(len(content) + 1)
    length = random.choice((1, 1, 2, 4, 8, 32))
    after = content[at + length :]
    kind = random.randrange(6)
    if kind == 0:
        return content[:at] + random.randbytes(length) + after
    if kind == 1:
        return content[:at] + after
    if kind == 2:
        return content[:at] + content[at : at + 8 * length] * 2 + content[at + 8 * length :]
    if kind == 3:
        return content[:at] + random.choice(contents)[at:]
    if kind == 4:
        size = random.choice((1, 2, 4, 8))
        number = random.choice(NUMBERS).to_bytes(8, "little")[:size]
        return content[:at] + number + content[at + size :]
    return content[:at] + random.choice((*ODD, *words) or ODD) + content[at:]


def search(name: str, seconds: float, seed: int, most: int = 1 << 60) -> Search:
    """Search for inputs of a parser.

    Args:
        name: The parser.
        seconds: Processor time; the kept inputs are always read.
        seed: Of the random changes.
        most: The largest number of inputs.

    Returns:
        The findings, at most ten different ones, and the inputs that reach new branches.
    """
    parser = PARSERS[name]
    random = Random(f"{name} {seed}")
    found = Search()
    contents = list(corpus(name).values())
    words = words_of(contents)
    seen = set[str]()

    def run(content: bytes, folder: Path) -> None:
        found.runs += 1
        before = len(found.arcs)
        with traced(found.arcs):
            problem = problem_of(parser, folder, content)
        place = problem.rsplit("(", 1)[-1]
        if problem and place not in seen and len(seen) < 10:
            seen.add(place)
            found.findings.append(Finding(name, content, problem))
        if len(found.arcs) > before:
            found.kept.append(content)

    with place_of(parser) as folder:
        for content in contents:
            run(content, folder)
        end = time.process_time() + seconds
        while time.process_time() < end and found.runs < most:
            run(changed(random, [*contents, *found.kept], words), folder)
    return found


class Branches(NamedTuple):
    """Branches of the modules of a parser: those that inputs reach, and all."""

    done: int
    total: int


def coverage_of(name: str, contents: Sequence[bytes]) -> Branches:
    """Read inputs once more, and count the branches of the parser's modules."""
    import coverage

    parser = PARSERS[name]
    files = [ROOT + module for module in parser.modules]
    measuring = coverage.Coverage(data_file=None, branch=True, include=files, config_file=False)
    with place_of(parser) as folder:
        measuring.start()
        try:
            for content in contents:
                problem_of(parser, folder, content)
        finally:
            measuring.stop()
    report = [measuring._analyze(file).numbers for file in files]
    return Branches(
        sum(numbers.n_executed_branches for numbers in report),
        sum(numbers.n_branches for numbers in report),
    )
