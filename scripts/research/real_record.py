"""Measures methods on SmolLM2-135M-Instruct at 2, 4 or 8 times its trained context: items of the
record.

    python -m scripts.research.real_record measure TEXTS FOLDER [TIMES [MINUTES [WORKER WORKERS]]]
    python -m scripts.research.real_record items FOLDER...

TEXTS are the folder of the texts of docs/evaluating.md. FOLDER keeps a file for each row and text
at one length, so that a run that is stopped continues with the next one. TIMES is 2 (the default),
4 or 8. `items` makes the record of all folders, in docs/evidence/items.

A pass over 32,768 tokens takes three minutes on one core, and one over 65,536 eleven, so one pass
gives as much as it can. The numbers of 25 words are hidden in each text (measure `keys`), and one
pass of a row gives

- the loss of the last 1,024 of 2,048 and 8,192 tokens, in blocks of 128 tokens;
- the loss of each of the last 4,096 tokens of all, in blocks too, and for `longppl`;
- on the same cache, without the end of the text, the answers to the 25 questions.

The unchanged model also reads only the last 8,192 tokens of each text, so that the loss of the
last 1,024 is compared with that of the same tokens at the trained context. From this pass, and from
passes over 1,024 to 2,048 tokens, it chooses the key tokens of `longppl`: no row is used beyond its
trained context for that.
"""

import sys
import time
from collections.abc import Iterator
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

from ..real_model import real_model

ROWS = {
    2: "base,yarn:2,ntk:2,mixed:2,by-parts:2,linear:2",
    4: "yarn:4",
    8: "base,yarn:8",
}
"""The rows, by how many times the trained context the texts are."""
MORE_ROWS = {
    2: "ntk-fixed:2,llama3:2,ntk-old:2,theta-for:16384",
    4: "base,by-parts:4,ntk:4,mixed:4,linear:4,ntk-fixed:4,llama3:4,theta-for:32768,ntk-old:4",
    8: "by-parts:8,mixed:8,ntk:8,linear:8,ntk-fixed:8,llama3:8,theta-for:65536,ntk-old:8",
}
"""Rows that are measured last. At twice the trained context they are close to others: ntk-old and
theta-for to ntk, for example.
"""
RECORD = Path("docs/evidence/items")
TRAINED = 8192
INSIDE = (2048, 8192)
"""Lengths whose loss one long pass gives too, since the frequencies do not depend on the length."""
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
TEXTS = {2: 8, 4: 2, 8: 2}
"""How many of ORDER are measured, by how many times the trained context they are."""


@torch.compile(dynamic=True)
def exponentials(scores: Tensor) -> tuple[Tensor, Tensor]:
    """The exponentials of scores, and their float32 sums over each row, in one loop."""
    result = scores.exp()
    return result, result.sum(1, dtype=torch.float32)


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, scaling: float, **given: Any
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
        # the queries of these rows see all columns but those of later rows
        stop = min(start + QUERIES, rows)
        later = torch.ones(stop - start, stop - start, dtype=torch.bool).triu(1)
        hidden = later.repeat(queries_per_key, 1)
        for group in range(key_heads):
            # the heads of queries that share this head of keys, below each other
            own = slice(group * queries_per_key, (group + 1) * queries_per_key)
            queries = query[0, own, start:stop].reshape(-1, width) * scaling
            sums = torch.zeros(len(queries), 1)
            mixed = torch.zeros(len(queries), width)
            for first, last in column_blocks(before + start, before + stop):
                scores = queries @ key[0, group, first:last].T
                if first == before + start:
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


def column_blocks(seen: int, columns: int) -> Iterator[tuple[int, int]]:
    """The first column of blocks and the one after their last.

    Args:
        seen: The columns that all rows see; the last block begins behind them.
        columns: The number of all columns.
    """
    for first in range(0, seen, COLUMNS):
        yield first, min(first + COLUMNS, seen)
    yield seen, columns


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

    def __init__(self, texts: Texts, document: int, times: int) -> None:
        """Hide words in a text, and ask for them at its end.

        Args:
            texts: All texts as tokens.
            document: The index of the text, which is also the seed.
            times: How many times the trained context the text is.
        """
        self.length = times * TRAINED
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
    for length in (*INSIDE, task.length):
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


def measure_short(task: Task, reader: Reader) -> dict[str, Any]:
    """Measure the unchanged model on the last tokens of a text, with its trained context and less.

    The difference of both shows which tokens need the context (the key tokens of LongPPL).

    Returns:
        JSON-ready data: growth as `measure` returns it; last, the losses of the last KEPT tokens
        with the trained context; short, their losses with at most SHORT tokens before.
    """
    found: dict[str, Any] = {"growth": [], "row": "base", "text": task.name}
    ids = task.ids[-TRAINED:]
    states = reader.states(ids, DynamicCache(), KEPT + 1)[:-1]
    losses = reader.losses(states, ids[-KEPT:]).loss
    found["last"] = [round(float(loss), 4) for loss in losses]
    for window, value in blocks(losses[-TARGETS:], TRAINED, task.length):
        found["growth"].append([TRAINED, window, round(value, 6)])

    # windows of SHORT tokens, of which the second half counts
    half = SHORT // 2
    short: list[float] = []
    for end in range(task.length - KEPT + half, task.length + 1, half):
        ids = task.ids[end - SHORT : end]
        states = reader.states(ids, DynamicCache(), half + 1)[:-1]
        short += reader.losses(states, ids[-half:]).loss.tolist()
    found["short"] = [round(loss, 4) for loss in short]
    return found


def measure_texts(
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
        texts_folder: The folder of the texts.
        folder: Where each result is written as JSON.
        minutes: The time.
        worker: Which of the workers this is, from 0 on; each has its own texts.
        workers: How many there are.
    """
    until = time.time() + 60 * float(minutes)
    place = Path(folder)
    checkpoint = real_model(place / "model").checkpoint
    wanted = rows_of(int(times))
    request = RunnerRequest(str(checkpoint), wanted, device="cpu", dtype="bfloat16")
    with open_runner(request) as (runner, rows):
        assert isinstance(runner, CheckpointRunner)
        paths = [Path(texts_folder, f"{name}.txt") for name in ORDER]
        files = read_files([str(path) for path in paths if path.exists()])
        texts = tokenize(files, runner.tokenizer)
        model = runner.loaded.model
        model.set_attn_implementation("blocks")  # `attend`
        reader = Reader(model)
        for document, row in jobs(rows, int(times), int(worker), int(workers)):
            task = Task(texts, document, int(times))
            name = "short" if row is None else row.name.replace(":", "-")
            path = place / f"{document}-{task.name}-{name}.json"
            if path.exists():
                continue
            begun = time.time()
            if row is None:
                found = measure_short(task, reader)
            else:
                with runner.engine(row):
                    found = measure(task, row, reader)
            found["seconds"] = round(time.time() - begun, 1)
            found["sample"] = texts.sha256[:16]
            found["identity"] = runner.source
            found["runtime"] = runner.runtime
            write_file(path, msgspec.json.encode(found))
            print(path.name, found["seconds"], summary(found), flush=True)
            if time.time() > until:
                return


def rows_of(times: int) -> list[Row]:
    """The rows at so many times the trained context, in the order of measuring."""
    return parse_rows(f"{ROWS[times]},{MORE_ROWS[times]}")


def jobs(
    rows: list[Row], times: int, worker: int, workers: int
) -> Iterator[tuple[int, Row | None]]:
    """Pairs of a text and a row in the order of measuring; the row None is for short contexts.

    The most important rows of two texts come before their other rows. Of those, a row is measured
    on both texts before the next row, since the record takes no row without all texts.
    """
    important = len(parse_rows(ROWS[times]))
    for first in range(0, TEXTS[times], 2 * workers):
        after = min(first + 2 * workers, TEXTS[times])
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
    times = max(length for result in found for length, _, _ in result["growth"]) // TRAINED
    shorter_contexts = {result["text"]: result for result in found if "short" in result}

    # means over other texts cannot be compared, so a row needs all texts of the unchanged model
    texts_by_row: dict[str, set[str]] = {}
    for result in found:
        if "keys" in result:
            texts_by_row.setdefault(result["row"], set()).add(result["text"])
    needed = {result["text"] for result in found if result["row"] == "base"}
    complete = {row for row, texts in texts_by_row.items() if texts >= needed}
    found = [result for result in found if result["row"] in complete or "short" in result]

    names = [row.name for row in rows_of(times)]

    def place(result: dict[str, Any]) -> tuple[int, int, bool]:
        return ORDER.index(result["text"]), names.index(result["row"]), "short" in result

    items: list[RecordItem] = []
    for result in sorted(found, key=place):
        items += _items_of_row(result, shorter_contexts.get(result["text"]), times)
    return items


def _items_of_row(
    found: dict[str, Any], contexts: dict[str, Any] | None, times: int
) -> Iterator[RecordItem]:
    """Yield the items of one row and text: losses by length, answers, and losses of key tokens.

    Args:
        found: The result, as `measure` or `measure_short` returns it.
        contexts: The losses of the unchanged model with its trained context and less, which choose
            the key tokens; None where they are not measured.
        times: How many times the trained context the text is.
    """
    longest = times * TRAINED
    # a longer text begins at another place, so its windows are others
    sample = found["sample"] if times == 2 else f"{found['sample']}-{longest}"
    method, _, _ = found["row"].partition(":")
    is_base = method == "base"
    shared: dict[str, Any] = {
        "row": "base" if is_base else f"{method}:{times}",
        "text": found["text"],
        "model": "SmolLM2-135M-Instruct",
        "identity": found.get("identity", ""),
        "trained": TRAINED,
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
    for metric, window, depth, value, weight in found.get("keys", ()):
        yield RecordItem(
            measure="keys",
            metric=metric,
            length=longest,
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
            lengths = {SHORT: found["short"], TRAINED: found["last"]}
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
