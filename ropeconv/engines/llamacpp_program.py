"""Reads `Load` and then jobs from stdin, a line of JSON each, and answers each on stdout, until stdin ends.

Output of libraries goes to stderr. The process ends with its caller, also in the middle of a job.
"""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
import numpy as np

from .llamacpp_process import (
    Answer,
    Decode,
    Done,
    Encode,
    Generate,
    Job,
    Load,
    LoadedModel,
    LogitsJob,
    LossesAnswer,
    LossesJob,
    Override,
    Read,
    Text,
    TokensJob,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

TAGS = {"int": 0, "float": 1, "bool": 2, "str": 3}
TYPES = {"f32": 0, "f16": 1, "bf16": 30}
"""Numbers of ggml."""
ROWS, NUMBERS = 256, 1 << 24
"""Logits that exist at a time: so many positions, and so many numbers (64 MiB)."""
ALL_LAYERS = 999


def overrides(llama: Any, values: Mapping[str, Override]) -> Any:
    """A ctypes array of llama_model_kv_override that ends with an empty key. values: (type, value) by key."""
    array = (llama.llama_model_kv_override * (len(values) + 1))()
    for entry, (key, (kind, value)) in zip(array, values.items(), strict=False):
        entry.tag, entry.key = TAGS[kind], key.encode()
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
    """A loaded model. width: size of the vocabulary. rows: positions whose logits exist at a time.

    Raises RuntimeError where llama.cpp cannot load it.
    """

    def __init__(self, load: Load) -> None:
        import llama_cpp as llama

        self.llama, self.load = llama, load
        llama.llama_backend_init()
        settings = llama.llama_model_default_params()
        settings.n_gpu_layers = ALL_LAYERS if load.gpu else 0
        settings.vocab_only, settings.use_extra_bufts = load.vocabulary_only, load.repack
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
        self.size = 0

    def loaded(self) -> LoadedModel:
        """The properties of the model for the caller."""
        llama = self.llama
        first = int(llama.llama_vocab_bos(self.vocabulary))
        prefix = (first,) if llama.llama_vocab_get_add_bos(self.vocabulary) and first >= 0 else ()
        return LoadedModel(self.width, prefix, bool(llama.llama_supports_gpu_offload()))

    def ends(self, token: int) -> bool:
        """Whether a token ends generation."""
        return bool(self.llama.llama_vocab_is_eog(self.vocabulary, token))

    def begin(self, length: int) -> None:
        """Make a context for a sequence, and forget the one before. length: in tokens.

        The context is as short as possible, since llama.cpp uses LongRoPE's long list where the context is longer than
        the trained one. Raises RuntimeError where there is no memory for it.
        """
        size = (max(length, 32) + 255) // 256 * 256
        if size == self.size:
            self.llama.llama_memory_clear(self.llama.llama_get_memory(self.context), True)
            return
        if self.context:
            self.llama.llama_free(self.context)
        self.size, self.context = size, self._context(size)

    def _context(self, size: int) -> Any:
        load, settings = self.load, self.llama.llama_context_default_params()
        settings.n_ctx = size
        settings.n_batch = settings.n_ubatch = min(load.batch, size)
        settings.n_outputs_max = min(self.rows, settings.n_batch)
        settings.type_k = settings.type_v = TYPES[load.cache]
        settings.swa_full = load.plain
        settings.flash_attn_type = 0 if load.plain else -1
        settings.n_threads = settings.n_threads_batch = load.threads
        context = self.llama.llama_init_from_model(self.model, settings)
        if not context:
            raise RuntimeError(f"llama.cpp makes no context of {size} tokens for the model")
        return context

    def decode(
        self, tokens: list[int], first: int, wanted: set[int], advance: Callable[[int], None] = lambda count: None
    ) -> Iterator[NDArray[np.float32]]:
        """Read tokens, and yield the logits at the wanted positions, float32 [vocabulary], in rising order.

        first: the position of the first token. advance: called with the tokens read since the last call. A row is valid
        until the next one is requested. Raises RuntimeError where llama.cpp refuses.
        """
        start = 0
        while start < len(tokens):
            batch, count, rows = self.batch, 0, list[int]()
            while start + count < len(tokens) and count < min(self.load.batch, self.size):
                position = first + start + count
                if position in wanted:
                    if len(rows) == self.rows:
                        break
                    rows.append(count)
                batch.token[count], batch.pos[count] = tokens[start + count], position
                batch.n_seq_id[count], batch.seq_id[count][0] = 1, 0
                batch.logits[count] = position in wanted
                count += 1
            batch.n_tokens = count
            if self.llama.llama_decode(self.context, batch) != 0:
                raise RuntimeError("llama.cpp does not decode the sequence")
            for row in rows:
                yield np.ctypeslib.as_array(self.llama.llama_get_logits_ith(self.context, row), (self.width,))
            start += count
            advance(count)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without a prefix and without special tokens."""
        data = text.encode()
        room = len(data) + 8
        tokens = (self.llama.llama_token * room)()
        count = self.llama.llama_tokenize(self.vocabulary, data, len(data), tokens, room, False, False)
        if count < 0:
            raise RuntimeError("llama.cpp does not tokenize the text")
        return list(tokens[:count])

    def text(self, tokens: list[int]) -> str:
        """The text of tokens, special ones included."""
        given = (self.llama.llama_token * len(tokens))(*tokens)
        room = 64 * len(tokens) + 64
        while True:
            data = ctypes.create_string_buffer(room)
            count = self.llama.llama_detokenize(self.vocabulary, given, len(tokens), data, room, False, True)
            if count >= 0:
                return data.raw[:count].decode("utf-8", "replace")
            room = -count


def answer(model: LlamaModel, job: Job, advance: Callable[[int], None]) -> Answer:
    """The answer to a job. advance: called with the tokens read since the last call.

    Raises RuntimeError where llama.cpp refuses.
    """
    match job:
        case LogitsJob():
            return logits(model, job, advance)
        case LossesJob():
            return losses(model, job, advance)
        case Generate():
            return generated(model, job)
        case Encode():
            return TokensJob(model.encode(job.text))
        case Decode():
            return Text(model.text(job.tokens))


def logits(model: LlamaModel, job: LogitsJob, advance: Callable[[int], None]) -> Done:
    """Write logits, float32 [wanted, vocabulary]."""
    rows = np.empty((len(job.wanted), model.width), np.float32)
    model.begin(len(job.tokens))
    for index, row in enumerate(model.decode(job.tokens, 0, set(job.wanted), advance)):
        rows[index] = row
    np.save(job.out, rows)
    return Done()


def losses(model: LlamaModel, job: LossesJob, advance: Callable[[int], None]) -> LossesAnswer:
    """Losses in float64, and whether the token was the likeliest."""
    loss, right = np.empty(len(job.targets)), np.zeros(len(job.targets), bool)
    tokens = job.tokens[: job.targets[-1]]  # later tokens have no effect
    model.begin(len(job.tokens))
    rows = model.decode(tokens, 0, {target - 1 for target in job.targets}, advance)
    for index, (target, row) in enumerate(zip(job.targets, rows, strict=True)):
        token, likeliest = job.tokens[target], int(row.argmax())
        most = float(row[likeliest])
        with np.errstate(all="ignore"):
            total = np.exp(row - row[likeliest]).sum(dtype=np.float64)
        loss[index], right[index] = most + np.log(total) - float(row[token]), token == likeliest
    advance(len(job.tokens) - len(tokens))
    return LossesAnswer(loss.tobytes(), right.tobytes())


def generated(model: LlamaModel, job: Generate) -> TokensJob:
    """The next tokens of greedy decoding."""
    batch, first, tokens = job.tokens, 0, list[int]()
    model.begin(len(batch) + job.count)
    while len(tokens) < job.count:
        last = first + len(batch) - 1
        (row,) = model.decode(batch, first, {last})
        tokens.append(int(row.argmax()))
        if model.ends(tokens[-1]):
            break
        batch, first = tokens[-1:], last + 1
    return TokensJob(tokens)


def main() -> None:
    """Answer until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the caller's to handle
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    lines: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, lines), daemon=True).start()

    def say(message: msgspec.Struct) -> None:
        answers.write(msgspec.json.encode(message) + b"\n")

    model = LlamaModel(msgspec.json.decode(lines.get(), type=Load))
    say(model.loaded())
    while True:
        job: Job = msgspec.json.decode(lines.get(), type=Job)
        say(answer(model, job, lambda count: say(Read(count))))


def _read(stdin: BinaryIO, lines: queue.Queue[bytes]) -> None:
    """Queue the lines of stdin, and end the process with stdin."""
    for line in stdin:
        lines.put(line)
    os._exit(0)


if __name__ == "__main__":
    main()
