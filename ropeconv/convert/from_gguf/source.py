"""GgufCheckpoint: a GGUF file, presented as a checkpoint in the HF layout."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from ...errors import UnsupportedBake, UsageError
from ...formats import jsontext
from ...formats.disk import FileIdentity, text_digest
from ...formats.gguf.header import F32, TYPES
from ...formats.jsontext import JsonObject
from ...inspection.inspection import Inspection, inspect_gguf
from ...inspection.receipts.gguf import valid_gguf_receipt
from ...models.family import Family
from ...models.folder import ConvertedShard, ConvertedSource, in_shards
from ...models.gguf import GgufSource
from ...models.schema import Config
from ...models.source import GeneratedFile
from ...runtimes.llamacpp.read_header import WINDOW_NORM
from ..to_gguf.hparams import gguf_rules, sizes_of
from .config import checkpoint_shapes, config_of, family_of
from .tensors import FLOATS, RestoredTensor, blocks, is_exact_in, part, restore_tensors, type_of
from .tokenizer import tokenizer_config, tokenizer_text

TORCH = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
OUTTYPES = {"f32": "F32", "f16": "F16", "bf16": "BF16"}


class GgufCheckpoint(ConvertedSource[RestoredTensor]):
    """A GGUF file whose config, index, tokenizer and shards are made from it.

    Args:
        inner: The GGUF file.
        outtype: Dtype of the weights: f32, f16, bf16, or auto for that of the file, and f32 where
            that is quantised.
        with_tokenizer: Make the files of the tokenizer too.
    """

    kind = "gguf"

    def __init__(
        self, inner: GgufSource, outtype: str = "auto", with_tokenizer: bool = True
    ) -> None:
        """Describe the checkpoint that a GGUF file becomes, without writing it.

        Raises:
            UsageError: For an `outtype` that a checkpoint does not have.
        """
        self.inner = inner
        self.outtype = outtype
        self.with_tokenizer = with_tokenizer
        self.reference = inner.reference
        self.name = inner.name
        self.commit = inner.commit
        if outtype not in ("auto", *OUTTYPES):
            known = ", ".join(("auto", *OUTTYPES))
            raise UsageError(f"--outtype {outtype} is not for a checkpoint; choose {known}")

    @cached_property
    def family(self) -> Family:
        """The family of the model.

        Raises:
            UnsupportedBake: Where there is none.
        """
        return family_of(self.inner.file)

    @cached_property
    def inspection(self) -> Inspection:
        """The inspection of the GGUF file.

        Raises:
            UnsupportedBake: Where ropeconv changed more in it than its RoPE.
        """
        inspection = inspect_gguf(self.inner)
        file = self.inner.file

        # ropeconv changes weights in two cases: where it writes the model as another architecture
        # (a carrier), and where it scales the query norms of window layers, which a key records
        receipt = valid_gguf_receipt(file, inspection.spec)
        is_carried = receipt is not None and receipt.encoding == "carrier"
        norms_are_scaled = file.get(WINDOW_NORM) is not None
        if norms_are_scaled or is_carried:
            why = "only unchanged conversions become checkpoints"
            repair = "run `ropeconv restore` on it first"
            raise UnsupportedBake(
                f"{self.reference}, whose tensors ropeconv changed", "a checkpoint", why, repair
            )
        return inspection

    def in_dtype(self, dtype: str) -> GgufCheckpoint:
        outtype = self.outtype
        for name, stored in OUTTYPES.items():
            if TORCH[stored] == dtype:
                outtype = name
        return GgufCheckpoint(self.inner, outtype, self.with_tokenizer)

    @property
    def dtype(self) -> str:
        return TORCH[self._dtype]

    @cached_property
    def _dtype(self) -> str:
        """The dtype of the weights, as safetensors names it."""
        return OUTTYPES.get(self.outtype) or FLOATS.get(self.inner.file.usual_type, "F32")

    @cached_property
    def _config(self) -> Config:
        """The config.json that is made."""
        return config_of(self.inner.file, self.family, self.inspection.spec, self.dtype)

    @cached_property
    def shards(self) -> tuple[ConvertedShard[RestoredTensor], ...]:
        """The safetensors files to write, each with its tensors."""
        file = self.inner.file
        rules = gguf_rules(self.family)
        spec = self.inspection.spec
        shapes = checkpoint_shapes(file, self.family, len(spec.layers))
        sizes = sizes_of(self._config, self.family, spec)
        tensors = restore_tensors(file, shapes, rules, sizes)
        return in_shards(self._with_dtype(tensor) for tensor in tensors)

    def _with_dtype(self, tensor: RestoredTensor) -> RestoredTensor:
        """Return a tensor with the dtype that it gets in the checkpoint, such as "BF16".

        It is the dtype of the checkpoint, or F32 for an F32 tensor of the file that would lose
        bits: converters write vectors and routers in F32, also for a model in BF16.

        Args:
            tensor: The tensor, with the dtype F32.
        """
        file = self.inner.file
        with_usual_dtype = replace(tensor, dtype=self._dtype)

        # a checkpoint in F32, or a tensor in F16, BF16 or a quantised type
        if self._dtype == "F32":
            return with_usual_dtype
        types_in_file = {type_of(file, part) for part in tensor.parts}
        if types_in_file != {F32}:
            return with_usual_dtype

        # a file all in F32: the user chose another dtype, which may round
        if file.usual_type == F32:
            return with_usual_dtype

        # an F32 tensor, all of whose numbers are numbers of the dtype
        if is_exact_in(file, tensor, self._dtype):
            return with_usual_dtype
        return tensor

    @cached_property
    def texts(self) -> dict[str, str]:
        config = self._config
        special = {f"{name}_token_id": config[f"{name}_token_id"] for name in ("bos", "eos", "pad")}
        files: JsonObject = {
            "config.json": config,
            "generation_config.json": {"_from_model_config": True} | special,
        }
        if self.with_tokenizer:
            context = config["max_position_embeddings"]
            files["tokenizer_config.json"] = tokenizer_config(self.inner.file, context)
        return {name: jsontext.dump(data) for name, data in files.items()} | self.index()

    def path(self, name: str) -> Path:
        return self.inner.path

    @cached_property
    def identity(self) -> str:
        return text_digest(self.inner.identity, self.dtype)

    def identities(self, unread: Collection[str] = ()) -> Mapping[Path, FileIdentity | None]:
        return self.inner.identities(unread)

    def tokenizer(self) -> GeneratedFile | None:
        """The tokenizer.json that is made from the keys of the GGUF file; None where not wanted."""
        if not self.with_tokenizer:
            return None
        # the size is not known before the text is made; that of the keys is near it
        size = 0
        for key, value in self.inner.file.header.values.items():
            if key.startswith("tokenizer.ggml."):
                size += len(value.raw)
        return GeneratedFile("tokenizer.json", size, self._write_tokenizer)

    def _write_tokenizer(self, target: Path, advance: Callable[[int], None]) -> None:
        """Write tokenizer.json to a path."""
        target.write_text(tokenizer_text(self.inner.file, self.family), "utf-8")

    def blocks(self, tensors: Sequence[RestoredTensor]) -> Iterator[memoryview]:
        yield from blocks(self.inner.file, tensors)

    def part(self, tensor: RestoredTensor, start: int, stop: int) -> bytes:
        return part(self.inner.file, tensor, start, stop)

    def conversion_notes(self) -> tuple[str, ...]:
        """A sentence for the user where the weights of the GGUF file are quantised."""
        usual_type = self.inner.file.usual_type
        if usual_type in FLOATS:
            return ()

        # such as "Q4_K, rounded to bfloat16"
        precision = TYPES[usual_type].name
        if self._dtype != "F32":
            precision += f", rounded to {self.dtype}"
        gigabytes = sum(shard.size for shard in self.shards) / 1e9
        note = (
            f"the weights have the precision of {precision}, and not that of the original"
            f" checkpoint; {self.dtype} takes {gigabytes:.3g} GB"
        )
        return (note,)
