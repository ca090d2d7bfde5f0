"""MetaSource: Meta's original files, presented as a checkpoint in the HF layout."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from ...environment import require
from ...errors import BadSource
from ...formats import jsontext
from ...formats.disk import FileIdentity, identity, sha256, text_digest
from ...formats.package_data import typed
from ..folder import ConvertedShard, ConvertedSource, FolderSource, check_link
from ..schema import Config
from ..source import GeneratedFile, Source, SourceFile
from .params import Params, TensorTarget, hf_config, shard_layout
from .tensors import PthFiles, peek_dtype
from .tokenizer import is_tiktoken, tokenizer_config, vocabulary_size, write_tokenizer_json

PART = re.compile(r"consolidated\.(\d\d)\.pth")
TOKENIZER = "tokenizer.model"
LEFT = {"params.json", "checklist.chk", "tokenizer_checklist.chk"}


def is_meta(names: Iterable[str]) -> bool:
    """Whether file names are those of Meta's layout: params.json and consolidated.NN.pth, without config.json."""
    found = set(names)
    return "params.json" in found and "config.json" not in found and any(PART.fullmatch(name) for name in found)


class MetaSource(ConvertedSource[TensorTarget]):
    """A checkpoint in Meta's layout; config, index, tokenizer settings and shards are made from its files.

    root: a local folder, or inner: the source of the files; one of the two is given. tokenizer.model may also be one
    level above the folder, where Meta's download of several sizes has it.
    """

    kind = "meta"

    def __init__(self, root: Path | None = None, inner: Source | None = None) -> None:
        self.inner = inner or FolderSource(root or Path())
        self.reference, self.name = self.inner.reference, self.inner.name

    @classmethod
    def from_hub(cls, source: Source) -> MetaSource:
        """A MetaSource over a Hub source, whose files are fetched when they are read."""
        made = cls(inner=source)
        made.commit = source.commit
        return made

    @cached_property
    def params(self) -> Params:
        """The content of params.json. Raises BadSource where it is not as Meta writes it."""
        return typed(jsontext.parse(self.inner.text("params.json") or "", "params.json"), Params, "params.json")

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """File names of the model-parallel parts, in order. Raises BadSource where one is missing."""
        names = sorted(file.name for file in self.inner.files() if PART.fullmatch(file.name))
        expected = [f"consolidated.{number:02d}.pth" for number in range(len(names))]
        if names != expected:
            missing = next(name for name in expected if name not in names)
            raise BadSource(f"{self.reference} lacks {missing}; download the checkpoint again")
        return tuple(names)

    @cached_property
    def dtype(self) -> str:
        if self.inner.kind == "hub":
            return "bfloat16"  # what every release has; checked against the file when it is there
        return peek_dtype(self.inner.path(self.parts[0]))

    @cached_property
    def _config(self) -> Config:
        size = self.params.vocab_size
        return hf_config(self.params, size if size > 0 else vocabulary_size(self._tokenizer), self.dtype)

    @cached_property
    def _above(self) -> tuple[Path, FileIdentity | None] | None:
        """tokenizer.model one level above, None without one; BadSource for one of other tokens than params.json."""
        inside = any(file.name == TOKENIZER for file in self.inner.files())
        if inside or not isinstance(self.inner, FolderSource):
            return None
        folder = self.inner.root.resolve().parent
        path = folder / TOKENIZER
        if not path.is_file():
            return None
        check_link(path, folder)
        found, stated = vocabulary_size(path), self.params.vocab_size
        if 0 < stated != found:
            raise BadSource(
                f"{path} has {found:,} tokens and params.json says {stated:,}; put the release's own file beside it"
            )
        return path, identity(path)

    @property
    def _tokenizer(self) -> Path:
        if self._above is not None:
            return self._above[0]
        if all(file.name != TOKENIZER for file in self.inner.files()):
            raise BadSource(
                f"{self.reference} has no {TOKENIZER}; put the release's file beside params.json, or one level above"
            )
        return self.inner.path(TOKENIZER)

    @cached_property
    def shards(self) -> tuple[ConvertedShard[TensorTarget], ...]:
        return shard_layout(self._config)

    @cached_property
    def texts(self) -> dict[str, str]:
        version, config = self.params.version, self._config
        generation = {"_from_model_config": True, **{key: config[key] for key in ("bos_token_id", "eos_token_id")}}
        return {
            "config.json": jsontext.dump(config),
            "generation_config.json": jsontext.dump(generation),
            "tokenizer_config.json": jsontext.dump(tokenizer_config(version, config["max_position_embeddings"])),
            **self.index(),
        }

    @cached_property
    def _files(self) -> tuple[SourceFile, ...]:
        kept = [file for file in self.inner.files() if file.name not in LEFT and not PART.fullmatch(file.name)]
        if self._above is not None:
            kept.append(SourceFile(TOKENIZER, self._above[0].stat().st_size))
        return tuple(sorted([*kept, *self.made_files()], key=lambda file: file.name))

    def files(self) -> tuple[SourceFile, ...]:
        return self._files

    def path(self, name: str) -> Path:
        return self._above[0] if name == TOKENIZER and self._above is not None else self.inner.path(name)

    @cached_property
    def identity(self) -> str:
        above = self._above
        return self.inner.identity if above is None else text_digest(self.inner.identity, sha256(above[0]))

    def seen(self, unread: Collection[str] = ()) -> Mapping[Path, FileIdentity | None]:
        above = {} if self._above is None or TOKENIZER in unread else dict([self._above])
        return {**self.inner.seen(unread), **above}

    def conversion_notes(self) -> tuple[str, ...]:
        """The sentence on a tokenizer that is not in the folder."""
        return () if self._above is None else (f"{TOKENIZER} is that of {self._above[0].parent}",)

    def text(self, name: str) -> str | None:
        return self.texts[name] if name in self.texts else self.inner.text(name)

    def tokenizer(self) -> GeneratedFile | None:
        model, version = self._tokenizer, self.params.version
        if not is_tiktoken(model):
            return None
        return GeneratedFile(
            "tokenizer.json", model.stat().st_size, lambda target, _: write_tokenizer_json(model, target, version)
        )

    def blocks(self, tensors: Sequence[TensorTarget]) -> Iterator[memoryview]:
        yield from self._weights.blocks(tensors)

    def part(self, tensor: TensorTarget, start: int, stop: int) -> bytes:
        return self._weights.bytes(tensor, start, stop)

    @cached_property
    def _weights(self) -> PthFiles:
        """The .pth files, which are fetched whole. Raises BadSource where one holds another dtype than the first."""
        require("torch", "converting .pth files", "meta")
        paths = []
        for part in self.parts:
            paths.append(self.inner.path(part))
            if (found := peek_dtype(paths[-1])) != self.dtype:
                raise BadSource(f"{part} holds {found}, not {self.dtype}; fetch the folder and give its path")
        return PthFiles(paths)
