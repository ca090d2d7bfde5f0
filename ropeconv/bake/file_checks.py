"""Compares the files of an output, a folder or a GGUF model, with those of its plan."""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ..convert.to_gguf.stock_export import StockExport, digest_tensors
from ..errors import BadSource
from ..formats.disk import Advance, sha256
from ..formats.files import LONGEST, read_bytes, scratch
from ..formats.gguf.edit import RESERVED, Change, RewrittenHeader, rewrite
from ..formats.gguf.file import GgufFile
from ..formats.gguf.header import GgufHeader, GgufValue, TensorInfo
from ..formats.gguf.header import read_header as read_gguf
from ..formats.jsontext import JsonObject
from ..formats.safetensors import read_header
from ..loader import CODE
from ..models.source import RECEIPT, is_weights
from ..rope.errors import counted, shown
from ..runtimes.llamacpp.read_header import ROPE_TENSORS
from .checkpoint import SHARD, CheckpointPlan
from .findings import (
    CopiedRange,
    Findings,
    GeneratedRange,
    Range,
    StreamedRange,
    first_difference,
    folded_ranges,
    tensor_at,
)
from .gguf import ExportPlan, GgufPlan
from .plan import GgufOutput, PlannedFile

KEYS_WITHOUT_EFFECT = ("_name_or_path", "transformers_version", "_commit_hash")
"""Keys that no runtime computes with."""
KEYS_OF_CODE = ("auto_map", "architectures", "model_type")
"""Keys that name the code of a model."""


def json_differences(text: str, planned: str) -> list[tuple[str, str]] | None:
    """Return the keys in which two JSON objects differ, as (key, clause).

    Such as [("rope_scaling.factor", "has rope_scaling.factor = 8.0, where 4.0 belongs")]. Returns
    None where one of the texts is not a JSON object.
    """
    try:
        actual = json.loads(text, object_pairs_hook=_unique)
        wanted = json.loads(planned, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        return None

    if not isinstance(actual, dict) or not isinstance(wanted, dict):
        return None
    return list(_differences(actual, wanted, ""))


def _unique(pairs: list[tuple[str, Any]]) -> JsonObject:
    """A JSON object. Raises ValueError for a repeated key."""
    data = dict(pairs)
    # some readers use the first value of a repeated key, others the last
    if len(data) != len(pairs):
        raise ValueError("repeated key")
    return data


def _differences(actual: JsonObject, planned: JsonObject, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield the keys in which two JSON objects differ, as (key, clause).

    A clause follows the name of the file in a message: ("rope_theta", "has rope_theta = 1e6, where
    10000.0 belongs") becomes "config.json has rope_theta = 1e6, where 10000.0 belongs".

    Args:
        actual: The object in the file.
        planned: The object that the plan of the output gives.
        prefix: The keys around both, such as `rope_scaling.`.
    """
    for key in dict.fromkeys((*planned, *actual)):
        name = f"{prefix}{key}"
        if key not in actual:
            yield name, f"has no {name}, which is {shown(planned[key])} there"
            continue
        if key not in planned:
            yield name, f"has {name} = {shown(actual[key])}, which is not there"
            continue
        value = actual[key]
        wanted = planned[key]
        # a nested object, such as rope_scaling: the keys in it
        if isinstance(value, dict) and isinstance(wanted, dict):
            yield from _differences(value, wanted, f"{name}.")
            continue
        # in JSON 1, 1.0 and true are different values, which Python takes for equal
        has_same_type = type(value) is type(wanted)
        if not has_same_type or value != wanted:
            yield name, f"has {name} = {shown(value)}, where {shown(wanted)} belongs"


DOCUMENTS = (
    "*.md",
    "*.rst",
    "*.html",
    "*.pdf",
    "*.png",
    "*.jpg",
    "*.jpeg",
    "*.gif",
    "*.svg",
    "*.webp",
    "citation.cff",
    "requirements.txt",
)
"""Names of files for people, which no runtime loads."""
LEGAL = re.compile(
    r"(authors|copying|licen[cs]e|notice|readme|use_policy)([-_ ]\w+)*(\.\d+)*(\.txt)?", re.ASCII
)
"""Names of files on rights: LICENSE, LICENSE-MODEL.txt, NOTICE-2.0."""


def is_document(name: str) -> bool:
    """Return whether a file is for people, and no runtime loads it.

    The list is closed: a runtime of tomorrow, and a loader of a tokenizer, read files of any other
    name.
    """
    plain = Path(name).name.lower()  # some filesystems ignore case
    if any(fnmatch(plain, pattern) for pattern in DOCUMENTS):
        return True
    return LEGAL.fullmatch(plain) is not None


def is_code(name: str) -> bool:
    """Return whether Python may import a file."""
    return name.lower().endswith(CODE)


def files_of(folder: Path) -> Iterator[str]:
    """Yield the names of all visible files of a folder, also those behind links to folders."""
    visited: set[str] = set()
    for place, subfolders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        if real in visited:
            # a link to a folder above it, which would be walked forever
            subfolders.clear()
            continue
        visited.add(real)

        # os.walk enters only the folders that are left in its list
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        for name in names:
            if not name.startswith("."):
                yield Path(place, name).relative_to(folder).as_posix()


WEIGHTS = ".safetensors"


@dataclass(frozen=True)
class FolderCheck:
    """The comparison of a folder with its plan, which was made again."""

    folder: Path
    plan: CheckpointPlan
    findings: Findings

    advance: Advance
    """Called with the bytes of weights that were compared since the last call."""

    def run(self) -> None:
        """Compare every file of the plan, and search for others."""
        for file in self.plan.files:
            self.findings.files += 1
            self._compare(file, self.folder / file.name)

        # files that were added: a card is only a note, and code may change what is computed
        planned = {file.name for file in self.plan.files}
        added = set(files_of(self.folder)) - planned - {RECEIPT}
        for name in sorted(added):
            clause = f"{name} is not among the files that ropeconv wrote"
            harmless = self._is_harmless(name)
            if not harmless:
                clause += " (a runtime may load it: move it out of the folder)"
            self.findings.add_difference(clause, harmless=harmless)

    def _compare(self, file: PlannedFile, path: Path) -> None:
        """Compare one file of the plan, each kind in its way."""
        # texts first: config.json is compared by keys, and a digest would only say that it differs
        if not path.is_file():
            self.findings.add_difference(f"it has no {file.name}", harmless=is_document(file.name))
        elif file.text is not None:
            self._compare_text(file.name, path, file.text.encode())
        elif is_weights(file.name):
            self._compare_weights(file, path)
        elif not _has_digest(file, path):
            self._compare_other(file, path)

    def _is_harmless(self, name: str) -> bool:
        """Whether another content of a file changes nothing that the user has not accepted."""
        return is_document(name) or (is_code(name) and self.findings.options.code)

    def _compare_text(self, name: str, path: Path, planned: bytes | None) -> None:
        """Compare a small file with its planned text, key by key if both are JSON.

        Every difference is recorded as a fault of the output, or as a harmless difference. A
        harmless difference changes nothing that is computed, or the user has accepted it, with
        `--ignore-receipt` (edits) or `--trust-remote-code` (other code).

        Args:
            name: The name of the file in the output.
            path: The file.
            planned: The text of the plan; None for a text that is too long to be read.
        """
        # The keys that differ, each with a clause for the message: [("rope_theta", "has rope_theta
        # = 1e6, where 10000.0 belongs")]. The list is empty if only the layout differs, and None if
        # the texts are not JSON.
        differences: list[tuple[str, str]] | None = None
        if planned is not None and path.stat().st_size <= LONGEST:
            content = read_bytes(path, name)
            if content == planned:
                return
            if name.endswith(".json"):
                with suppress(UnicodeDecodeError):
                    differences = json_differences(content.decode(), planned.decode())

        if differences is None:
            harmless = self._is_harmless(name)
            self.findings.add_difference(f"{name} has other contents", harmless=harmless)
            return
        accepts_edits = self.findings.options.edited
        accepts_other_code = self.findings.options.code
        if not differences:
            clause = f"{name} has the same values in another layout"
            self.findings.add_difference(clause, harmless=accepts_edits)
            return

        for key, clause in differences:
            # no runtime computes with keys such as _commit_hash
            has_no_effect = key in KEYS_WITHOUT_EFFECT
            # keys such as auto_map name the classes of the model
            names_code = name == "config.json" and key.split(".")[0] in KEYS_OF_CODE
            is_accepted_edit = has_no_effect and accepts_edits
            is_accepted_code = names_code and accepts_other_code
            harmless = is_accepted_edit or is_accepted_code
            self.findings.add_difference(f"{name} {clause}", harmless=harmless)

    def _compare_other(self, file: PlannedFile, path: Path) -> None:
        """Compare a copied file, such as a tokenizer, with the file of the source.

        It is neither weights nor a text that ropeconv writes, such as config.json.

        Args:
            file: The file of the plan.
            path: The file in the output.
        """
        with scratch() as folder:
            # byte by byte first, which takes no memory: the whole file is one range of bytes that
            # must be equal to those of the planned file
            planned = self._find_planned(file, folder)
            size = planned.stat().st_size
            if path.stat().st_size == size:
                expected = CopiedRange(start=0, stop=size, origin=planned, place=0)
                if first_difference(path, [expected]) is None:
                    return

            # A file that differs is compared as a text, so that a message can name the keys of a
            # JSON file. A file that is too long for that has no text (None).
            planned_text = read_bytes(planned, file.name) if size <= LONGEST else None
            self._compare_text(file.name, path, planned_text)

    def _compare_weights(self, file: PlannedFile, path: Path) -> None:
        """Compare a file of weights byte by byte. With --quick, only a small part is compared.

        Every difference is recorded in `self.findings`.

        Args:
            file: The file of the plan.
            path: The file in the output.
        """
        size = path.stat().st_size
        if size != file.size:
            self.findings.add_difference(
                f"{file.name} has {size:,} bytes, and {file.size:,} belong there"
            )
            return

        # model-rope.safetensors, the shard that ropeconv adds for frequencies, is small and is
        # always compared as a whole
        quick = self.findings.options.quick
        has_frequencies = file.name == SHARD
        if quick and not has_frequencies:
            self._compare_quickly(file, path)
            return
        if not quick:
            self.findings.bytes += size  # for the result: the bytes of weights that were compared

        # a copy with a known sha256, as the Hub lists it: the source need not be downloaded
        if file.action == "copy" and file.sha256 is not None:
            digest = sha256(path)
            self.advance(size)
            if digest != file.sha256:
                self.findings.add_difference(f"{file.name} has other contents")
            return

        # any other file: the bytes that the plan gives
        with scratch() as folder:
            ranges = self._expect_ranges(file, folder)
            differing_byte = first_difference(path, ranges, self.advance)
            self._record_difference(file.name, path, differing_byte)

    def _expect_ranges(self, file: PlannedFile, folder: Path) -> list[Range]:
        """The bytes that a file of weights should have, as ranges that are read or made again.

        Args:
            file: The file of the plan.
            folder: A temporary folder, for a file that must be made again on the disk.

        Returns:
            Ranges of the file, each with the bytes that it should have: copied from another file,
            streamed by a conversion, or generated by multiplying numbers of the source.
        """
        # a shard in which a fold multiplies tensors: the multiplied numbers are computed again
        folded = self._fold_ranges(file)
        if folded:
            return folded

        # weights that a conversion makes: they come as a stream, so that no second file of their
        # size is on the disk
        if file.action != "copy":
            streams = {item.name: item.stream for item in self.plan.source.generated_files()}
            stream = streams.get(file.origin or file.name)
            if stream is not None:
                return [StreamedRange(0, file.size, stream)]

        # a copy of the file of the source, or a small one that the plan makes (stored frequencies)
        planned = self._find_planned(file, folder)
        return [CopiedRange(start=0, stop=file.size, origin=planned, place=0)]

    def _compare_quickly(self, file: PlannedFile, path: Path) -> None:
        """Compare a small part of a file of weights, for --quick.

        `--encoding weights` multiplies the attention factor into some tensors, which is called a
        fold. In a file with such tensors, these tensors are compared. In a copied file, the header
        is compared. Any other file is left out.

        Args:
            file: The file of the plan.
            path: The file in the output.
        """
        # a file with a fold: only the tensors that the fold multiplies
        ranges_of_file = self._fold_ranges(file)  # empty without a fold
        if ranges_of_file:
            multiplied_ranges = []
            for part in ranges_of_file:
                if isinstance(part, GeneratedRange) and part.multiplied:
                    multiplied_ranges.append(part)
            # whole=False: bytes outside of these ranges are not compared
            differing_byte = first_difference(path, multiplied_ranges, whole=False)
            self._record_difference(file.name, path, differing_byte)
            return

        # a copied file: its header
        is_copied_weights = file.action == "copy" and file.name.endswith(WEIGHTS)
        if not is_copied_weights:
            return
        source_header = self.plan.source.headers.get(file.origin or file.name)
        header = read_header(path)
        if source_header is None:
            return
        # dictionaries are equal in Python also if their tensors have another order
        has_same_order = list(header.tensors) == list(source_header.tensors)
        if header != source_header or not has_same_order:
            self.findings.add_difference(f"{file.name} has another header")

    def _fold_ranges(self, file: PlannedFile) -> list[Range]:
        """The ranges of a shard with factors in its weights; none for other files."""
        fold = self.plan.result.fold
        if fold is None or file.action != "patch":
            return []
        return folded_ranges(self.plan.source, file.name, fold)

    def _find_planned(self, file: PlannedFile, folder: Path) -> Path:
        """The file that a planned one is copied from, or one that is made again in a folder."""
        planned = self.plan.origin(file) or folder / "made"
        if file.make is not None:
            file.make(folder / "made", lambda done: None)
        return planned

    def _record_difference(self, name: str, path: Path, differing_byte: int | None) -> None:
        """Record the tensor that has the first byte that differs; None for equal files."""
        if differing_byte is None:
            return
        try:
            where = tensor_at(path, differing_byte) if name.endswith(WEIGHTS) else "something"
        except BadSource:
            where = "the header"
        self.findings.add_difference(f"{where} of {name} differs from byte {differing_byte:,} on")


def _has_digest(file: PlannedFile, path: Path) -> bool:
    """Whether a file has the planned size and sha256; False where the latter is not known."""
    if file.sha256 is None or path.stat().st_size != file.size:
        return False
    return sha256(path) == file.sha256


LONGEST_VALUE = 1000
"""Bytes of a value that a message shows."""
SMALL = 1 << 16
"""Bytes of an edited tensor up to which it is compared with --quick too."""
KEYS_OF_QUANTISER = ("general.file_type", "general.quantization_version")
"""Keys that llama.cpp's quantiser writes."""
DESCRIPTIVE = "general."
EFFECTIVE = (
    "general.architecture",
    "general.alignment",
    "general.file_type",
    "general.quantization_version",
    "general.sampling.",
)
"""Beginnings of keys of the general part that something is computed with; the others describe a
model to people.

llama.cpp takes its defaults of sampling from `general.sampling.*`:
https://github.com/ggml-org/llama.cpp/pull/17120
"""


@dataclass(frozen=True)
class GgufCheck:
    """The comparison of a GGUF model with a plan, which was made again."""

    file: GgufFile
    plan: GgufOutput
    findings: Findings

    elsewhere: bool
    """Whether the source is given from another place than when the output was made, so that
    descriptions may differ.
    """

    advance: Advance
    """Called with the bytes of tensors that were compared since the last call."""

    def run(self) -> None:
        """Compare every shard, or the result of a conversion."""
        if isinstance(self.plan, ExportPlan):
            self._compare_conversion(self.plan)
            return
        assert isinstance(self.plan, GgufPlan)
        self._compare_edit(self.plan)

    def _compare_conversion(self, plan: ExportPlan) -> None:
        """Compare a GGUF file that was converted from a checkpoint with its plan.

        The file was converted by ropeconv, or by llama.cpp's script (a StockExport). llama.cpp may
        have quantised it.
        """
        exported = plan.exported
        planned_header = rewrite(exported.model.header, plan.edit)
        is_quantised = plan.quantisation is not None

        # --quick: the header and a few tensors
        if self.findings.options.quick:
            if is_quantised:
                self._compare_quantised(plan, planned_header)
            else:
                self._compare_first_shard(planned_header)
            return

        # quantised by llama.cpp: only running its quantiser again gives the same numbers
        if is_quantised:
            self._compare_with_second_conversion(plan)
            return

        # converted by ropeconv: each tensor can be computed again
        if not isinstance(exported, StockExport):
            self._compare_first_shard(planned_header)
            return

        # Converted by llama.cpp's script. If the script ran in this process, the digests of its
        # tensors are known, which help if the edit has changed no tensor. Otherwise the script is
        # run again.
        digests = None if plan.edit.changes else exported.written_digests()
        if digests is not None:
            self._compare_first_shard(planned_header, digests=digests)
        else:
            self._compare_with_second_conversion(plan)

    def _compare_edit(self, plan: GgufPlan) -> None:
        """Compare all shards of an edited model."""
        source = plan.source.file
        planned = rewrite(source.header, plan.edit)  # the header after the edit
        self._compare_first_shard(planned, bytes_behind=_bytes_behind_tensors(source.header))
        if len(source.shards) != len(self.file.shards):
            shards = counted(len(self.file.shards), "shard")
            belong = counted(len(source.shards), "belongs", "belong")
            self.findings.add_difference(f"it has {shards}, and {belong} there")
            return
        for number in range(1, len(source.shards)):
            self._compare_shard(source, number)

    def _compare_with_second_conversion(self, plan: ExportPlan) -> None:
        """Convert the checkpoint again in a temporary folder, and compare with the result.

        This is for files by llama.cpp's converter or quantiser, whose numbers ropeconv cannot
        compute. A GGUF file is a header, with keys and the list of tensors, and then their data.
        """
        with scratch() as folder:
            remade = folder / "remade.gguf"
            plan.write_whole(remade, lambda done: None)

            # the header that the second conversion has is the planned one
            remade_header = read_gguf(remade)
            planned = RewrittenHeader(
                values=remade_header.values,
                tensors=remade_header.tensors,
                alignment=remade_header.alignment,
                kept_size=remade_header.data_size,
            )
            # The data must be equal. It may begin at another byte, since the receipt, which is a
            # key of the header, has another length if another version of ropeconv wrote it.
            start = self.file.header.data_start
            data = CopiedRange(
                start=start,
                stop=start + remade_header.data_size,
                origin=remade,
                place=remade_header.data_start,
            )
            bytes_behind = _bytes_behind_tensors(remade_header)
            self._compare_first_shard(planned, bytes_behind=bytes_behind, second_conversion=data)

    def _compare_first_shard(
        self,
        planned: RewrittenHeader,
        bytes_behind: int = 0,
        second_conversion: CopiedRange | None = None,
        digests: Mapping[str, str] | None = None,
    ) -> None:
        """Compare the first or only shard of a model with its plan: header, size and data.

        Args:
            planned: The header that the shard should have.
            bytes_behind: The number of bytes that may follow the last tensor, as in the file that
                the shard was made from.
            second_conversion: The data of a file that llama.cpp has converted again, with which the
                data of the shard is compared; None where the plan gives the bytes of each tensor.
            digests: The sha256 of each tensor by name, except for tensors that the edit adds; None
                to compare bytes.
        """
        header = self.file.header
        path = self.file.path
        self.findings.files += 1

        # the header; where it has other tensors, their data cannot be compared
        was_made_by_llama_cpp = second_conversion is not None
        has_planned_tensors = self._compare_header(planned, by_llama_cpp=was_made_by_llama_cpp)
        if not has_planned_tensors:
            return

        # the size
        end_of_data = header.data_start + planned.data_size
        actual_bytes_behind = header.size - end_of_data
        if actual_bytes_behind not in (0, bytes_behind):
            self.findings.add_difference(
                f"it has {actual_bytes_behind:,} bytes after its last tensor"
            )
            return

        # the data with --quick: the tensors with frequencies, and small tensors of the edit
        if self.findings.options.quick:
            self._compare_quick_tensors(path, header.tensors, header.data_start, shard=0)
            return

        # the data by the digests of tensors
        if digests is not None:
            self._compare_digests(header, digests)
            return

        # The data byte by byte, by ranges that must cover the file from its first byte. The header
        # was compared above, so its range is compared with the file itself.
        ranges: list[Range] = [CopiedRange(start=0, stop=header.data_start, origin=path, place=0)]
        if second_conversion is not None:
            ranges.append(second_conversion)
        else:
            ranges += self._expect_data(planned.tensors, header.data_start, shard=0)
        self._compare_ranges(path, header, ranges)

    def _compare_header(self, planned: RewrittenHeader, by_llama_cpp: bool) -> bool:
        """Compare the header of the first shard, and return whether it has the planned tensors.

        Every difference is recorded in `self.findings`.

        Args:
            planned: The header that the shard should have.
            by_llama_cpp: Whether llama.cpp wrote the header, in a layout of its own.
        """
        header = self.file.header
        # the keys; each difference is a key, and a clause for the message, such as
        # ("llama.rope.freq_base", "it has llama.rope.freq_base = 1e6, where 10000.0 belongs")
        differences_of_keys = list(unlike_keys(header, planned))
        self._record_keys(differences_of_keys)

        # the tensors; dictionaries are equal in Python also if their tensors have another order
        has_same_order = list(header.tensors) == list(planned.tensors)
        if header.tensors != planned.tensors or not has_same_order:
            self.findings.add_difference(_unlike_tensors(header.tensors, planned.tensors))
            return False

        # The bytes: ropeconv writes equal keys and tensors as equal bytes. The bytes of llama.cpp
        # are other ones.
        if differences_of_keys or by_llama_cpp:
            return True
        if not _has_layout(self.file.path, header, planned):
            accepts_edits = self.findings.options.edited  # with --ignore-receipt
            self.findings.add_difference("its header has another layout", harmless=accepts_edits)
        return True

    def _compare_digests(self, header: GgufHeader, digests: Mapping[str, str]) -> None:
        """Compare each tensor with its digest, and those that the edit adds with their bytes."""
        expected = dict(digests)
        for name, data in self.plan.edit.added.items():
            expected[name] = hashlib.sha256(data).hexdigest()
        for name, digest in digest_tensors(self.file.path, header).items():
            if digest != expected.get(name):
                self.findings.add_difference(f"{name} of {self.file.path.name} differs")
            self.findings.bytes += header.tensors[name].size
            self.advance(header.tensors[name].size)

    def _compare_quantised(self, plan: ExportPlan, planned: RewrittenHeader) -> None:
        """Compare the parts of a quantised file that its quantiser does not change, for --quick.

        llama.cpp's quantiser sets general.file_type and general.quantization_version, may reorder
        the keys, and chooses a type for each tensor. The other keys are compared, the shapes of all
        tensors, and the data of tensors that kept their type.

        Args:
            plan: The plan of the conversion.
            planned: The header of the file before it is quantised.
        """
        header = self.file.header
        self.findings.files += 1  # the number of compared files, for the result
        assert plan.quantisation is not None

        # The keys. `unlike_keys` yields pairs of a key and a clause for the message. The key is
        # empty for a difference of the whole header, such as another order of the keys.
        planned_values = {**planned.values, **plan.quantisation.values}
        differences = []
        for key, clause in unlike_keys(header, replace(planned, values=planned_values)):
            if key != "" and key not in KEYS_OF_QUANTISER:
                differences.append((key, clause))
        self._record_keys(differences)

        # the names and shapes of tensors
        for name in (*planned.tensors, *header.tensors):
            actual = header.tensors.get(name)
            wanted = planned.tensors.get(name)
            if actual is None or wanted is None or actual.shape != wanted.shape:
                self.findings.add_difference(f"its tensor {name} is not there or has another shape")
                return

        # the data of tensors that kept their type, since these were not quantised
        not_quantised = {}
        for name, info in header.tensors.items():
            if info.type == planned.tensors[name].type:
                not_quantised[name] = info
        self._compare_quick_tensors(self.file.path, not_quantised, header.data_start, shard=0)

        # the types that the quantiser chose can only be compared by running it again
        outtype = plan.exported.outtype  # of the file before it is quantised, such as F16
        self.findings.unverified.append(
            f"to compare the types of tensors, {outtype} must be made again"
        )

    def _record_keys(self, clauses: Iterable[tuple[str, str]]) -> None:
        """Record keys that differ; descriptions may be others where the user or the place says."""
        may_describe = self.findings.options.edited or self.elsewhere
        for key, clause in clauses:
            describes = key.startswith(DESCRIPTIVE) and not key.startswith(EFFECTIVE)
            self.findings.add_difference(clause, harmless=describes and may_describe)

    def _compare_quick_tensors(
        self, path: Path, tensors: Mapping[str, TensorInfo], start: int, shard: int
    ) -> None:
        """Compare the few tensors whose bytes --quick reads too.

        These are rope_freqs.weight and its like, which have the frequencies in them, at any size;
        and tensors of at most 64 KiB that the edit has changed or added, such as norms that were
        multiplied by the attention factor.

        Args:
            path: The shard.
            tensors: Its tensors, by name.
            start: The byte at which its data begins.
            shard: Its number, from 0.
        """
        edited = {*self.plan.edit.changes, *self.plan.edit.added}
        for name, info in tensors.items():
            has_frequencies = name in ROPE_TENSORS
            is_small_and_edited = name in edited and info.size <= SMALL
            if not has_frequencies and not is_small_and_edited:
                continue
            # whole=False: only the bytes of this tensor, and not the rest of the shard
            expected = self._expect_data({name: info}, start, shard)
            byte = first_difference(path, expected, whole=False)
            if byte is not None:
                self.findings.add_difference(f"{name} of {path.name} differs from byte {byte:,} on")

    def _compare_shard(self, source: GgufFile, number: int) -> None:
        """Compare a later shard, which is copied with its header; the second has the number 1."""
        path = self.file.paths[number]
        before = source.headers[number]
        header = self.file.headers[number]
        self.findings.files += 1

        has_same_content = header.values == before.values and header.tensors == before.tensors
        if not has_same_content or header.size != before.size:
            self.findings.add_difference(f"{path.name} has another header")
            return

        # with --quick a few small tensors; else all bytes, the header among them
        if self.findings.options.quick:
            self._compare_quick_tensors(path, header.tensors, header.data_start, number)
            return
        head = CopiedRange(
            start=0, stop=before.data_start, origin=source.shards[number].path(), place=0
        )
        data = self._expect_data(before.tensors, before.data_start, number)
        self._compare_ranges(path, header, [head, *data])

    def _compare_ranges(self, path: Path, header: GgufHeader, ranges: list[Range]) -> None:
        """Compare all bytes of a shard, and record the tensor of the first that differs."""
        self.findings.bytes += header.size - header.data_start
        place = first_difference(path, ranges, self.advance)
        if place is None:
            return
        where = "padding"
        offset = place - header.data_start
        for info in header.tensors.values():
            if info.offset <= offset < info.offset + info.size:
                where = info.name
                break
        self.findings.add_difference(f"{where} of {path.name} differs from byte {place:,} on")

    def _expect_data(
        self, tensors: Mapping[str, TensorInfo], start: int, shard: int
    ) -> list[Range]:
        """Return the ranges of bytes of a shard with the bytes that its tensors should have.

        Args:
            tensors: The tensors, by name, with their places in the shard.
            start: The byte of the shard at which its data begins.
            shard: The number of the shard, from 0.

        Returns:
            The ranges in the order of their places.
        """
        plan = self.plan
        ranges = list[Range]()

        # tensors that the edit of the plan adds to the first shard, such as rope_freqs.weight
        added = plan.edit.added if shard == 0 else {}
        for name, data in added.items():
            if name not in tensors:
                continue
            first = start + tensors[name].offset
            stop = first + tensors[name].size
            ranges.append(StreamedRange.with_bytes(first, stop, data))

        others = {name: info for name, info in tensors.items() if name not in added}
        if isinstance(plan, ExportPlan):
            # a converted checkpoint: the tensors are converted again
            ranges += _convert_ranges(plan, others, start)
        elif isinstance(plan, GgufPlan):
            # an edited GGUF file: the tensors are read from its source, and changed by the edit
            ranges += _edit_ranges(plan, others, start, shard)
        return sorted(ranges, key=lambda part: part.start)


def _bytes_behind_tensors(header: GgufHeader) -> int:
    """The number of bytes of a file after its last tensor."""
    return header.size - header.data_start - header.data_size


def _edit_ranges(
    plan: GgufPlan, tensors: Mapping[str, TensorInfo], start: int, shard: int
) -> Iterator[Range]:
    """The bytes that an edited shard should have: each tensor of the source, and the padding.

    A tensor is a copy of the tensor of that name in the source, or is changed by the edit. Tensors
    that the edit adds are not among these.

    Args:
        plan: The plan, with the source and the edit.
        tensors: The tensors, by name, with their places in the edited shard.
        start: The byte of the edited shard at which its data begins.
        shard: The number of the shard, from 0.
    """
    source_header = plan.source.file.headers[shard]
    source_path = plan.source.file.shards[shard].path()

    # each tensor with the one that follows it in the file; None after the last one
    infos = list(tensors.values())
    for info, following in zip_longest(infos, infos[1:]):
        yield _edited_range(plan, info, start, shard)

        # Two tensors that follow each other as in the source are copied in one piece, so that the
        # padding between them has the bytes of the source. Other padding is zeros, for which no
        # range is needed.
        if following is None:
            continue
        source_info = source_header.tensors[info.name]
        distance = following.offset - info.offset
        source_distance = source_header.tensors[following.name].offset - source_info.offset
        follow_as_in_source = distance == source_distance
        padding = distance - info.size
        if padding and follow_as_in_source:
            padding_start = start + info.offset + info.size
            yield CopiedRange(
                start=padding_start,
                stop=padding_start + padding,
                origin=source_path,
                place=source_header.data_start + source_info.offset + source_info.size,
            )


def _edited_range(plan: GgufPlan, info: TensorInfo, start: int, shard: int) -> Range:
    """The bytes that a tensor of an edited shard should have: copied from the source, or changed.

    They are a CopiedRange, which is read from the source, or a GeneratedRange, which is computed.

    Args:
        plan: The plan, with the source and the edit.
        info: The tensor, with its place in the edited shard.
        start: The byte of the edited shard at which its data begins.
        shard: The number of the shard, from 0.
    """
    first = start + info.offset
    stop = first + info.size
    source_header = plan.source.file.headers[shard]
    source_path = plan.source.file.shards[shard].path()
    source_start = source_header.data_start + source_header.tensors[info.name].offset

    # An edit may have a change of a tensor that it also removes from the first shard. The writer
    # (`write_new`) does not make such a change, so it is not expected here either.
    change = plan.edit.changes.get(info.name)
    is_removed = shard == 0 and info.name in plan.edit.removed
    if change is None or is_removed:
        return CopiedRange(start=first, stop=stop, origin=source_path, place=source_start)
    make = partial(change_piece, change, source_path, source_start)
    return GeneratedRange(start=first, stop=stop, make=make, unit=change.unit)


def change_piece(change: Change, path: Path, tensor_start: int, start: int, size: int) -> bytes:
    """Return a piece of a tensor after a change.

    Args:
        change: The change.
        path: The file with the tensor before the change.
        tensor_start: The first byte of the tensor in it.
        start: The first byte of the piece, counted from the beginning of the tensor.
        size: The bytes of the piece.
    """
    with path.open("rb") as reader:
        reader.seek(tensor_start + start)
        return change.whole(reader.read(size))


def _convert_ranges(
    plan: ExportPlan, tensors: Mapping[str, TensorInfo], start: int
) -> Iterator[Range]:
    """The ranges of the tensors that a conversion makes; those that an edit adds are not here.

    Args:
        plan: The plan of the conversion.
        tensors: The tensors by name, with their places in the file.
        start: Where the data begins, in bytes.
    """

    def convert_again(name: str) -> Iterator[bytes]:
        """Yield the bytes of a tensor, as the conversion and the edit make them."""
        blocks = plan.exported.blocks(name)
        change = plan.edit.changes.get(name)
        if change is None:
            yield from blocks
        else:  # such as a fold, which needs the tensor in one piece
            yield change.whole(b"".join(blocks))

    for info in tensors.values():
        first = start + info.offset
        yield StreamedRange(first, first + info.size, partial(convert_again, info.name))


def unlike_keys(header: GgufHeader, planned: RewrittenHeader) -> Iterator[tuple[str, str]]:
    """Yield the keys of a header that differ from the planned ones, as (key, clause).

    Such as ("llama.rope.freq_base", "it has llama.rope.freq_base = 1e6, where 10000.0 belongs").
    The receipt, and the spaces that ropeconv keeps for later edits, are not compared. The key is
    empty for a difference of the whole header.
    """
    # in the order of the plan, then keys that only the file has
    actual = _computed_values(header.values)
    wanted = _computed_values(planned.values)
    for key in dict.fromkeys((*wanted, *actual)):
        if key not in actual:
            yield key, f"it has no {key}"
        elif key not in wanted:
            yield key, f"it has {key} = {_shown(actual[key])}, which is not there"
        elif actual[key] != wanted[key]:
            value = _shown(actual[key])
            belongs = _shown(wanted[key])
            yield key, f"it has {key} = {value}, where {belongs} belongs"
    has_same_keys = actual.keys() == wanted.keys()
    if has_same_keys and list(actual) != list(wanted):
        yield "", "its keys are in another order"
    if header.alignment != planned.alignment:
        yield "", f"its alignment is {header.alignment}, where {planned.alignment} belongs"


def _computed_values(values: Mapping[str, GgufValue]) -> dict[str, GgufValue]:
    """The keys of a header that a plan gives, in their order."""
    return {key: value for key, value in values.items() if key not in (RECEIPT, RESERVED)}


def _unlike_tensors(actual: Mapping[str, TensorInfo], planned: Mapping[str, TensorInfo]) -> str:
    """The first difference between the tensors of a file and the planned ones, as a clause."""
    for name in dict.fromkeys((*planned, *actual)):
        if name not in actual:
            return f"it has no tensor {name}"
        if name not in planned:
            return f"it has a tensor {name}, which is not there"
        if actual[name] != planned[name]:
            return f"its tensor {name} has another shape, type or place"
    return "its tensors are in another order"


def _has_layout(path: Path, header: GgufHeader, planned: RewrittenHeader) -> bool:
    """Whether the bytes of a header are those that ropeconv writes for its keys.

    Args:
        path: The file.
        header: Its header, which has the planned keys.
        planned: The planned header.
    """
    # Two keys are not compared. The receipt may be one of another version of ropeconv, so the
    # receipt in the file is taken. One key (RESERVED) holds only spaces: it keeps free bytes for
    # later edits, and `bytes_of_length` adds as many spaces as fill the header.
    values = dict(planned.values)
    values.pop(RESERVED, None)
    if RECEIPT in values:
        values[RECEIPT] = header.values[RECEIPT]
    expected = RewrittenHeader(
        values=values,
        tensors=planned.tensors,
        alignment=planned.alignment,
        kept_size=planned.kept_size,
    )

    header_size = header.data_start
    with path.open("rb") as file:
        return file.read(header_size) == expected.bytes_of_length(header_size)


def _shown(value: GgufValue) -> str:
    """Return the value of a key for a message; for a long value, its size."""
    if len(value.raw) >= LONGEST_VALUE:
        return f"{len(value.raw):,} bytes"
    return shown(value.decode())
