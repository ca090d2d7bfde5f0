"""OriginalSource: a checkpoint that ropeconv wrote, presented as its first source.

Read `original_source` first. A bake is a run of `ropeconv apply`: it writes an output folder from a
source. An output can be the source of the next bake; the folder before the first bake is called the
first source. The receipt, a JSON file in the output, has a `FolderRecord` of all in which the
output differs from the first source, so that both `ropeconv restore` and a bake that starts again
from there can undo it. `folder_record` makes that record.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from pathlib import Path, PurePosixPath

from ...errors import BadSource
from ...formats.disk import FileIdentity, sha256, text_digest
from ...formats.safetensors import INDEX, Header, safe_name, tensors
from ...models.source import CARD, RECEIPT, SOURCE_CARD, Source, SourceFile
from ...rope.errors import RopeconvError
from ...rope.spec import RopeSpec
from ...runtimes.read_config import read_spec
from .receipt import (
    FoldedFactors,
    FolderRecord,
    GgufRecord,
    OriginalRecord,
    Receipt,
    SourceRecord,
    StepRecord,
    TextRecord,
)
from .storage import no_receipt, parse_receipt

WEIGHTS_SUFFIX = ".safetensors"
"""The suffix of weights. Only these files and README.md are renamed."""
LONGEST_NAME = 240
"""The most bytes of a name. Filesystems have 255, and drafts of files have longer names."""


def check_folder(record: FolderRecord, files: Iterable[str], reference: str) -> None:
    """Check that the record in a receipt is safe, since anybody can publish a model with a receipt.

    The record has the files in which an output folder differs from the original, the model before
    ropeconv changed it. The original is restored from the output and the record.

    Args:
        record: The record.
        files: The names of the files in the output.
        reference: The output, for the message.

    Raises:
        BadSource: The record names files outside the folder, files that `ropeconv apply` never
            writes, or a name twice.
    """
    # files that only the output has, or only the original: a restore does not write them, so their
    # names must only stay inside the folder
    for name in (*record.added, *record.skipped):
        if not safe_name(name):
            raise _distrust(reference, f"names a file {name!r}, outside it")
    # files that a restore writes under another name, or with another text: they must not be hidden,
    # and their names must not be too long
    texts = [text.name for text in record.texts]
    for name in (*record.renamed, *record.renamed.values(), *texts):
        if not _is_plain_name(name):
            shown_name = name[:LONGEST_NAME]
            raise _distrust(reference, f"names a file {shown_name!r}, outside it or hidden")

    # ropeconv renames only weights, and the model card of the original (to SOURCE_CARD, since
    # README.md is the card of the output)
    for name_in_output, original_name in record.renamed.items():
        both_names = (name_in_output, original_name)
        are_weights = all(name.endswith(WEIGHTS_SUFFIX) for name in both_names)
        is_card = name_in_output == SOURCE_CARD and original_name == CARD
        if not are_weights and not is_card:
            raise _distrust(
                reference,
                f"says that {original_name!r} is now {name_in_output!r}, and only weights are"
                " renamed",
            )
    # the receipt and the weights have no recorded text
    for name in texts:
        if name == RECEIPT or name.endswith(WEIGHTS_SUFFIX):
            raise _distrust(reference, f"has another text of {name!r}")
    _check_names_fit_together(record, files, reference)


def _check_names_fit_together(record: FolderRecord, files: Iterable[str], reference: str) -> None:
    """Check that a restored source has each name once, and no file that is also a folder.

    Args:
        record: The record of how the output differs from its first source, the folder before the
            first run of `ropeconv apply`.
        files: The names of the files in the output.
        reference: The output, for the message.
    """
    # The names of all files of the first source. Those with a recorded text are in the record. The
    # others are files of the output, by their old names; those that ropeconv added are not.
    texts = [text.name for text in record.texts]
    names = list(texts)
    not_copied = {RECEIPT, *record.added, *texts}
    for name in files:
        if name not in not_copied:
            original_name = record.renamed.get(name, name)
            names.append(original_name)

    # neither the source nor the list of renamed files has a name twice
    original_names = list(record.renamed.values())
    for name_list in (names, original_names):
        for name, count in Counter(name_list).items():
            if count > 1:
                raise _distrust(reference, f"gives {name!r} twice")

    # a/b makes a folder of a, which can then not be a file
    folders = set()
    for name in names:
        folders |= {str(folder) for folder in PurePosixPath(name).parents}
    files_and_folders = folders & set(names)
    if files_and_folders:
        name = min(files_and_folders)
        raise _distrust(reference, f"has {name!r} as a file and as a folder")


def _is_plain_name(name: str) -> bool:
    """Whether a name is inside its folder, not hidden, and in its usual spelling."""
    path = PurePosixPath(name)
    is_usual_spelling = str(path) == name  # not as in a//b or a/./b
    if not safe_name(name) or not is_usual_spelling:
        return False
    for part in path.parts:
        is_hidden = part.startswith(".")
        is_too_long = len(part.encode()) > LONGEST_NAME
        if is_hidden or is_too_long:
            return False
    return True


def _distrust(reference: str, clause: str) -> BadSource:
    """The error for a receipt that ropeconv did not write."""
    return BadSource(f"the receipt of {reference} {clause}; do not trust it, take the source again")


def valid_receipt(source: Source) -> Receipt | None:
    """Return the receipt that `ropeconv apply` left in a checkpoint.

    It is None if the checkpoint has no readable one, or if its config.json was changed since, so
    that the receipt is of another RoPE.
    """
    try:
        text = source.text(RECEIPT)
        if text is None:
            return None
        receipt = parse_receipt(text, RECEIPT)
    except BadSource:
        return None
    if _first_edited(source, receipt, ("config.json",)):
        return None
    return receipt


def original_source(source: Source) -> OriginalSource:
    """Return a checkpoint that ropeconv wrote, as it was before the first run of `ropeconv apply`.

    It is the first source. Texts such as config.json are restored in memory when they are read.

    Raises:
        BadSource: It has no receipt, files were changed later, or weights were rounded.
    """
    text = source.text(RECEIPT)
    if text is None:
        raise no_receipt(source.reference)
    receipt = parse_receipt(text, f"{source.reference}/{RECEIPT}")
    if receipt.original is None or receipt.original.folder is None:
        raise BadSource(
            f"the receipt of {source.reference} does not say what its source had; take the source"
            f" again, {receipt.source.described}"
        )

    # texts are restored by the difference to the output, so they must be as ropeconv wrote them
    record = receipt.original.folder
    first_source = receipt.original.source.described  # in words, for messages
    texts = [file.name for file in receipt.files if file.action == "write" and file.name != CARD]
    edited = _first_edited(source, receipt, texts)
    if edited:
        raise BadSource(
            f"{edited} of {source.reference} was changed after ropeconv wrote it, and the change"
            f" would be lost; take the source again, {first_source}, or remove {RECEIPT} to start"
            " from the changed files"
        )

    # nor can rounded weights be restored
    if record.multiplied:
        raise BadSource(
            f"{record.multiplied[0]} of {source.reference} was multiplied by a factor, which is not"
            f" undone; take the source again, {first_source}"
        )
    return OriginalSource(source, receipt, record)


def first_source(source: Source) -> Source:
    """Return the source for `--replace`: the first source of an output of ropeconv, or itself.

    Receipts without an original count as none.

    Raises:
        BadSource: As `original_source` does.
    """
    text = source.text(RECEIPT)
    if text is None or parse_receipt(text, RECEIPT).original is None:
        return source
    return original_source(source)


def first_spec(source: Source, receipt: Receipt) -> RopeSpec | None:
    """Return the RoPE of the first source of an output; None if the receipt does not have it."""
    record = receipt.original.folder if receipt.original else None
    if record is None:
        return None
    try:
        first = OriginalSource(source, receipt, record)
        return read_spec(first.config(), first.family)
    except RopeconvError:
        return None


class OriginalSource(Source):
    """A checkpoint that ropeconv wrote, with texts, file names and tensors of its first source."""

    def __init__(self, inner: Source, receipt: Receipt, record: FolderRecord) -> None:
        """Present an output as the original, the model before ropeconv changed it.

        The texts of the original are restored in memory. Nothing is written.

        Args:
            inner: The output.
            receipt: The receipt of the output.
            record: The record in the receipt: how the output differs from the original.

        Raises:
            BadSource: The record has names of files that ropeconv never writes, or texts cannot be
                restored.
        """
        self.inner = inner
        self.receipt = receipt
        self.record = record
        self.name = inner.name
        self.reference = inner.reference
        self.commit = inner.commit
        self.treat_as = inner.treat_as or receipt.source.family
        # anybody can have written the record
        names_in_output = {file.name for file in inner.files()}
        check_folder(record, names_in_output, inner.reference)

        # the texts of the original that the output has changed, by name
        self._texts = {text.name: self._restore(text) for text in record.texts}
        # the names of renamed files: {name in the original: name in the output}
        self._inner_names = {
            original_name: name_in_output
            for name_in_output, original_name in record.renamed.items()
        }

        # Files of the kind "hub" are copied by the Hub, under the names that they have there. A
        # renamed file has another name here, so the kind is "folder", whose files are uploaded.
        self.kind = inner.kind
        renamed_files = names_in_output & record.renamed.keys()
        if renamed_files:
            self.kind = "folder"

    def files(self) -> tuple[SourceFile, ...]:
        omitted = {RECEIPT, *self.record.added, *self._texts}
        files = []
        for file in self.inner.files():
            if file.name not in omitted:
                name = self.record.renamed.get(file.name, file.name)
                files.append(SourceFile(name, file.size, file.sha256))
        for name, text in self._texts.items():
            files.append(SourceFile(name, len(text.encode())))
        return tuple(sorted(files, key=lambda file: file.name))

    def path(self, name: str) -> Path:
        """Return the local path of a file that `ropeconv apply` has copied without a change.

        Args:
            name: The name of the file in the first source; the output may have renamed it.

        Raises:
            BadSource: The output has no such file, or only a changed one.
        """
        # a text that the output changed is restored in memory only, and has no path
        if name in self._texts:
            raise BadSource(
                f"{name} of {self.reference} is not as it was in its source; run `ropeconv restore`"
                " first, and start from the folder that it writes"
            )
        inner_name = self._inner_names.get(name, name)
        if all(file.name != inner_name for file in self.inner.files()):
            raise BadSource(
                f"{self.reference} has no {inner_name}; take the source again, {self.first}"
            )
        return self.inner.path(inner_name)

    @cached_property
    def identity(self) -> str:
        return text_digest(self.inner.identity, "first source")

    def identities(self, unread: Collection[str] = ()) -> Mapping[Path, FileIdentity | None]:
        return self.inner.identities(unread)

    def text(self, name: str) -> str | None:
        if name in self._texts:
            return self._texts[name]
        return super().text(name)

    def generated_texts(self) -> tuple[str, ...]:
        return tuple(self._texts)

    @property
    def headers(self) -> dict[str, Header]:
        """The headers of the safetensors files of the model before ropeconv changed it.

        They are those of the output (`inner`), by the names that the files had before.
        """
        header_by_original_name = {}
        for name_in_output, header in self.inner.headers.items():
            original_name = self.record.renamed.get(name_in_output, name_in_output)
            header_by_original_name[original_name] = header

        # a shard that the output added is left out
        headers = {}
        for name in self.weights():
            if name not in header_by_original_name:
                raise BadSource(
                    f"{self.reference} has no weights in {name}; take the source again,"
                    f" {self.first}"
                )
            headers[name] = header_by_original_name[name]
        return headers

    def tensor_names(self) -> tuple[str, ...] | None:
        index = self.text(INDEX)
        if index is not None:
            return tensors(index)
        if self.inner.tensor_names() is None:
            return None
        names: list[str] = []
        for header in self.headers.values():
            names += header.tensors
        return tuple(names)

    def _restore(self, record: TextRecord) -> str:
        """The text of a file in the original: the output's text with the recorded middle part."""
        text_in_output = self.inner.text(record.name) or ""
        content = record.restore(text_in_output.encode())
        if hashlib.sha256(content).hexdigest() != record.sha256:
            raise BadSource(
                f"the receipt of {self.inner.reference} no longer restores {record.name}; take the"
                f" source again, {self.first}"
            )
        return content.decode()

    @property
    def first(self) -> str:
        """The first source, for a sentence."""
        original = self.receipt.original
        return original.source.described if original else self.receipt.source.described


def _first_edited(source: Source, receipt: Receipt, names: Iterable[str]) -> str:
    """The first of some files that differs from the receipt; empty if none does."""
    records = {file.name: file for file in receipt.files}
    present = {file.name for file in source.files()}
    for name in names:
        if name not in records or name not in present:
            return name
        recorded = records[name].sha256
        if recorded and sha256(source.path(name)) != recorded:
            return name
    return ""


NOT_FOLDED = FoldedFactors()
RECORDED_AS_WHOLE = ("config.json",)
"""Files whose text is recorded as a whole, so that people can read it.

Others are recorded by the part that differs.
"""


def folder_record(
    source: Source,
    written: Mapping[str, str],
    generated: Iterable[str],
    renamed: Mapping[str, str],
    skipped: tuple[str, ...],
    multiplied: tuple[str, ...],
    folded: FoldedFactors = NOT_FOLDED,
) -> FolderRecord:
    """Return the record of an output folder: how it differs from the original.

    `ropeconv restore` needs that. Where the source is an output too, it differs from the first
    source already, and both differences are combined:

    - a file that one run added, and the next one changed, is one that was added;
    - a text that one run changed, and the next one changed back, is recorded no more;
    - a.safetensors that one run renamed to b.safetensors and the next one to c.safetensors is
      recorded as `{"c.safetensors": "a.safetensors"}`.

    Args:
        source: The source of the output.
        written: The new texts of the output, by name.
        generated: Names of its other files that are not copies.
        renamed: Names in the source, by those in the output.
        skipped: Names of files of the source that are left out.
        multiplied: Names of tensors multiplied by a factor.
        folded: The factors for which they are multiplied.
    """
    earlier = _known_record(source)  # how the source differs from the first source

    # Files that the first source does not have: those that earlier runs added and that are still
    # there, and those that this run adds. A file that this run makes replaces the one of its name
    # in the source, unless that gets another name.
    in_source = {file.name for file in source.files()}
    keep_their_names = in_source - set(renamed.values())
    added_now = {*written, *generated} - keep_their_names
    added_before = in_source.intersection(earlier.added)

    # texts of the first source that differ in the output
    texts = {text.name: text for text in earlier.texts}
    for name, text in written.items():
        if name in added_now or name in earlier.added:  # the first source does not have it
            continue
        first_content = (source.text(name) or "").encode()
        if name in texts:  # an earlier run has changed it
            first_content = texts[name].restore(first_content)
        content = text.encode()
        if content == first_content:
            texts.pop(name, None)
        else:
            texts[name] = _text_record(name, first_content, content)

    # names in the first source, by those in the output
    first_names = dict(earlier.renamed)
    for name_in_output, name_in_source in renamed.items():
        # an earlier run may have renamed the file before
        first_name = first_names.pop(name_in_source, name_in_source)
        first_names[name_in_output] = first_name

    left_out = {name for name in skipped if safe_name(name)}
    return FolderRecord(
        texts=tuple(texts.values()),
        added=tuple(sorted(added_before | added_now)),
        renamed=first_names,
        skipped=tuple(sorted(left_out.union(earlier.skipped))),
        multiplied=tuple(sorted({*earlier.multiplied, *multiplied})),
        folded=earlier.folded.times(folded),
    )


def _known_record(source: Source) -> FolderRecord:
    """How the source of an output differs from the first source; empty where it is that itself."""
    if isinstance(source, OriginalSource):
        return FolderRecord(skipped=source.record.skipped)
    receipt = valid_receipt(source)
    if receipt is None or receipt.original is None or receipt.original.folder is None:
        return FolderRecord()
    return receipt.original.folder


def original_record(
    source: Source,
    record: SourceRecord,
    folder: FolderRecord | None = None,
    gguf: GgufRecord | None = None,
) -> OriginalRecord:
    """Return the record of the original for the receipt of an output.

    The original is the model before the first run of ropeconv. An example: an earlier run made
    llama-yarn2 from llama, and this run makes llama-yarn4 from llama-yarn2. The record of
    llama-yarn4 names llama as the original, and has the run that made llama-yarn2 (`steps`).

    Args:
        source: The source of the output, llama-yarn2 in the example.
        record: The record of the source.
        folder: How the output differs from the original, if both are folders.
        gguf: How the output differs from the original, if it is a GGUF file.
    """
    if isinstance(source, OriginalSource):
        # with --replace, the output is made from the original, without earlier runs
        receipt: Receipt | None = source.receipt
        earlier_runs: tuple[StepRecord, ...] = ()
    else:
        receipt = valid_receipt(source)  # None for a model that ropeconv did not write
        earlier_runs = receipt.steps if receipt is not None else ()

    original = record
    if receipt is not None and receipt.original is not None:
        original = receipt.original.source
    return OriginalRecord(source=original, folder=folder, gguf=gguf, steps=earlier_runs)


def _text_record(name: str, old: bytes, new: bytes) -> TextRecord:
    """The record of how a text was before, by which `TextRecord.restore` gets `old` from `new`.

    For the files `a: 4` (old) and `a: 16` (new) it has the text `4`, and a common prefix of 3
    bytes. For config.json it has the whole text, so that people can read it in the receipt.

    Args:
        name: The name of the file.
        old: Its content in the source.
        new: Its content in the output.
    """
    digest = hashlib.sha256(old).hexdigest()
    if name in RECORDED_AS_WHOLE:
        return TextRecord(name, digest, old.decode())

    # only the middle that differs is recorded, cut at whole characters since a receipt is text;
    # a tokenizer_config.json mostly differs in one number
    prefix = _common_prefix(old, new)
    while _is_inside_character(old, prefix) or _is_inside_character(new, prefix):
        prefix -= 1
    suffix = _common_prefix(old[prefix:][::-1], new[prefix:][::-1])
    while suffix and _is_inside_character(old, len(old) - suffix):
        suffix -= 1
    middle = old[prefix : len(old) - suffix]
    return TextRecord(name=name, sha256=digest, text=middle.decode(), prefix=prefix, suffix=suffix)


def _is_inside_character(text: bytes, place: int) -> bool:
    """Whether a cut before this byte would split a character: UTF-8 continues with 10xxxxxx."""
    return place < len(text) and text[place] & 0b1100_0000 == 0b1000_0000


def _common_prefix(first: bytes, second: bytes) -> int:
    """The number of first bytes that are equal: 2 for `abc` and `abx`."""
    # by bisection: comparing slices is much faster than a loop over bytes
    count = 0
    most = min(len(first), len(second))
    while count < most:
        middle = (count + most + 1) // 2
        if first[count:middle] == second[count:middle]:
            count = middle
        else:
            most = middle - 1
    return count
