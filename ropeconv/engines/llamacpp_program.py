"""A program with one model in llama.cpp: `Load` on stdin, then calls of methods of `LlamaModel`, a
line of JSON each.

It answers each line by one `Message` with an answer, after some that say how much was read, until
stdin ends. Output of libraries goes to stderr. The process ends with its caller, also in the middle
of a call.
"""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import msgspec
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

TAGS = {"int": 0, "float": 1, "bool": 2, "str": 3}
TYPES = {"f32": 0, "f16": 1, "bf16": 30}
"""Numbers of ggml."""
ROWS = 256
NUMBERS = 1 << 24
"""Logits that exist at a time: so many positions, and so many numbers (64 MiB)."""
ALL_LAYERS = 999
Override = tuple[Literal["int", "float", "bool", "str"], int | float | str]
"""Type and value of a metadata key that replaces that of the file."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """A model, and how it runs.

    path: of the file, or of the first of several shards. overrides: metadata keys that replace
    those of the file. threads: of the CPU. batch: tokens read at a time. cache: type of the cached
    keys and values. plain: without flash attention, and with the whole context in window layers.
    gpu: all layers on the GPU. vocabulary_only: no weights, for `encode` and `decode`. repack:
    copies of weights in a layout that is faster, where llama.cpp has one.
    """

    path: str
    overrides: dict[str, Override] = {}
    threads: int = 2
    batch: int = 512
    cache: Literal["f32", "f16", "bf16"] = "f32"
    plain: bool = True
    gpu: bool = False
    vocabulary_only: bool = False
    repack: bool = True


class LoadedModel(msgspec.Struct, frozen=True):
    """The answer to `Load`.

    vocabulary: number of tokens. prefix: tokens before every text. offloads: whether this build of
    llama.cpp can use a GPU.
    """

    vocabulary: int
    prefix: tuple[int, ...]
    offloads: bool


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the program. read: tokens since the last line. answer: of a call; empty before its
    end.
    """

    read: int = 0
    answer: msgspec.Raw = msgspec.Raw()


def overrides(llama: Any, values: Mapping[str, Override]) -> Any:
    """A ctypes array of llama_model_kv_override that ends with an empty key. values: (type, value)
    by key.
    """
    array = (llama.llama_model_kv_override * (len(values) + 1))()
    for entry, (key, (kind, value)) in zip(array, values.items(), strict=False):
        entry.tag = TAGS[kind]
        entry.key = key.encode()
        union = entry.value
        if kind == "int":
            union.val_i64 = int(value)
        elif kind == "float":
            union.val_f64 = float(value)
        elif kind == "bool":
            union.val_bool = bool(value)
        else:
            data = str(value).encode()
            ctypes.memmove(ctypes.addressof(union), data + b"\0", len(data) + 1)
    array[len(values)].key = b""
    return array


class LlamaModel:
    """A loaded model. Its methods raise RuntimeError where llama.cpp refuses.

    advance: called with the tokens read since the last call. width: size of the vocabulary. rows:
    positions whose logits exist at a time.
    """

    def __init__(self, load: Load, advance: Callable[[int], None]) -> None:
        import llama_cpp as llama

        self.llama = llama
        self.load = load
        self.advance = advance
        llama.llama_backend_init()
        settings = llama.llama_model_default_params()
        settings.n_gpu_layers = ALL_LAYERS if load.gpu else 0
        settings.vocab_only = load.vocabulary_only
        settings.use_extra_bufts = load.repack
        kept = overrides(llama, load.overrides)
        if load.overrides:
            settings.kv_overrides = ctypes.cast(kept, type(settings.kv_overrides))
        self.model = llama.llama_model_load_from_file(load.path.encode(), settings)
        if not self.model:
            raise RuntimeError("llama.cpp does not load the model")
        self.vocabulary = llama.llama_model_get_vocab(self.model)
        self.width = int(llama.llama_vocab_n_tokens(self.vocabulary))
        self.rows = max(1, min(ROWS, NUMBERS // self.width))
        self.batch = llama.llama_batch_init(load.batch, 0, 1)
        self.context: Any = None
        self.size = (0, 0)

    def loaded(self) -> LoadedModel:
        """The properties of the model for the caller."""
        llama = self.llama
        first = int(llama.llama_vocab_bos(self.vocabulary))
        prefix = (first,) if llama.llama_vocab_get_add_bos(self.vocabulary) and first >= 0 else ()
        return LoadedModel(self.width, prefix, bool(llama.llama_supports_gpu_offload()))

    def _begin(self, length: int, sequences: int = 1) -> None:
        """Make a context for a sequence, and forget the one before. length: in tokens.

        The context is as short as possible, since llama.cpp uses LongRoPE's long list where the
        context is longer than the trained one.

        sequences: how many share the cells of the cache.
        """
        size = (max(length, 32) + 255) // 256 * 256
        if (size, sequences) == self.size:
            self.llama.llama_memory_clear(self.llama.llama_get_memory(self.context), True)
            return
        if self.context:
            self.llama.llama_free(self.context)
        self.size, self.context = (size, sequences), self._context(size, sequences)

    def _context(self, size: int, sequences: int) -> Any:
        load = self.load
        settings = self.llama.llama_context_default_params()
        settings.n_ctx = size
        settings.n_batch = settings.n_ubatch = min(load.batch, size)
        settings.n_outputs_max = min(self.rows, settings.n_batch)
        settings.type_k = settings.type_v = TYPES[load.cache]
        settings.swa_full = load.plain
        settings.flash_attn_type = 0 if load.plain else -1
        settings.n_threads = settings.n_threads_batch = load.threads
        if sequences > 1:
            settings.n_seq_max = sequences
            settings.kv_unified = True
        context = self.llama.llama_init_from_model(self.model, settings)
        if not context:
            raise RuntimeError(f"llama.cpp makes no context of {size} tokens for the model")
        return context

    def _read(
        self, tokens: list[int], first: int, positions: set[int], sequence: int = 0
    ) -> Iterator[NDArray[np.float32]]:
        """Read tokens, and yield the logits at the wanted positions, float32 [vocabulary], in
        rising order.

        first: the position of the first token. sequence: to which the tokens belong. A row is valid
        until the next one is requested.
        """
        start = 0
        while start < len(tokens):
            batch = self.batch
            count = 0
            rows = list[int]()
            while start + count < len(tokens) and count < min(self.load.batch, self.size[0]):
                position = first + start + count
                if position in positions:
                    if len(rows) == self.rows:
                        break
                    rows.append(count)
                batch.token[count], batch.pos[count] = tokens[start + count], position
                batch.n_seq_id[count], batch.seq_id[count][0] = 1, sequence
                batch.logits[count] = position in positions
                count += 1
            batch.n_tokens = count
            if self.llama.llama_decode(self.context, batch) != 0:
                raise RuntimeError("llama.cpp does not decode the sequence")
            for row in rows:
                yield np.ctypeslib.as_array(
                    self.llama.llama_get_logits_ith(self.context, row), (self.width,)
                )
            start += count
            self.advance(count)

    def logits(self, tokens: list[int], positions: list[int], out: str) -> None:
        """Write the logits after some tokens, float32 [positions, vocabulary]. positions: rising
        indices. out: .npy.
        """
        rows = np.empty((len(positions), self.width), np.float32)
        self._begin(len(tokens))
        for index, row in enumerate(self._read(tokens, 0, set(positions))):
            rows[index] = row
        np.save(out, rows)

    def spread_logits(
        self, tokens: list[int], places: list[int], wanted: list[int], out: str
    ) -> None:
        """Write the logits after some tokens whose positions have gaps, float32 [wanted,
        vocabulary].

        llama.cpp reads only tokens that follow each other in a sequence, and a sequence may begin
        anywhere. So the first token after a gap begins a sequence, which then gets the cached keys
        and values of all blocks before it, as `llama_memory_seq_cp` shares a prefix. That token
        sees only itself; those after it see every block.

        Args:
            tokens: All of them.
            places: Their positions, rising.
            wanted: Rising indices into `tokens`.
            out: The .npy file.
        """
        starts = [
            0,
            *(index for index in range(1, len(tokens)) if places[index] != places[index - 1] + 1),
        ]
        rows = np.empty((len(wanted), self.width), np.float32)
        kept = {places[index] for index in wanted}
        row = 0
        self._begin(len(tokens), len(starts))
        memory = self.llama.llama_get_memory(self.context)

        for sequence, (start, stop) in enumerate(
            zip(starts, [*starts[1:], len(tokens)], strict=True)
        ):
            for first, last in ((start, start + 1), (start + 1, stop)):
                for logits in self._read(
                    tokens[first:last], places[start] + first - start, kept, sequence
                ):
                    rows[row] = logits
                    row += 1
                if first == start and sequence:
                    self.llama.llama_memory_seq_cp(memory, sequence - 1, sequence, -1, -1)
        np.save(out, rows)

    def losses(self, tokens: list[int], targets: list[int]) -> tuple[bytes, bytes]:
        """The losses of some tokens in nats, float64, and whether each was the likeliest, one byte
        each.

        targets: rising indices, from 1 on.
        """
        loss = np.empty(len(targets))
        right = np.zeros(len(targets), bool)
        needed = tokens[: targets[-1]]  # later tokens have no effect
        self._begin(len(tokens))
        rows = self._read(needed, 0, {target - 1 for target in targets})
        for index, (target, row) in enumerate(zip(targets, rows, strict=True)):
            token = tokens[target]
            likeliest = int(row.argmax())
            most = float(row[likeliest])
            with np.errstate(all="ignore"):
                total = np.exp(row - row[likeliest]).sum(dtype=np.float64)
            loss[index], right[index] = most + np.log(total) - float(row[token]), token == likeliest
        self.advance(len(tokens) - len(needed))
        return loss.tobytes(), right.tobytes()

    def generate(self, tokens: list[int], count: int) -> list[int]:
        """The next tokens of greedy decoding."""
        batch = tokens
        first = 0
        generated = list[int]()
        self._begin(len(batch) + count)
        while len(generated) < count:
            last = first + len(batch) - 1
            (row,) = self._read(batch, first, {last})
            generated.append(int(row.argmax()))
            if self.llama.llama_vocab_is_eog(self.vocabulary, generated[-1]):
                break
            batch = generated[-1:]
            first = last + 1
        return generated

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without a prefix and without special tokens."""
        data = text.encode()
        room = len(data) + 8
        tokens = (self.llama.llama_token * room)()
        count = self.llama.llama_tokenize(
            self.vocabulary, data, len(data), tokens, room, False, False
        )
        if count < 0:
            raise RuntimeError("llama.cpp does not tokenize the text")
        return list(tokens[:count])

    def decode(self, tokens: list[int]) -> str:
        """The text of tokens, special ones included."""
        given = (self.llama.llama_token * len(tokens))(*tokens)
        room = 64 * len(tokens) + 64
        while True:
            data = ctypes.create_string_buffer(room)
            count = self.llama.llama_detokenize(
                self.vocabulary, given, len(tokens), data, room, False, True
            )
            if count >= 0:
                return data.raw[:count].decode("utf-8", "replace")
            room = -count


def main() -> None:
    """Answer until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the caller's to handle
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    lines: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, lines), daemon=True).start()

    def say(read: int, *answer: object) -> None:
        message = Message(read, *(msgspec.Raw(msgspec.json.encode(value)) for value in answer))
        answers.write(msgspec.json.encode(message) + b"\n")

    model = LlamaModel(msgspec.json.decode(lines.get(), type=Load), say)
    say(0, model.loaded())
    while True:
        method, *arguments = msgspec.json.decode(lines.get())
        say(0, getattr(model, method)(*arguments))


def _read(stdin: BinaryIO, lines: queue.Queue[bytes]) -> None:
    """Queue the lines of stdin, and end the process with stdin."""
    for line in stdin:
        lines.put(line)
    os._exit(0)


if __name__ == "__main__":
    main()
