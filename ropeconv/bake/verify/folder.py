"""Compares the files of an output folder with those of its plan."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from ...errors import BadSource
from ...formats.disk import Advance, sha256
from ...formats.files import LONGEST, read_bytes, scratch
from ...formats.safetensors import read_header
from ...models.source import OTHER_WEIGHTS, RECEIPT
from ..checkpoint import SHARD, CheckpointPlan
from ..plan import PlannedFile
from .findings import OF_CODE, WITHOUT_EFFECT, Findings, files_of, is_code, is_document, is_loaded, json_differences
from .ranges import CopiedRange, MultipliedRange, Range, StreamedRange, first_difference, folded_ranges, tensor_at

WEIGHTS = ".safetensors"


@dataclass(frozen=True)
class FolderCheck:
    """The comparison of a folder with a plan.

    folder: the output. plan: made again. found: gathers the differences. advance: called with the bytes of weights that
    were compared since the last call.
    """

    folder: Path
    plan: CheckpointPlan
    found: Findings
    advance: Advance

    def run(self) -> None:
        """Compares every file of the plan, and looks for others."""
        for file in self.plan.files:
            path = self.folder / file.name
            self.found.files += 1
            if not path.is_file():
                self.found.differs(f"it has no {file.name}", harmless=is_document(file.name))
            elif file.text is not None:
                self._text(file.name, path, file.text.encode())
            elif file.name.endswith(WEIGHTS) or any(fnmatch(file.name, pattern) for pattern in OTHER_WEIGHTS):
                self._weights(file, path)
            else:
                self._other(file, path)
        for name in sorted(set(files_of(self.folder)) - {RECEIPT, *(file.name for file in self.plan.files)}):
            harmless = not is_loaded(name) or (is_code(name) and self.found.options.code)
            self.found.differs(f"{name} is not among the files that ropeconv wrote", harmless=harmless)

    def _another(self, name: str) -> None:
        self.found.differs(
            f"{name} has other contents", harmless=is_document(name) or (is_code(name) and self.found.options.code)
        )

    def _text(self, name: str, path: Path, wanted: bytes) -> None:
        if path.stat().st_size > LONGEST:
            return self._another(name)
        ours = read_bytes(path, name)
        if ours == wanted:
            return None
        options, keys = self.found.options, None
        try:
            keys = json_differences(ours.decode(), wanted.decode()) if name.endswith(".json") else None
        except UnicodeDecodeError:
            keys = None
        if keys is None:
            self._another(name)
        elif not keys:
            self.found.differs(f"{name} has the same values in another layout", harmless=options.edited)
        for key, what in keys or ():
            harmless = (options.edited and key in WITHOUT_EFFECT) or (
                options.code and name == "config.json" and key.split(".")[0] in OF_CODE
            )
            self.found.differs(f"{name} {what}", harmless=harmless)
        return None

    def _other(self, file: PlannedFile, path: Path) -> None:
        """Compares a file that is neither a text of the plan nor weights: a copied one, a tokenizer, the README.md."""
        if file.sha256 is not None and path.stat().st_size == file.size and sha256(path) == file.sha256:
            return
        if file.make is not None:
            with scratch() as folder:
                made = folder / "made"
                file.make(made, lambda done: None)
                self._like(file.name, path, made)
        else:
            self._like(file.name, path, self._origin(file))

    def _like(self, name: str, path: Path, wanted: Path) -> None:
        """Compares a file with another one, in pieces; where they differ and are small, by keys."""
        size = wanted.stat().st_size
        if path.stat().st_size == size and first_difference(path, [CopiedRange(0, size, wanted, 0)]) is None:
            return None
        if size > LONGEST:
            return self._another(name)
        return self._text(name, path, read_bytes(wanted, name))

    def _weights(self, file: PlannedFile, path: Path) -> None:
        size = path.stat().st_size
        if size != file.size:
            return self.found.differs(f"{file.name} has {size:,} bytes, and {file.size:,} belong there")
        if self.found.options.quick and file.name != SHARD:  # that of stored frequencies is small
            return self._quick(file, path)
        self.found.bytes += 0 if self.found.options.quick else size
        if file.action == "copy" and file.sha256 is not None:
            same = sha256(path) == file.sha256
            self.advance(size)
            return None if same else self.found.differs(f"{file.name} has other contents")
        with scratch() as folder:
            place = first_difference(path, self._ranges(file, folder), self.advance)
        return self._differs_from(file.name, path, place)

    def _quick(self, file: PlannedFile, path: Path) -> None:
        """Compares the header of a copied shard, and the tensors that a fold changes."""
        fold = self.plan.result.fold
        if file.action == "patch" and fold is not None:
            ranges = folded_ranges(self.plan.source, file.name, fold, self.plan.target.fold_dtype == "f32")
            changed = [part for part in ranges if isinstance(part, MultipliedRange)]
            self._differs_from(file.name, path, first_difference(path, changed, whole=False))
        elif file.action == "copy" and file.name.endswith(WEIGHTS):
            wanted = self.plan.source.headers.get(file.origin or file.name)
            found = read_header(path)
            if wanted is not None and (found != wanted or list(found.tensors) != list(wanted.tensors)):
                self.found.differs(f"{file.name} has another header")

    def _ranges(self, file: PlannedFile, folder: Path) -> list[Range]:
        """The ranges of a file of weights. folder: for what can only be made as a file."""
        plan, fold = self.plan, self.plan.result.fold
        if file.action == "copy":
            return [CopiedRange(0, file.size, self._origin(file), 0)]
        if file.action == "patch" and fold is not None:
            wide = plan.target.fold_dtype == "f32"
            return folded_ranges(plan.source, file.name, fold, wide)
        streams = {item.name: item.stream for item in plan.source.generated_files()}
        stream = streams.get(file.origin or file.name)
        if stream is not None:
            return [StreamedRange(0, file.size, stream)]
        assert file.make is not None, file.name
        made = folder / "made"
        file.make(made, lambda done: None)
        return [CopiedRange(0, made.stat().st_size, made, 0)]

    def _origin(self, file: PlannedFile) -> Path:
        origin = self.plan.origin(file)
        assert origin is not None, file.name
        return origin

    def _differs_from(self, name: str, path: Path, place: int | None) -> None:
        """Records the byte from which on a file of weights differs, and what it has there; None for none."""
        if place is None:
            return
        try:
            where = tensor_at(path, place) if name.endswith(WEIGHTS) else "something"
        except BadSource:
            where = "the header"
        self.found.differs(f"{where} of {name} differs from byte {place:,} on")
