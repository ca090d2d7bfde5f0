"""Packets of conformance vectors: what an engine should answer, and how known mistakes differ.

`vectors` is the function to read first. It makes everything in a temporary folder, and writes the
files of the packet as one set at the end.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ropeconv.bake.apply import apply, make_plan
from ropeconv.convert.target import Target
from ropeconv.environment import require
from ropeconv.errors import UsageError
from ropeconv.features.identify.identifying import Subject
from ropeconv.features.identify.mistakes import RIGHT, candidates
from ropeconv.features.identify.structure import CannotChange
from ropeconv.formats.disk import obstacle
from ropeconv.formats.drafts import SUFFIX, together, write_file
from ropeconv.formats.files import expand_home, scratch
from ropeconv.formats.package_data import render
from ropeconv.keywords import StrPath
from ropeconv.models.open import open_source
from ropeconv.reporting import Reporter, SilentReporter
from ropeconv.rope.errors import RopeconvError, counted
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.schedule import Schedule
from ropeconv.rope.summary import SummaryTable, TableSummary
from ropeconv.verbs.arguments import check_arguments
from ropeconv.version import __version__

from .check_rope import Array, PromptIds, distance, log_softmax
from .tiny import TRAINED, TinyModel, shape_of, write_tiny
from .tokenizer import LETTER

LONGEST = 4096
"""Tokens of the longest context that a packet may have."""
COMPARED = {"long": 64, "short": 16}
"""Positions that are compared, by the name of the prompt."""
PARTS = ("README.md", "check_rope.py", "packet.json", "expected.npz", "model", "model.gguf")
"""The names in the folder of a packet."""
DIGITS = 5
"""Decimals of the expected logits."""
TOP = 20
"""Likeliest tokens whose log-probabilities packet.json has for each position."""
MARGIN = 4.0
"""The allowed distance, in measured distances of rounding."""
SPAN = 24
"""Tokens that a prompt repeats, so that attention to the past matters."""
FIRST = 4
"""The first token that is not a special one."""
SEED = 0


@dataclass(frozen=True)
class VectorCandidate:
    """The method, or a known mistake, which an engine may compute."""

    name: str

    words: str
    """The name for people."""

    distance: float
    """The distance from the method: the root mean square of log-probabilities, in nats."""


@dataclass(frozen=True)
class VectorPacket(TableSummary):
    """A packet of conformance vectors, as `vectors` wrote it."""

    path: str
    """The folder."""

    title: str
    """The architecture and the method, such as `llama, --yarn 8`."""

    trained: int
    """The trained length of the tiny model, in tokens."""

    declared: int
    """The declared length of the extended model, in tokens."""

    candidates: tuple[VectorCandidate, ...]
    """The method, then the mistakes that a test names, the nearest first."""

    left_out: dict[str, str]
    """Mistakes that are not in the packet, by name, with the reason."""

    precisions: dict[str, dict[str, float]]
    """By precision: the measured `noise` of rounding, and the allowed `tolerance`."""

    files: tuple[str, ...]
    """The files, relative to the folder."""

    bytes: int
    """The size of all files."""

    no_gguf: str = ""
    """Why there is no GGUF file; empty where there is one."""

    notes: tuple[str, ...] = ()
    """Sentences about the tiny model."""

    record_keys: ClassVar[tuple[str, ...]] = ("name", "words", "distance")

    @property
    def sentence(self) -> str:
        """The conclusion for people."""
        allowed = self.precisions["float32"]["tolerance"]
        mistakes = len(self.candidates) - 1
        return (
            f"{self.path} has {len(self.files)} files, {self.bytes / 1e6:.1f} MB, and tells"
            f" {counted(mistakes, 'mistake')} from the method; a distance of {allowed:.1e} is"
            " allowed in float32."
        )

    def summary(self) -> dict[str, str]:
        """Return the values that are shown, by name."""
        return {
            "sentence": self.sentence,
            "path": self.path,
            "title": self.title,
            "trained": f"{self.trained} tokens",
            "declared": f"{self.declared:,} tokens",
            "bytes": f"{self.bytes / 1e6:.1f} MB",
            "no_gguf": self.no_gguf,
        }

    def shown_tables(self) -> list[SummaryTable]:
        """Return a table with a row for each candidate, the nearest first."""
        rows = []
        for candidate in self.candidates:
            rows.append((candidate.name, candidate.words, f"{candidate.distance:.2g}"))
        return [SummaryTable("candidates", ("name", "it computes", "distance"), rows)]

    def records(self) -> list[dict[str, Any]]:
        """Return a row for each candidate, the nearest first."""
        return [asdict(candidate) for candidate in self.candidates]

    def to_dict(self) -> dict[str, Any]:
        """Return the packet as JSON-ready data."""
        return asdict(self) | {"sentence": self.sentence}


@check_arguments
def vectors(
    subject: str,
    recipe: Recipe | None = None,
    out: StrPath | None = None,
    *,
    runtime: str | Sequence[str] = (),
    encoding: str = "auto",
    reporter: Reporter | None = None,
) -> VectorPacket:
    """Write a packet: a tiny extended model, its expected logits, and a test for any engine.

    Args:
        subject: An architecture such as "llama", or a model whose RoPE the tiny one gets.
        recipe: The method, such as `Recipe(METHODS["yarn"](8.0))`.
        out: The folder of the packet. One that is there is replaced.
        runtime: Runtimes whose encoding the tiny model has.
        encoding: How the method is written into it.
        reporter: Receives progress, and sentences for the user.

    Returns:
        The packet, as it was written.

    Raises:
        UsageError: For an architecture that is not known, a context that is too long, and a folder
            with other files.
        RopeconvError: Where the method cannot be computed or baked for this architecture.
    """
    require("torch", "vectors")
    require("transformers", "vectors")
    if recipe is None or out is None:
        raise UsageError("vectors needs a recipe, such as yarn 8, and a folder for the packet")
    runtimes = (runtime,) if isinstance(runtime, str) else tuple(runtime)
    reporter = reporter or SilentReporter()
    folder = expand_home(os.fspath(out))
    _check_place(folder)
    tiny = shape_of(subject)

    with scratch() as work, _one_thread():
        source = work / f"tiny-{tiny.model_type}"
        source.mkdir()
        write_tiny(tiny, source, SEED)
        opened = Subject.of_recipe(str(source), recipe)
        context = opened.extension.schedule.context
        if not TRAINED < context <= LONGEST:
            raise UsageError(
                f"the tiny model has a trained length of {TRAINED} tokens, and the method makes"
                f" {context:,} of them; choose one that makes at most {LONGEST:,}"
            )

        # the extended model, as `apply` writes it: a folder, and where possible a GGUF file
        target = Target(out=work / "model", runtimes=runtimes, encoding=encoding)
        apply(make_plan(open_source(str(source)), recipe, target), check=False, remember=False)
        no_gguf = _write_gguf(source, recipe, work / "model.gguf")
        files = _read_files(work / "model", "model/")
        if not no_gguf:
            files["model.gguf"] = (work / "model.gguf").read_bytes()

        # what it should answer, and the test that compares an engine with it
        packet = _fill(
            files,
            folder,
            title=f"{subject}, {opened.method}",
            tiny=tiny,
            subject=opened,
            source=source,
            prompts=make_prompts(opened.extension.schedule, int(tiny.settings["vocab_size"])),
            no_gguf=no_gguf,
            reporter=reporter,
        )

    _refuse_other_packet(folder, files)
    with together():
        for name, data in files.items():
            write_file(folder / name, data)
    return packet


def _refuse_other_packet(folder: Path, files: Container[str]) -> None:
    """Raise UsageError for a folder with a file that the new packet does not have.

    Args:
        folder: The folder of the packet.
        files: The names of the files of the new packet.
    """
    for name in _names_in(folder):
        if name not in files:
            raise UsageError(
                f"{folder} has {name} of another packet; choose another folder, or remove this one"
            )


def make_prompts(schedule: Schedule, vocabulary: int) -> list[PromptIds]:
    """Return the prompts of a test packet: random tokens, in which earlier spans are repeated.

    The repeats make attention to the past matter, and with it RoPE. The long prompt ends one token
    before the declared length, since a server generates a token after it. There is a short one only
    where a schedule has frequencies of its own for short prompts.

    Args:
        schedule: The frequencies that an engine should compute.
        vocabulary: How many tokens there are.
    """
    generator = np.random.default_rng(SEED)
    lengths = {"long": schedule.context - 1}
    if schedule.short_inv_freq is not None:
        lengths["short"] = schedule.original_context

    prompts = []
    for name, length in lengths.items():
        ids = [int(token) for token in generator.integers(FIRST, vocabulary, length)]
        # every second span of SPAN tokens becomes a copy of one that ends before it
        for start in range(2 * SPAN, length - SPAN, 2 * SPAN):
            earlier = int(generator.integers(0, start - SPAN))
            ids[start : start + SPAN] = ids[earlier : earlier + SPAN]

        # positions at even distances; a server has no log-probabilities after the last token
        last_compared = length - 2
        count = min(COMPARED[name], length - 1)
        places = np.linspace(0, last_compared, count).round()
        positions = [int(place) for place in places]
        prompts.append(PromptIds(name=name, ids=ids, positions=positions))
    return prompts


def _fill(
    files: dict[str, bytes],
    folder: Path,
    title: str,
    tiny: TinyModel,
    subject: Subject,
    source: Path,
    prompts: list[PromptIds],
    no_gguf: str,
    reporter: Reporter,
) -> VectorPacket:
    """Compute what is expected, add the other files of the packet, and return its record.

    Args:
        files: The files of the extended model by name, to which those of the test are added.
        folder: The folder of the packet, for its record.
        title: The architecture and the method, such as "llama, --yarn 8".
        tiny: The tiny model.
        subject: The model and the method, with the right schedule and the known mistakes.
        source: The folder of the tiny model before the extension, which computes what is expected.
        prompts: The tokens that an engine reads.
        no_gguf: Why there is no GGUF file; empty where there is one.
        reporter: Receives progress.
    """
    from .reference import Reference

    reference = Reference(source, subject)
    right, *mistakes = candidates(subject.extension)
    expected = {RIGHT: _rounded(reference.logits(right, prompts))}
    noise = reference.noise(right, prompts, expected[RIGHT])
    precisions = {}
    for name, measured in noise.items():
        precisions[name] = {"noise": _short(measured), "tolerance": _short(MARGIN * measured)}

    # A mistake is named only if no engine can be within the tolerance of it and of the method.
    least = 2 * precisions["float32"]["tolerance"]
    found = [VectorCandidate(RIGHT, right.words, 0.0)]
    left_out = {}
    with reporter.counting("Computing") as (total, advance):
        total(len(mistakes))
        for mistake in mistakes:
            advance(1)
            try:
                logits = _rounded(reference.logits(mistake, prompts))
            except CannotChange:
                left_out[mistake.name] = "the class of this architecture cannot compute it"
                continue
            away = distance(log_softmax(logits), log_softmax(expected[RIGHT]))
            if away <= least:
                left_out[mistake.name] = f"it is {away:.1e} from the method"
                continue
            expected[mistake.name] = logits
            found.append(VectorCandidate(mistake.name, mistake.words, _short(away)))
    found.sort(key=lambda candidate: candidate.distance)

    schedule = subject.extension.schedule
    data = {
        "format": 1,
        "title": title,
        "model_type": tiny.model_type,
        "trained": TRAINED,
        "declared": schedule.context,
        "vocabulary": tiny.settings["vocab_size"],
        "letter": LETTER,
        "schedule": schedule.to_dict(),
        "prompts": [asdict(prompt) for prompt in prompts],
        "top": _likeliest(expected[RIGHT]),
        "candidates": [asdict(candidate) for candidate in found],
        "left_out": left_out,
        "digits": DIGITS,
        "margin": MARGIN,
        "precisions": precisions,
        "made_with": {
            "ropeconv": __version__,
            **{name: version(name) for name in ("transformers", "torch", "numpy")},
        },
        "no_gguf": no_gguf,
    }
    files["packet.json"] = (json.dumps(data, indent=1) + "\n").encode()
    files["expected.npz"] = _archive({entry.name: expected[entry.name] for entry in found})
    files["check_rope.py"] = Path(__file__).with_name("check_rope.py").read_bytes()
    values = {**data, "notes": tiny.notes, "right": RIGHT}
    files["README.md"] = render("vectors.md.jinja", **values).encode()
    return VectorPacket(
        path=str(folder),
        title=title,
        trained=TRAINED,
        declared=schedule.context,
        candidates=tuple(found),
        left_out=left_out,
        precisions=precisions,
        files=tuple(sorted(files)),
        bytes=sum(len(content) for content in files.values()),
        no_gguf=no_gguf,
        notes=tiny.notes,
    )


def _write_gguf(source: Path, recipe: Recipe, path: Path) -> str:
    """Write the extended model as GGUF; return why that is not possible, or an empty text."""
    try:
        target = Target(out=path, to="gguf", outtype="f32")
        apply(make_plan(open_source(str(source)), recipe, target), check=False, remember=False)
    except RopeconvError as problem:
        return str(problem)
    return ""


def _read_files(folder: Path, prefix: str) -> dict[str, bytes]:
    """Return the contents of the files in a folder by name."""
    return {prefix + path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def _check_place(folder: Path) -> None:
    """Raise UsageError for a place where no packet can be written."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; name a folder for the packet")
    problem = obstacle(folder.parent)
    if problem:
        raise UsageError(f"{problem}, so {folder.name} cannot be written there; choose another")
    for name in _names_in(folder):
        if name.partition("/")[0] not in PARTS:
            raise UsageError(
                f"{folder} has files that are not of a packet, such as {name}; choose another"
                " folder"
            )


def _names_in(folder: Path) -> list[str]:
    """Return the names of the files in a folder, without drafts that a killed run left."""
    names = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.name.endswith(SUFFIX):
            names.append(path.relative_to(folder).as_posix())
    return names


def _rounded(logits: Array) -> Array:
    """Return logits with the decimals of a packet."""
    return np.asarray(np.round(logits, DIGITS).astype(np.float32).astype(np.float64))


def _short(number: float) -> float:
    """Return a number with two digits."""
    return float(f"{number:.1e}")


def _likeliest(logits: Array) -> list[list[list[float]]]:
    """Return the likeliest tokens of each row: [token id, log-probability], the likeliest first."""
    rows = []
    for row in log_softmax(logits):
        best = np.argsort(-row, kind="stable")[:TOP]
        rows.append([[int(token), round(float(row[token]), DIGITS)] for token in best])
    return rows


def _archive(arrays: dict[str, Array]) -> bytes:
    """Return an .npz file of float32 arrays; numpy writes no times into it."""
    buffer = io.BytesIO()
    rounded: dict[str, Any] = {}
    for name, array in arrays.items():
        rounded[name] = array.astype(np.float32)
    np.savez_compressed(buffer, **rounded)
    return buffer.getvalue()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Make torch compute in one thread, so that sums have the same order in every run."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
