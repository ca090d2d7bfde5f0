"""A program with one model in llama.cpp.

It reads `Load` from stdin, then calls of methods of `LlamaModel`, a line of JSON each. It answers
each line by one `Message` with an answer, after some that say how much was read, until
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

TAGS_OF_TYPES = {"int": 0, "float": 1, "bool": 2, "str": 3}
TYPES = {"f32": 0, "f16": 1, "bf16": 30}
"""Numbers of ggml."""
MOST_ROWS = 256
"""Positions whose logits exist at a time, at most."""
MOST_LOGITS = 1 << 24
"""Logits that exist at a time, at most (64 MiB)."""
ALL_LAYERS = 999
Override = tuple[Literal["int", "float", "bool", "str"], int | float | str]
"""Type and value of a metadata key that replaces that of the file."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """A model, and how it runs."""

    path: str
    """The file, or the first of several shards."""

    overrides: dict[str, Override] = {}
    """Metadata keys that replace those of the file."""

    threads: int = 2
    """Threads of the CPU."""

    batch: int = 512
    """Tokens read at a time."""

    cache: Literal["f32", "f16", "bf16"] = "f32"
    """The type of the cached keys and values."""

    plain: bool = True
    """Run without flash attention, and with the whole context in window layers."""

    gpu: bool = False
    """Compute all layers on the GPU."""

    vocabulary_only: bool = False
    """Load no weights, for `encode` and `decode`."""

    repack: bool = True
    """Copy weights into a layout that is faster, where llama.cpp has one."""


class LoadedModel(msgspec.Struct, frozen=True):
    """The answer to `Load`."""

    vocabulary: int
    """The number of tokens."""

    prefix: tuple[int, ...]
    """The tokens before every text."""

    offloads: bool
    """Whether this build of llama.cpp can use a GPU."""


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the program."""

    read: int = 0
    """The tokens read since the last line."""

    answer: msgspec.Raw = msgspec.Raw()
    """The answer to a call; empty before its end."""


def overrides(llama: Any, values: Mapping[str, Override]) -> Any:
    """Return a ctypes array of llama_model_kv_override that ends with an empty key.

    Args:
        llama: The module of the bindings.
        values: Types and values by key, such as {"llama.rope.freq_base": ("float", 1e6)}.
    """
    array = (llama.llama_model_kv_override * (len(values) + 1))()
    for index, (key, (kind, value)) in enumerate(values.items()):
        entry = array[index]
        entry.tag = TAGS_OF_TYPES[kind]
        entry.key = key.encode()
        union = entry.value
        if kind == "int":
            union.val_i64 = int(value)
        elif kind == "float":
            union.val_f64 = float(value)
        elif kind == "bool":
            union.val_bool = bool(value)
        else:
            union.val_str = str(value).encode()  # up to 128 bytes (llama.h)
    end = array[len(values)]
    end.key = b""
    return array


class LlamaModel:
    """A loaded model. Its methods raise RuntimeError where llama.cpp refuses."""

    def __init__(self, load: Load, advance: Callable[[int], None]) -> None:
        """Load a model with llama.cpp.

        Args:
            load: The file of the model, and the settings with which llama.cpp runs it.
            advance: Called with the number of tokens that the model has read since the last call.
        """
        import llama_cpp as llama

        self.llama = llama
        self.load = load
        self.advance = advance

        # the weights
        llama.llama_backend_init()
        settings = llama.llama_model_default_params()
        settings.n_gpu_layers = ALL_LAYERS if load.gpu else 0
        settings.vocab_only = load.vocabulary_only
        settings.use_extra_bufts = load.repack  # whether weights are copied into a faster layout

        # metadata keys that count in place of the keys in the file, as an array of C structs
        overriding_keys = overrides(llama, load.overrides)
        if load.overrides:
            settings.kv_overrides = ctypes.cast(overriding_keys, type(settings.kv_overrides))
        self.model = llama.llama_model_load_from_file(load.path.encode(), settings)
        if not self.model:
            raise RuntimeError("llama.cpp does not load the model")

        # A position has a logit for each token of the vocabulary (`width`). To save memory, only
        # the logits of `most_rows` positions are computed at a time.
        self.vocabulary = llama.llama_model_get_vocab(self.model)
        self.width = int(llama.llama_vocab_n_tokens(self.vocabulary))
        self.most_rows = max(1, min(MOST_ROWS, MOST_LOGITS // self.width))

        # the tokens that llama.cpp reads in one call, which are replaced for each call
        self.batch = llama.llama_batch_init(load.batch, 0, 1)

        # llama.cpp's context, with the cache of keys and values, which `_begin` makes
        self.context: Any = None
        self.size = 0  # its size in tokens
        self.sequences = 0  # how many sequences it holds at a time

    def properties(self) -> LoadedModel:
        """Return the properties of the model for the caller."""
        llama = self.llama
        first = int(llama.llama_vocab_bos(self.vocabulary))
        prefix: tuple[int, ...] = ()
        if llama.llama_vocab_get_add_bos(self.vocabulary) and first >= 0:
            prefix = (first,)
        return LoadedModel(self.width, prefix, bool(llama.llama_supports_gpu_offload()))

    def _begin(self, length: int, sequences: int = 1) -> None:
        """Make a new context of llama.cpp, which holds the cache of keys and values.

        The context is as short as possible, since llama.cpp uses LongRoPE's long list where the
        context is longer than the trained one.

        Args:
            length: The number of tokens of all sequences together.
            sequences: The number of sequences that share the cells of the cache.
        """
        # llama.cpp pads a context to a multiple of 256
        size = (max(length, 32) + 255) // 256 * 256
        if (size, sequences) == (self.size, self.sequences):
            self.llama.llama_memory_clear(self.llama.llama_get_memory(self.context), True)
            return
        if self.context:
            self.llama.llama_free(self.context)
        self.size = size
        self.sequences = sequences
        self.context = self._context(size, sequences)

    def _context(self, size: int, sequences: int, states: bool = False) -> Any:
        """Return a new context of llama.cpp: the cache for a sequence, and how it is computed.

        Args:
            size: The tokens that it has space for.
            sequences: The sequences that share it.
            states: Whether it gives the last hidden states of tokens, and no logits.
        """
        load = self.load
        settings = self.llama.llama_context_default_params()
        settings.n_ctx = size

        # n_batch is what llama_decode accepts, n_ubatch what is computed at once
        batch = min(load.batch, size)
        settings.n_batch = batch
        settings.n_ubatch = batch
        settings.n_outputs_max = min(self.most_rows, batch)
        if states:
            settings.n_outputs_max = batch
            settings.embeddings = True
            settings.pooling_type = self.llama.LLAMA_POOLING_TYPE_NONE

        # the types of keys and values in the cache
        settings.type_k = TYPES[load.cache]
        settings.type_v = TYPES[load.cache]
        # `plain` is for exact numbers: layers with a window keep all tokens in their cache, and
        # flash attention is off (else llama.cpp uses it where it is faster)
        settings.swa_full = load.plain
        settings.flash_attn_type = 0 if load.plain else -1
        settings.n_threads = load.threads
        settings.n_threads_batch = load.threads
        if sequences > 1:
            settings.n_seq_max = sequences
            settings.kv_unified = True  # else each sequence would have its own share of the cells

        context = self.llama.llama_init_from_model(self.model, settings)
        if not context:
            raise RuntimeError(f"llama.cpp makes no context of {size} tokens for the model")
        return context

    def _read(
        self, tokens: list[int], first: int, positions: set[int], sequence: int = 0
    ) -> Iterator[NDArray[np.float32]]:
        """Read tokens in batches, and yield the logits at the wanted positions in rising order.

        Args:
            tokens: The tokens, which follow each other.
            first: The position of the first one.
            positions: The positions whose logits are wanted.
            sequence: The sequence in the cache to which the tokens belong.

        Yields:
            float32 [vocabulary], valid until the next ones are requested.
        """
        batch = self.batch
        largest = min(self.load.batch, self.size)
        start = 0
        while start < len(tokens):
            # fill a batch, which ends at its size, or before it has more wanted positions than
            # self.most_rows; `rows` are their places in the batch
            rows = list[int]()
            count = 0
            while start + count < len(tokens) and count < largest:
                position = first + start + count
                is_wanted = position in positions
                if is_wanted:
                    if len(rows) == self.most_rows:
                        break
                    rows.append(count)
                self._put(count, tokens[start + count], position, sequence, is_wanted)
                count += 1
            batch.n_tokens = count

            if self.llama.llama_decode(self.context, batch) != 0:
                raise RuntimeError("llama.cpp does not decode the sequence")
            for row in rows:
                pointer = self.llama.llama_get_logits_ith(self.context, row)
                yield np.ctypeslib.as_array(pointer, (self.width,))
            start += count
            self.advance(count)

    def _put(self, index: int, token: int, position: int, sequence: int, is_wanted: bool) -> None:
        """Put a token into the batch that llama.cpp reads next."""
        self.batch.token[index] = token
        self.batch.pos[index] = position
        self.batch.n_seq_id[index] = 1
        self.batch.seq_id[index][0] = sequence
        self.batch.logits[index] = is_wanted

    def states(self, tokens: list[int], out: str) -> None:
        """Write the last hidden states of tokens, float32 [tokens, width].

        Tokens of an encoder attend to later ones, so that all are in one batch.

        Args:
            tokens: At most as many as a batch has.
            out: The .npy file.
        """
        count = len(tokens)
        if count > self.load.batch:
            raise RuntimeError(f"{count} tokens are more than a batch of {self.load.batch}")
        for position, token in enumerate(tokens):
            self._put(position, token, position, sequence=0, is_wanted=True)
        self.batch.n_tokens = count

        context = self._context(self.load.batch, 1, states=True)
        try:
            if self.llama.llama_decode(context, self.batch) != 0:
                raise RuntimeError("llama.cpp does not encode the sequence")
            width = int(self.llama.llama_model_n_embd(self.model))
            rows = np.empty((count, width), np.float32)
            for index in range(count):
                pointer = self.llama.llama_get_embeddings_ith(context, index)
                rows[index] = np.ctypeslib.as_array(pointer, (width,))
        finally:
            self.llama.llama_free(context)
        np.save(out, rows)

    def logits(self, tokens: list[int], positions: list[int], out: str) -> None:
        """Write the logits after some tokens, float32 [positions, vocabulary].

        Args:
            tokens: All of them.
            positions: Rising indices into `tokens`.
            out: The .npy file.
        """
        rows = np.empty((len(positions), self.width), np.float32)
        self._begin(len(tokens))
        for index, row in enumerate(self._read(tokens, 0, set(positions))):
            rows[index] = row
        np.save(out, rows)

    def spread_logits(
        self, tokens: list[int], places: list[int], wanted: list[int], out: str
    ) -> None:
        """Compute the logits after some tokens of a prompt whose positions have gaps.

        Positions such as 0, 1, 2, 100 and 101 show what a model computes in a long context without
        reading all of it. A token attends to itself and to all tokens before it. The first token
        behind a gap attends only to itself: llama.cpp reads it as the start of a new sequence, to
        which the earlier tokens are added later (`_read_blocks`).

        Args:
            tokens: All tokens of the prompt.
            places: The position of each token, in rising order.
            wanted: The indices of the tokens whose logits are written, in rising order.
            out: The .npy file to write, float32 [len(wanted), vocabulary].
        """
        logits = np.empty((len(wanted), self.width), np.float32)
        wanted_positions = {places[index] for index in wanted}
        # the rows come in the order of the tokens, which is also the order of `wanted`
        rows = self._read_blocks(tokens, places, wanted_positions)
        for index, row in enumerate(rows):
            logits[index] = row
        np.save(out, logits)

    def _read_blocks(
        self, tokens: list[int], places: list[int], wanted_places: set[int]
    ) -> Iterator[NDArray[np.float32]]:
        """Yield the logits after the wanted tokens of a prompt whose positions have gaps.

        llama.cpp refuses a gap inside a sequence, but a sequence may begin at any position. So each
        block without gaps is read as a separate sequence. Then the cached keys and values of the
        earlier blocks are added to that sequence.

        Args:
            tokens: All tokens of the prompt.
            places: The position of each token, in rising order. Tokens at the positions 0, 1, 2,
                100, 101 are two blocks.
            wanted_places: The positions of the wanted tokens.
        """
        # where each block without gaps begins and ends in `tokens`
        starts = [0]
        for index in range(1, len(tokens)):
            has_gap_before = places[index] != places[index - 1] + 1
            if has_gap_before:
                starts.append(index)
        ends = [*starts[1:], len(tokens)]

        self._begin(len(tokens), len(starts))
        memory = self.llama.llama_get_memory(self.context)
        for block, (start, end) in enumerate(zip(starts, ends, strict=True)):
            # 1. The first token alone, so that the sequence begins at its position. Nothing else
            # is in the sequence yet, so this token attends to itself only.
            sequence = block
            first_place = places[start]
            first_token = tokens[start : start + 1]
            yield from self._read(first_token, first_place, wanted_places, sequence)

            # 2. The cache of the block before, which has those of all earlier blocks since it got
            # them in the same way.
            if block > 0:
                all_positions = (-1, -1)  # from the lowest to the highest
                self.llama.llama_memory_seq_cp(memory, sequence - 1, sequence, *all_positions)

            # 3. the other tokens of the block, which attend to all blocks so far
            other_tokens = tokens[start + 1 : end]
            yield from self._read(other_tokens, first_place + 1, wanted_places, sequence)

    def losses(self, tokens: list[int], targets: list[int]) -> tuple[bytes, bytes]:
        """Return the losses of some tokens, and whether each was the likeliest token.

        Args:
            tokens: All tokens of the text.
            targets: The indices of the tokens whose losses are computed, from 1 on, in rising
                order.

        Returns:
            The losses in nats as the bytes of float64, and one byte for each target: 1 where it was
            the likeliest token, else 0.
        """
        losses = np.empty(len(targets))
        is_likeliest = np.zeros(len(targets), bool)

        # The logits after a token predict the next one. So the model reads the tokens in front of
        # the last target, and gives the logits after each token that is followed by a target.
        last_target = targets[-1]
        tokens_to_read = tokens[:last_target]
        positions_before_targets = {target - 1 for target in targets}
        self._begin(len(tokens))  # makes an empty cache for so many tokens
        logit_rows = self._read(tokens_to_read, 0, positions_before_targets)
        for index, (target, logits) in enumerate(zip(targets, logit_rows, strict=True)):
            token = tokens[target]
            likeliest = int(logits.argmax())
            # the loss is -log softmax = max + log sum exp(logit - max) - logit; without subtracting
            # the maximum, exp would overflow
            largest = float(logits[likeliest])
            with np.errstate(all="ignore"):  # the caller reports NaN of a broken model
                total = np.exp(logits - logits[likeliest]).sum(dtype=np.float64)
            losses[index] = largest + np.log(total) - float(logits[token])
            is_likeliest[index] = token == likeliest
        not_read = len(tokens) - len(tokens_to_read)
        self.advance(not_read)  # progress counts all tokens
        return losses.tobytes(), is_likeliest.tobytes()

    def generate(self, tokens: list[int], count: int) -> list[int]:
        """Return the likeliest tokens after a prompt: at most `count`, fewer at the end of text."""
        generated = list[int]()
        self._begin(len(tokens) + count)

        # the whole prompt is read at first, then one token at a time behind the cache
        unread = tokens
        position = 0  # of the first unread token
        while len(generated) < count:
            last_position = position + len(unread) - 1
            (logits,) = self._read(unread, position, {last_position})
            token = int(logits.argmax())
            generated.append(token)
            is_end = self.llama.llama_vocab_is_eog(self.vocabulary, token)
            if is_end:
                break
            unread = [token]
            position = last_position + 1
        return generated

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without a prefix and without special tokens."""
        data = text.encode()
        most = len(data) + 8  # a token is at least a byte, but for the space that SPM puts in front
        tokens = (self.llama.llama_token * most)()
        add_special = False
        parse_special = False
        count = self.llama.llama_tokenize(
            self.vocabulary, data, len(data), tokens, most, add_special, parse_special
        )
        if count < 0:
            raise RuntimeError("llama.cpp does not tokenize the text")
        return list(tokens[:count])

    def decode(self, tokens: list[int]) -> str:
        """Return the text of tokens, special ones included."""
        array = (self.llama.llama_token * len(tokens))(*tokens)
        size = 64 * len(tokens) + 64  # bytes that are enough for most texts
        remove_special = False
        unparse_special = True
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = self.llama.llama_detokenize(
                self.vocabulary, array, len(tokens), buffer, size, remove_special, unparse_special
            )
            if count >= 0:  # the buffer was large enough, and has so many bytes
                return buffer.raw[:count].decode("utf-8", "replace")
            size = -count  # llama.cpp returns minus the size that the text needs


def main() -> None:
    """Load a model, and call its methods until stdin ends, by lines of JSON.

    The first line is the model (`Load`), and each other one a method with its arguments, such as
    ["encode", "some text"]. An answer is a line too: {"read": 512} while tokens are read, and then
    {"answer": ...} with the result.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the caller's to handle
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whatever a library prints is not an answer

    # a thread waits for the end of stdin, also while llama.cpp computes
    lines: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, lines), daemon=True).start()

    def say(message: Message) -> None:
        answers.write(msgspec.json.encode(message) + b"\n")

    def say_read(tokens: int) -> None:
        say(Message(read=tokens))

    def say_answer(value: object) -> None:
        say(Message(answer=msgspec.Raw(msgspec.json.encode(value))))

    model = LlamaModel(msgspec.json.decode(lines.get(), type=Load), say_read)
    say_answer(model.properties())
    while True:
        method, *arguments = msgspec.json.decode(lines.get())
        say_answer(getattr(model, method)(*arguments))


def _read(stdin: BinaryIO, lines: queue.Queue[bytes]) -> None:
    """Queue the lines of stdin, and end the process with stdin."""
    for line in stdin:
        lines.put(line)
    os._exit(0)


if __name__ == "__main__":
    main()
