"""Measures methods on a real model at 2, 4 or 8 times its trained context: items of the record.

    python -m scripts.research.real_record measure MODEL TEXTS FOLDER [TIMES [MINUTES [WORKER N]]]
    python -m scripts.research.real_record items FOLDER...

MODEL is SmolLM2-135M-Instruct, trained with 8,192 tokens, or gemma-3-270m, with 32,768. TEXTS are
the folder of the texts of docs/evaluating.md. FOLDER keeps a file for each row and text at one
length, so that a run that is stopped continues with the next one. TIMES is 2 (the default), 4 or 8.
Of N workers, each has its own texts. `items` makes the record of all folders of one model, in
docs/evidence/items.

A pass of SmolLM2 over 32,768 tokens takes three minutes on one core, and one over 65,536 twelve, so
one pass gives as much as it can. The numbers of 25 words are hidden in each text (measure `keys`),
and one pass of a row gives

- the loss of the last 1,024 tokens of a quarter of the trained context and of all of it, in blocks
  of 128 tokens;
- the loss of each of the last 4,096 tokens of all, in blocks too, and for `longppl`;
- on the same cache, without the end of the text, the answers to the 25 questions.

The unchanged model also reads only the last tokens of each text, as many as it was trained with, so
that the loss of the last 1,024 is compared with that of the same tokens at the trained context.
From this pass, and from passes over 1,024 to 2,048 tokens, it chooses the key tokens of `longppl`:
no row is used beyond its trained context for that. It also answers the questions of a text as long
as its trained context.
"""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ropeconv.bake.items import RecordItem, check_items, read_items, write_items
from ropeconv.engines.engine import TokenLosses
from ropeconv.features.evaluation.cases import Case
from ropeconv.features.evaluation.measures.retrieval import KEYS_PER_DEPTH, Haystack, Keys
from ropeconv.features.evaluation.runners.checkpoint import CheckpointRunner
from ropeconv.features.evaluation.runners.opening import open_runner
from ropeconv.features.evaluation.runners.runner import RunnerRequest
from ropeconv.features.evaluation.texts import Texts, read_files, tokenize
from ropeconv.formats.drafts import write_file
from ropeconv.verbs.rows import Row, parse_rows

from ..real_model import GEMMA3, SMOLLM2, Published, real_model


@dataclass(frozen=True)
class Subject:
    """A model that is measured."""

    published: Published
    """Where its weights are."""

    trained: int
    """The tokens of its trained context."""

    sliding_window: int
    """The tokens that most of its layers see, if others see all tokens; else 0."""

    texts: dict[int, int]
    """How many texts of ORDER are measured, by how many times the trained context they are."""

    @property
    def inside(self) -> tuple[int, int]:
        """Lengths whose loss one long pass gives too, as frequencies do not depend on the length.

        For example 2,048 and 8,192.
        """
        return self.trained // 4, self.trained


SUBJECTS = {
    SMOLLM2.name: Subject(SMOLLM2, trained=8192, sliding_window=0, texts={2: 8, 4: 2, 8: 2}),
    GEMMA3.name: Subject(GEMMA3, trained=32768, sliding_window=512, texts={2: 2, 4: 2, 8: 2}),
}
FIRST_METHODS = {
    2: ("base", "yarn", "ntk", "mixed", "by-parts", "linear"),
    4: ("yarn",),
    8: ("base", "yarn"),
}
"""The methods that are measured first, by how many times the trained context the texts are."""
MORE_METHODS = {
    2: ("ntk-fixed", "llama3", "ntk-old", "theta-for"),
    4: (
        "base",
        "by-parts",
        "ntk",
        "mixed",
        "linear",
        "ntk-fixed",
        "llama3",
        "theta-for",
        "ntk-old",
    ),
    8: ("by-parts", "mixed", "ntk", "linear", "ntk-fixed", "llama3", "theta-for", "ntk-old"),
}
"""Those that are measured last. At twice the trained context they are close to others: ntk-old and
theta-for to ntk, for example.
"""
RECORD = Path("docs/evidence/items")
TARGETS = 1024
BLOCK = 128
"""Tokens of an item of loss."""
DEPTHS = 5
KEPT = 4096
"""Tokens at the end whose losses are kept for longppl."""
SHORT = 2048
"""The short context of longppl: each token has 1,024 to 2,048 tokens before it."""
CHUNK = 1024
QUERIES = 256
COLUMNS = 1024
"""Queries and keys whose scores exist at a time. Their numbers change the time, and the result by
the rounding of bfloat16 only."""
ORDER = (
    "moby_dick",
    "python_manual",
    "theodore_roosevelt",
    "harry_s_truman",
    "james_polk",
    "jimmy_carter",
    "william_h_taft",
    "grover_cleveland",
)


@torch.compile(dynamic=True)
def exponentials(scores: Tensor) -> tuple[Tensor, Tensor]:
    """The exponentials of scores, and their float32 sums over each row, in one loop."""
    result = scores.exp()
    return result, result.sum(1, dtype=torch.float32)


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Any,
    scaling: float,
    sliding_window: int | None = None,
    **given: Any,
) -> tuple[Tensor, None]:
    """Compute causal attention in bfloat16, four times as fast on a CPU as torch does.

    As in the eager attention of transformers, the scores are bfloat16. Their exponentials are too,
    without a maximum subtracted: bfloat16 holds them up to scores of 88.

    Args:
        module: Not used, as `mask` and `given`: transformers calls it with them.
        query: [1, heads, rows, width]: the queries of the last `rows` positions.
        key: [1, heads of keys, columns, width].
        value: As `key`.
        mask: Not used, since attention is causal.
        scaling: The factor on logits.
        sliding_window: How many positions up to its own a query sees; None for all.
        **given: Not used.

    Returns:
        The output, [1, rows, heads, width]; None in place of the probabilities.

    Raises:
        OverflowError: A score is too large, or all of a row are too small.
    """
    key_heads = key.shape[1]
    queries_per_key = query.shape[1] // key_heads
    rows = query.shape[2]
    width = query.shape[3]
    before = key.shape[2] - rows  # the positions before the first query
    output = torch.empty(1, rows, key_heads * queries_per_key, width, dtype=query.dtype)
    for start in range(0, rows, QUERIES):
        stop = min(start + QUERIES, rows)
        positions = (before + start, before + stop)
        blocks = []
        for columns in column_blocks(*positions, sliding_window):
            hidden = hidden_columns(*positions, columns, sliding_window)
            if hidden is not None:
                hidden = hidden.repeat(queries_per_key, 1)
            blocks.append((*columns, hidden))
        for group in range(key_heads):
            # the heads of queries that share this head of keys, below each other
            own = slice(group * queries_per_key, (group + 1) * queries_per_key)
            queries = query[0, own, start:stop].reshape(-1, width) * scaling
            sums = torch.zeros(len(queries), 1)
            mixed = torch.zeros(len(queries), width)
            for first, last, hidden in blocks:
                scores = queries @ key[0, group, first:last].T
                if hidden is not None:
                    scores.masked_fill_(hidden, -torch.inf)
                weights, row_sums = exponentials(scores)
                sums += row_sums[:, None]
                mixed += weights @ value[0, group, first:last]

            # the softmax is divided by its sums at the end only
            if not torch.isfinite(sums).all() or not (sums > 0).all():
                raise OverflowError("scores leave the range of bfloat16's exponentials")
            mixed /= sums
            by_head = mixed.view(queries_per_key, stop - start, -1).transpose(0, 1)
            output[0, start:stop, own] = by_head.to(query.dtype)
    return output, None


def column_blocks(start: int, stop: int, window: int | None) -> Iterator[tuple[int, int]]:
    """Yield the first column of each block that a query sees, and the one after its last.

    Args:
        start: The position of the first query.
        stop: The position after the last query.
        window: How many positions up to its own a query sees; None for all.
    """
    nearest = 0 if window is None else max(0, start - window + 1)
    for first in range(nearest, start, COLUMNS):
        yield first, min(first + COLUMNS, start)
    yield start, stop


def hidden_columns(
    start: int, stop: int, columns: tuple[int, int], window: int | None
) -> Tensor | None:
    """Return which columns of a block each query does not see, bool [stop - start, columns].

    Args:
        start: The position of the first query.
        stop: The position after the last query.
        columns: The first column, and the one after the last.
        window: How many positions up to its own a query sees; None for all.

    Returns:
        None where each query sees all of them.
    """
    first, last = columns
    has_later = last > start + 1
    has_too_early = window is not None and first <= stop - 1 - window
    if not has_later and not has_too_early:
        return None
    distance = torch.arange(start, stop)[:, None] - torch.arange(first, last)
    hidden = distance < 0
    if window is not None:
        hidden |= distance >= window
    return hidden


ALL_ATTENTION_FUNCTIONS["blocks"] = attend


class Reader:
    """Reads sequences with a loaded model, and gives the losses of their last tokens."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def states(self, ids: list[int], cache: DynamicCache, kept: int) -> Tensor:
        """Read tokens behind those of a cache. Returns the states of the last `kept` ones."""
        states = []
        with torch.no_grad():
            for start in range(0, len(ids), CHUNK):
                part = ids[start : start + CHUNK]
                output = self.model.model(
                    input_ids=torch.tensor([part]), past_key_values=cache, use_cache=True
                )
                states.append(output.last_hidden_state[0])
        return torch.cat(states)[-kept:]

    def losses(self, states: Tensor, ids: list[int]) -> TokenLosses:
        """The losses of tokens, from the states before them."""
        losses = []
        right = []
        with torch.no_grad():
            for part, wanted in zip(states.split(256), torch.tensor(ids).split(256), strict=True):
                logits = self.model.lm_head(part).float()
                losses.append(torch.nn.functional.cross_entropy(logits, wanted, reduction="none"))
                right.append(logits.argmax(1) == wanted)
        return TokenLosses(torch.cat(losses).double().numpy(), torch.cat(right).numpy())


class Task:
    """A text with its hidden words, its questions, and the text that continues in their place."""

    def __init__(self, texts: Texts, document: int, times: int, subject: Subject) -> None:
        """Hide words in a text, and ask for them at its end.

        Args:
            texts: All texts as tokens.
            document: The index of the text, which is also the seed.
            times: How many times the trained context the text is.
            subject: The model that reads it.
        """
        self.subject = subject
        self.prefix = list(texts.prefix)
        self.length = times * subject.trained
        self.name = Path(texts.documents[document].name).stem
        self.measure = Keys()
        draw = np.random.default_rng(document)
        count = len(texts.documents[document].ids)
        # all tokens of a text that is long enough are left for others
        room = count - 2 * self.length
        if room <= 0:
            room = count - self.length
        haystack = Haystack(texts, document, int(draw.integers(room)))
        prompts = self.measure.prompts(haystack, KEYS_PER_DEPTH * DEPTHS, draw)
        asked = haystack.text_with_questions(prompts, self.length, self.measure.name)
        self.tail = asked.question_tokens
        self.targets = asked.targets
        self.text_tokens = len(asked.tokens_before_questions)
        # the same text, which goes on in place of the questions
        self.ids = (
            asked.tokens_before_questions
            + haystack.hay(asked.text_length + len(asked.question_tokens))[asked.text_length :]
        )
        self.case = Case(
            measure=self.measure.name,
            column=self.length,
            document=document,
            window=0,
            ids=np.array(asked.ids, np.int32),
            targets=np.array(asked.targets, np.int32) + len(asked.tokens_before_questions),
        )

    def last(self, count: int, end: int) -> list[int]:
        """Return a sequence: the tokenizer's prefix (<bos>), and the tokens of the text before an
        index.

        Args:
            count: The length of the sequence.
            end: The index.
        """
        return self.prefix + self.ids[end - count + len(self.prefix) : end]


def blocks(losses: np.ndarray, length: int, last: int) -> Iterator[tuple[int, float]]:
    """The mean loss of blocks that end at token `last`, each with its number in the text."""
    for block in range(TARGETS // BLOCK):
        values = losses[block * BLOCK : (block + 1) * BLOCK]
        yield (last - TARGETS) // BLOCK + block, float(values.mean())


def measure(task: Task, row: Row, reader: Reader) -> dict[str, Any]:
    """Measure one row on one text, at all lengths, and return JSON-ready data.

    Args:
        task: The text and its questions.
        row: The method.
        reader: The model with that method.

    Returns:
        growth: [length, block, loss] of blocks at the end of each length. last: the losses of the
        last tokens of the whole text. keys: the answers to the questions.
    """
    cache = DynamicCache()
    states = reader.states(task.ids, cache, task.length)
    found: dict[str, Any] = {"growth": [], "row": row.name, "text": task.name}
    for length in (*task.subject.inside, task.length):
        kept = KEPT if length == task.length else TARGETS
        # the state after a token predicts the next one
        before = states[length - kept - 1 : length - 1]
        losses = reader.losses(before, task.ids[length - kept : length]).loss
        if length == task.length:
            found["last"] = [round(float(loss), 4) for loss in losses]
        for window, value in blocks(losses[-TARGETS:], length, length):
            found["growth"].append([length, window, round(value, 6)])

    # the questions follow the text without its continuation
    cache.crop(task.text_tokens - task.length)  # a negative number: that of the tokens to remove
    found["keys"] = answers(task, reader, cache, states[task.text_tokens - 1])
    return found


def answers(task: Task, reader: Reader, cache: DynamicCache, before: Tensor) -> list[Any]:
    """The answers to the questions behind the text of a cache."""
    states = torch.cat([before[None], reader.states(task.tail, cache, len(task.tail))])
    wanted = [task.tail[index] for index in task.targets]
    losses = reader.losses(states[task.targets], wanted)
    return [
        [one.metric, one.window, one.depth, round(one.value, 6), one.weight]
        for one in task.measure.observe(task.case, losses)
    ]


def measure_short(task: Task, within: Task, reader: Reader) -> dict[str, Any]:
    """Measure the unchanged model on the last tokens of a text, with its trained context and less.

    The difference of both shows which tokens need the context (the key tokens of LongPPL).

    Args:
        task: The text.
        within: A text of the trained length, with its questions.
        reader: The unchanged model.

    Returns:
        JSON-ready data: growth as `measure` returns it; last, the losses of the last KEPT tokens
        with the trained context; short, their losses with at most SHORT tokens before; keys_within,
        the answers to the questions of `within`.
    """
    found: dict[str, Any] = {"growth": [], "row": "base", "text": task.name}
    trained = task.subject.trained
    ids = task.last(trained, task.length)
    states = reader.states(ids, DynamicCache(), KEPT + 1)[:-1]
    losses = reader.losses(states, ids[-KEPT:]).loss
    found["last"] = [round(float(loss), 4) for loss in losses]
    for window, value in blocks(losses[-TARGETS:], trained, task.length):
        found["growth"].append([trained, window, round(value, 6)])

    # windows of SHORT tokens, of which the second half counts
    half = SHORT // 2
    short: list[float] = []
    for end in range(task.length - KEPT + half, task.length + 1, half):
        ids = task.last(SHORT, end)
        states = reader.states(ids, DynamicCache(), half + 1)[:-1]
        short += reader.losses(states, ids[-half:]).loss.tolist()
    found["short"] = [round(loss, 4) for loss in short]
    found["keys_within"] = answers_within(within, reader)
    return found


def answers_within(task: Task, reader: Reader) -> list[Any]:
    """The answers to the questions of a text as long as the trained context."""
    cache = DynamicCache()
    states = reader.states(task.ids[: task.text_tokens], cache, 1)
    return answers(task, reader, cache, states[0])


def measure_texts(
    model_name: str,
    texts_folder: str,
    folder: str,
    times: str = "2",
    minutes: str = "60",
    worker: str = "0",
    workers: str = "1",
) -> None:
    """Measure texts one after another, each with all rows, until the time is over.

    A result that is there already is not measured again.

    Args:
        model_name: That of SUBJECTS.
        texts_folder: The folder of the texts.
        folder: Where each result is written as JSON.
        times: How many times the trained context the texts are.
        minutes: The time.
        worker: Which of the workers this is, from 0 on; each has its own texts.
        workers: How many there are.
    """
    until = time.time() + 60 * float(minutes)
    place = Path(folder)
    subject = SUBJECTS[model_name]
    checkpoint = real_model(place / "model", subject.published).checkpoint
    wanted = rows_of(int(times), subject)
    request = RunnerRequest(str(checkpoint), wanted, device="cpu", dtype="bfloat16")
    with open_runner(request) as (runner, rows):
        assert isinstance(runner, CheckpointRunner)
        paths = [Path(texts_folder, f"{name}.txt") for name in ORDER]
        files = read_files([str(path) for path in paths if path.exists()])
        texts = tokenize(files, runner.tokenizer)
        model = runner.loaded.model
        model.set_attn_implementation("blocks")  # `attend`
        reader = Reader(model)
        text_count = subject.texts[int(times)]
        for document, row in jobs(rows, int(times), text_count, int(worker), int(workers)):
            task = Task(texts, document, int(times), subject)
            name = "short" if row is None else row.name.replace(":", "-")
            path = place / f"{document}-{task.name}-{name}.json"
            if path.exists():
                continue
            begun = time.time()
            if row is None:
                within = Task(texts, document, 1, subject)
                found = measure_short(task, within, reader)
            else:
                with runner.engine(row):
                    found = measure(task, row, reader)
            found["seconds"] = round(time.time() - begun, 1)
            found["model"] = model_name
            found["sample"] = texts.sha256[:16]
            found["identity"] = runner.source
            found["runtime"] = runner.runtime
            write_file(path, msgspec.json.encode(found))
            print(path.name, found["seconds"], summary(found), flush=True)
            if time.time() > until:
                return


def rows_of(times: int, subject: Subject) -> list[Row]:
    """The rows at so many times the trained context, in the order of measuring."""
    words = []
    for method in (*FIRST_METHODS[times], *MORE_METHODS[times]):
        if method == "base":
            words.append(method)
        elif method == "theta-for":
            words.append(f"{method}:{times * subject.trained}")
        else:
            words.append(f"{method}:{times}")
    return parse_rows(",".join(words))


def jobs(
    rows: list[Row], times: int, text_count: int, worker: int, workers: int
) -> Iterator[tuple[int, Row | None]]:
    """Pairs of a text and a row in the order of measuring; the row None is for short contexts.

    The first methods of two texts come before the others. Of those, a row is measured on both texts
    before the next row, since the record takes no row without all texts.
    """
    important = len(FIRST_METHODS[times])
    for first in range(0, text_count, 2 * workers):
        after = min(first + 2 * workers, text_count)
        own = [number for number in range(first, after) if number % workers == worker]
        for document in own:
            first_rows = rows[: min(2, important)]
            yield from [(document, row) for row in (*first_rows, None, *rows[2:important])]
        for row in rows[important:]:
            yield from [(document, row) for document in own]


def summary(found: dict[str, Any]) -> str:
    """The means of what was found, for the log."""
    words = []
    for length in dict.fromkeys(at for at, _, _ in found["growth"]):
        values = [value for at, _, value in found["growth"] if at == length]
        words.append(f"{length}: {np.mean(values):.3f}")
    right = [one[3] for one in found.get("keys", ()) if one[0] == "exact"]
    if right:
        words.append(f"keys {sum(right):g} of {len(right)}")
    return ", ".join(words)


ALPHA = 2.0
"""The least gain of a key token by its long context, in nats (Fang et al. 2024)."""
BETA = -2.0
"""The least log-probability of a key token with its long context."""
KEY_BLOCK = 512
"""Tokens whose key tokens make one item of longppl."""


def items_of(folder: Path) -> list[RecordItem]:
    """Return the items of everything that was measured, in the order of texts and rows.

    Args:
        folder: That of `measure_texts`.
    """
    found = []
    for path in sorted(folder.glob("*-*-*.json")):
        found.append(msgspec.json.decode(path.read_bytes()))
    # results of the first version do not name their model
    subject = SUBJECTS[found[0].get("model", SMOLLM2.name)]
    longest = max(length for result in found for length, _, _ in result["growth"])
    times = longest // subject.trained
    shorter_contexts = {result["text"]: result for result in found if "short" in result}

    # means over other texts cannot be compared, so a row needs all texts of the unchanged model
    texts_by_row: dict[str, set[str]] = {}
    for result in found:
        if "keys" in result:
            texts_by_row.setdefault(result["row"], set()).add(result["text"])
    needed = {result["text"] for result in found if result["row"] == "base"}
    complete = {row for row, texts in texts_by_row.items() if texts >= needed}
    found = [result for result in found if result["row"] in complete or "short" in result]

    names = [row.name for row in rows_of(times, subject)]

    def place(result: dict[str, Any]) -> tuple[int, int, bool]:
        return ORDER.index(result["text"]), names.index(result["row"]), "short" in result

    items: list[RecordItem] = []
    for result in sorted(found, key=place):
        items += _items_of_row(result, shorter_contexts.get(result["text"]), times, subject)
    return items


def _items_of_row(
    found: dict[str, Any], contexts: dict[str, Any] | None, times: int, subject: Subject
) -> Iterator[RecordItem]:
    """Yield the items of one row and text: losses by length, answers, and losses of key tokens.

    Args:
        found: The result, as `measure` or `measure_short` returns it.
        contexts: The losses of the unchanged model with its trained context and less, which choose
            the key tokens; None where they are not measured.
        times: How many times the trained context the text is.
        subject: The model.
    """
    longest = times * subject.trained
    # a longer text begins at another place, so its windows are others
    sample = found["sample"] if times == 2 else f"{found['sample']}-{longest}"
    method, _, _ = found["row"].partition(":")
    is_base = method == "base"
    shared: dict[str, Any] = {
        "row": "base" if is_base else f"{method}:{times}",
        "text": found["text"],
        "model": subject.published.name,
        "identity": found.get("identity", ""),
        "trained": subject.trained,
        "sliding_window": subject.sliding_window,
        "method": method,
        "factor": None if is_base else float(times),
        "runtime": found.get("runtime", "transformers"),
        "dtype": "bfloat16",
        "sample": sample,
    }
    is_whole_text = "short" not in found
    for length, window, value in found["growth"]:
        yield RecordItem(
            measure="growth", metric="loss", length=length, window=window, value=value, **shared
        )

    # the blocks of the long pass before those of `growth`
    if is_whole_text:
        losses = np.array(found["last"])
        first = (longest - KEPT) // BLOCK
        for block in range((KEPT - TARGETS) // BLOCK):
            mean_loss = losses[block * BLOCK : (block + 1) * BLOCK].mean()
            yield RecordItem(
                measure="growth",
                metric="loss",
                length=longest,
                window=first + block,
                value=round(float(mean_loss), 6),
                **shared,
            )
    for name, length in (("keys", longest), ("keys_within", subject.trained)):
        for metric, window, depth, value, weight in found.get(name, ()):
            yield RecordItem(
                measure="keys",
                metric=metric,
                length=length,
                window=window,
                depth=depth,
                value=value,
                weight=weight,
                **shared,
            )

    if contexts is not None:
        is_key = _key_tokens(contexts)
        lengths = {longest: found["last"]}
        if not is_whole_text:
            lengths = {SHORT: found["short"], subject.trained: found["last"]}
        for length, last_losses in lengths.items():
            yield from _key_token_items(np.array(last_losses), length, longest, is_key, shared)


def _key_token_items(
    losses: NDArray[np.float64],
    length: int,
    longest: int,
    is_key: NDArray[np.bool_],
    shared: dict[str, Any],
) -> Iterator[RecordItem]:
    """Yield the mean loss of the key tokens in each block of the last tokens of a text.

    Args:
        losses: The losses of the last KEPT tokens.
        length: The tokens that are read before them.
        longest: The tokens of the whole text, at whose end they are.
        is_key: Which of them are key tokens.
        shared: The fields that all items of the row have.
    """
    first = (longest - KEPT) // KEY_BLOCK
    for block in range(KEPT // KEY_BLOCK):
        part = slice(block * KEY_BLOCK, (block + 1) * KEY_BLOCK)
        values = losses[part][is_key[part]]
        if not len(values):
            continue
        yield RecordItem(
            measure="longppl",
            metric="loss",
            length=length,
            window=first + block,
            value=round(float(values.mean()), 6),
            weight=len(values),
            **shared,
        )


def _key_tokens(contexts: dict[str, Any]) -> np.ndarray:
    """Whether each of the last tokens needs the trained context, bool [KEPT]."""
    long = -np.array(contexts["last"])
    short = -np.array(contexts["short"])
    return (long - short > ALPHA) & (long > BETA)


def write_record(*folders: str) -> None:
    """Write the items of folders as a file of the record, with those of `eval -o` in them."""
    items: list[RecordItem] = []
    for folder in folders:
        items += items_of(Path(folder))
        for path in sorted(Path(folder).glob("*.jsonl.gz")):
            items += read_items(path)
    check_items(items, ", ".join(folders))
    path = RECORD / f"{items[0].model}.jsonl.gz"
    write_items(items, path)
    print(f"{path}: {len(items):,} items")


def main(task: str, *words: str) -> None:
    """Runs one of the two commands."""
    if task == "measure":
        measure_texts(*words)
    elif task == "items":
        write_record(*words)
    else:
        sys.exit(f"{task} is not a command; give measure or items")


if __name__ == "__main__":
    main(*sys.argv[1:])
