"""Compares the files of an output folder with those of its plan."""

from __future__ import annotations

from contextlib import suppress
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
    """The comparison of a folder with its plan, which was made again.

    advance: called with the bytes of weights that were compared since the last call.
    """

    folder: Path
    plan: CheckpointPlan
    findings: Findings
    advance: Advance

    def run(self) -> None:
        """Compare every file of the plan, and search for others."""
        for file in self.plan.files:
            path = self.folder / file.name
            self.findings.files += 1
            if not path.is_file():
                self.findings.differs(f"it has no {file.name}", harmless=is_document(file.name))
            elif file.text is not None:
                self._text(file.name, path, file.text.encode())
            elif file.name.endswith(WEIGHTS) or any(fnmatch(file.name, pattern) for pattern in OTHER_WEIGHTS):
                self._weights(file, path)
            else:
                self._other(file, path)
        for name in sorted(set(files_of(self.folder)) - {RECEIPT, *(file.name for file in self.plan.files)}):
            harmless = not is_loaded(name) or (is_code(name) and self.findings.options.code)
            self.findings.differs(f"{name} is not among the files that ropeconv wrote", harmless=harmless)

    def _other_contents(self, name: str) -> None:
        harmless = is_document(name) or (is_code(name) and self.findings.options.code)
        self.findings.differs(f"{name} has other contents", harmless=harmless)

    def _text(self, name: str, path: Path, planned: bytes) -> None:
        if path.stat().st_size > LONGEST:
            return self._other_contents(name)
        content = read_bytes(path, name)
        if content == planned:
            return None
        options, differences = self.findings.options, None
        with suppress(UnicodeDecodeError):
            differences = json_differences(content.decode(), planned.decode()) if name.endswith(".json") else None
        if differences is None:
            return self._other_contents(name)
        if not differences:
            self.findings.differs(f"{name} has the same values in another layout", harmless=options.edited)
        for key, clause in differences:
            of_code = options.code and name == "config.json" and key.split(".")[0] in OF_CODE
            harmless = of_code or (options.edited and key in WITHOUT_EFFECT)
            self.findings.differs(f"{name} {clause}", harmless=harmless)
        return None

    def _other(self, file: PlannedFile, path: Path) -> None:
        """Compare a file that is neither a text of the plan nor weights: a copied one, a tokenizer, the README.md."""
        if file.sha256 is not None and path.stat().st_size == file.size and sha256(path) == file.sha256:
            return
        if file.make is not None:
            with scratch() as folder:
                remade = folder / "made"
                file.make(remade, lambda done: None)
                self._like(file.name, path, remade)
        else:
            self._like(file.name, path, self._origin(file))

    def _like(self, name: str, path: Path, planned: Path) -> None:
        """Compare a file with another one, in pieces; where they differ and are small, by keys."""
        size = planned.stat().st_size
        if path.stat().st_size == size and first_difference(path, [CopiedRange(0, size, planned, 0)]) is None:
            return None
        return self._other_contents(name) if size > LONGEST else self._text(name, path, read_bytes(planned, name))

    def _weights(self, file: PlannedFile, path: Path) -> None:
        size = path.stat().st_size
        if size != file.size:
            return self.findings.differs(f"{file.name} has {size:,} bytes, and {file.size:,} belong there")
        if self.findings.options.quick and file.name != SHARD:  # that of stored frequencies is small
            return self._quick(file, path)
        self.findings.bytes += 0 if self.findings.options.quick else size
        if file.action == "copy" and file.sha256 is not None:
            same = sha256(path) == file.sha256
            self.advance(size)
            return None if same else self.findings.differs(f"{file.name} has other contents")
        with scratch() as folder:
            place = first_difference(path, self._ranges(file, folder), self.advance)
        return self._differs_from(file.name, path, place)

    def _quick(self, file: PlannedFile, path: Path) -> None:
        """Compare the header of a copied shard, and the tensors that a fold changes."""
        fold = self.plan.result.fold
        if file.action == "patch" and fold is not None:
            ranges = folded_ranges(self.plan.source, file.name, fold, self.plan.target.fold_dtype == "f32")
            changed = [part for part in ranges if isinstance(part, MultipliedRange)]
            self._differs_from(file.name, path, first_difference(path, changed, whole=False))
        elif file.action == "copy" and file.name.endswith(WEIGHTS):
            planned = self.plan.source.headers.get(file.origin or file.name)
            header = read_header(path)
            if planned is not None and (header != planned or list(header.tensors) != list(planned.tensors)):
                self.findings.differs(f"{file.name} has another header")

    def _ranges(self, file: PlannedFile, folder: Path) -> list[Range]:
        """The ranges of a file of weights. folder: for files that are made again."""
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
        remade = folder / "made"
        file.make(remade, lambda done: None)
        return [CopiedRange(0, remade.stat().st_size, remade, 0)]

    def _origin(self, file: PlannedFile) -> Path:
        origin = self.plan.origin(file)
        assert origin is not None, file.name
        return origin

    def _differs_from(self, name: str, path: Path, place: int | None) -> None:
        """Record the first byte of a file of weights that differs, and the tensor there; None for no difference."""
        if place is None:
            return
        try:
            where = tensor_at(path, place) if name.endswith(WEIGHTS) else "something"
        except BadSource:
            where = "the header"
        self.findings.differs(f"{where} of {name} differs from byte {place:,} on")
