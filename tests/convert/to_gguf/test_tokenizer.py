"""Tokenizers in GGUF, as llama.cpp cuts text with them, and back, against the libraries that they
come from.
"""

import functools
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer

from ropeconv.convert.from_gguf.tokenizer import tokenizer_config, tokenizer_text
from ropeconv.convert.to_gguf.tokenizer import (
    Pre,
    composes_characters,
    pre_table,
    recognise,
    tokenizer_keys,
)
from ropeconv.convert.to_gguf.vocabulary import TokenizerJson, TokenKind, decode_json
from ropeconv.engines.llamacpp import LlamaCppProcess
from ropeconv.engines.llamacpp_program import Load
from ropeconv.errors import BadSource, UnsupportedBake, UsageError
from ropeconv.formats.gguf.edit import Edit, write_new
from ropeconv.formats.gguf.file import GgufFile
from ropeconv.formats.gguf.header import GgufValue, boolean, string, u32
from ropeconv.models.family import Gguf
from ropeconv.models.registry import by_name

from ...support.gguf_files import write

TEXTS = [
    "Hello, world! It's 12345 o'clock; isn't it?",
    "  leading and   many    spaces\n\n\nnew\tlines \r\n end ",
    "Grüße aus Köln: naïve café, 你好世界, привет мир, こんにちは",
    "def f(x):\n    return x**2 + 3.14159  # comment\n",
    "CamelCaseWords HTTPRequest iPhone 100%! ¿Qué? 😀👍🏽",
    "we'll WE'LL they've I'd I'M don't",
]
VOCABULARY = 600
RULES = Gguf(arch="llama")
PRE = {pre.name: pre for pre in pre_table().pre}
Keys = dict[str, GgufValue]


@functools.cache
def corpus() -> list[str]:
    """Text with all kinds of characters in it."""
    here = [path.read_text("utf-8") for path in sorted(Path(__file__).parent.glob("*.py"))]
    return here * 2 + TEXTS * 30


def byte_level(pre: Any, ignore_merges: bool = False) -> Tokenizer:
    """A byte-level BPE that cuts text as `pre` does."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


@functools.cache
def text_of(pre: Pre) -> str:
    """The tokenizer.json of a byte-level BPE that cuts text as one in the table does."""
    return str(byte_level(as_pre_tokenizer(pre.steps), pre.ignore_merges).to_str())


def known(name: str) -> Tokenizer:
    return Tokenizer.from_str(text_of(PRE[name]))


def parsed(text: str) -> TokenizerJson:
    """A tokenizer.json as the conversion reads it."""
    return decode_json(text.encode(), TokenizerJson, "tokenizer.json")


def as_pre_tokenizer(steps: tuple[str, ...]) -> Any:
    """The steps of the table as the tokenizers library has them."""
    parts = []
    for step in steps:
        if step in ("digits", "numbers"):
            parts.append(pre_tokenizers.Digits(individual_digits=step == "digits"))
        elif step == "punctuation":
            parts.append(pre_tokenizers.Punctuation("contiguous"))
        elif step == "gpt2":
            parts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True))
        elif step.startswith("split "):
            parts.append(pre_tokenizers.Split(Regex(step.removeprefix("split ")), "isolated"))
    if "gpt2" not in steps:
        parts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return pre_tokenizers.Sequence(parts)


def keys_of(tokenizer: Tokenizer, folder: Path, **options: Any) -> Keys:
    """The keys of a tokenizer whose tokenizer.json is the only one in a folder."""
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer_keys(folder, VOCABULARY, RULES, **options)


def vocabulary_file(keys: Keys, path: Path) -> GgufFile:
    plain = write(
        path.with_name("plain.gguf"), vocabulary=1, tensors={"x": np.zeros(32, np.float32)}
    )
    write_new(
        GgufFile.open(plain),
        0,
        Edit(keys, frozenset({"tokenizer.ggml.scores"} - keys.keys())),
        path,
    )
    return GgufFile.open(path)


CUT = """
import json, sys
from llama_cpp import Llama
def cut(path, texts, special):
    try:
        model = Llama(path, vocab_only=True, verbose=False)
    except ValueError:
        return None
    return [model.tokenize(text.encode(), add_bos=False, special=special) for text in texts]
paths, *given = json.load(sys.stdin)
print(json.dumps([cut(path, *given) for path in paths]))
"""


def in_llama_cpp(
    paths: Sequence[Path], texts: Sequence[str] = TEXTS, special: bool = True
) -> list[Any]:
    """Texts as llama.cpp cuts them by each vocabulary, in a process of its own; None for a file
    that it refuses.
    """
    pytest.importorskip("llama_cpp")
    job = json.dumps([[str(path) for path in paths], list(texts), special])
    done = subprocess.run(
        [sys.executable, "-c", CUT], input=job, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return list(json.loads(done.stdout))


def cut(keys: Keys, folder: Path, texts: Sequence[str] = TEXTS) -> Any:
    vocabulary_file(keys, folder / "vocab.gguf")
    return in_llama_cpp([folder / "vocab.gguf"], texts)[0]


def back(keys: Keys, folder: Path) -> Tokenizer:
    return Tokenizer.from_str(
        tokenizer_text(vocabulary_file(keys, folder / "vocab.gguf"), by_name()["llama"])
    )


@pytest.fixture(scope="module")
def by_name_of_pre(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Keys, Any]]:
    """The keys for each pre-tokenizer of the table, and TEXTS as llama.cpp cuts them."""
    folder = tmp_path_factory.mktemp("pre")
    keys = {name: keys_of(known(name), folder) for name in PRE}
    for name, given in keys.items():
        vocabulary_file(given, folder / f"{name}.gguf")
    token_ids = in_llama_cpp([folder / f"{name}.gguf" for name in PRE])
    return {name: (keys[name], ids) for name, ids in zip(PRE, token_ids, strict=True)}


@pytest.mark.parametrize("name", PRE)
def test_every_pre_tokenizer_of_the_table_cuts_as_llama_cpp_does_and_comes_back(
    name: str, by_name_of_pre: dict[str, tuple[Keys, Any]], tmp_path: Path
) -> None:
    tokenizer, (keys, ids) = known(name), by_name_of_pre[name]
    assert keys["tokenizer.ggml.pre"].decode() == name
    assert ids == [tokenizer.encode(text).ids for text in TEXTS]
    second = back(keys, tmp_path)
    for text in [*TEXTS, "<s>special</s> tokens"]:
        assert second.encode(text).ids == tokenizer.encode(text).ids
        assert second.decode(second.encode(text).ids) == tokenizer.decode(
            tokenizer.encode(text).ids
        )


def test_the_name_that_llama_files_have_for_starcoder_comes_back_as_it(tmp_path: Path) -> None:
    """SmolLM2's files say "smollm"."""
    tokenizer = known("starcoder")
    second = back(keys_of(tokenizer, tmp_path) | {"tokenizer.ggml.pre": string("smollm")}, tmp_path)
    assert [second.encode(text).ids for text in TEXTS] == [
        tokenizer.encode(text).ids for text in TEXTS
    ]


def test_the_wrong_pre_tokenizer_gives_other_tokens(tmp_path: Path) -> None:
    """The test above can fail, in both directions."""
    tokenizer = known("starcoder")
    wrong = keys_of(tokenizer, tmp_path, pre="falcon")
    expected = [tokenizer.encode(text).ids for text in TEXTS]
    assert cut(wrong, tmp_path) != expected
    assert [back(wrong, tmp_path).encode(text).ids for text in TEXTS] != expected


@pytest.mark.parametrize(
    "pre",
    [
        pre_tokenizers.Whitespace(),
        pre_tokenizers.ByteLevel(add_prefix_space=True),
        pre_tokenizers.Split(Regex(r"\p{N}{1,4}"), "isolated"),
        pre_tokenizers.Sequence(
            [pre_tokenizers.Punctuation(), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        ),
    ],
    ids=["whitespace", "bytes", "split", "sequence"],
)
def test_an_unknown_pre_tokenizer_is_an_error_and_never_a_guess(pre: Any) -> None:
    tokenizer = known("gpt-2")
    tokenizer.pre_tokenizer = pre
    with pytest.raises(BadSource, match="pass --pre NAME"):
        recognise(parsed(tokenizer.to_str()), {})


def with_lookup(mergeable: bool) -> dict[str, Any]:
    """A tokenizer.json that cuts as qwen2 does, and has ignore_merges. mergeable: merging makes all
    of its tokens.
    """
    data: dict[str, Any] = json.loads(text_of(Pre("qwen2", True, PRE["qwen2"].steps)))
    model = data["model"]
    for text in [entry["content"] for entry in data["added_tokens"]]:
        model["vocab"].pop(text, None)
    lookup = Tokenizer.from_str(json.dumps({**data, "model": {**model, "ignore_merges": False}}))
    free = {
        text: number
        for text, number in model["vocab"].items()
        if len(lookup.model.tokenize(text)) == 1
    }
    model["vocab"] = free if mergeable else {**free, "Qzq": VOCABULARY - 1}
    model["merges"] = [merge for merge in model["merges"] if "".join(merge) in free]
    return data


@pytest.mark.parametrize("mergeable", [True, False])
def test_looking_words_up_first_says_nothing_where_merging_makes_every_token(
    mergeable: bool, tmp_path: Path
) -> None:
    """As in gpt-oss, which has ignore_merges where llama.cpp merges. One token more, and llama.cpp
    gives others.
    """
    tokenizer = Tokenizer.from_str(json.dumps(with_lookup(mergeable)))
    texts = [*TEXTS[:-1], "Qzq"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(with_lookup(mergeable)))
    keys = tokenizer_keys(tmp_path, VOCABULARY, RULES, pre="" if mergeable else "qwen2")
    assert keys["tokenizer.ggml.pre"].decode() == "qwen2"
    assert (
        cut(keys, tmp_path, texts) == [tokenizer.encode(text).ids for text in texts]
    ) is mergeable


def train_pieces(folder: Path, **options: Any) -> sentencepiece.SentencePieceProcessor:
    """A SentencePiece BPE with byte fallback in tokenizer.model, as Llama 2 and Mistral have it."""
    settings = {
        "model_type": "bpe",
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "character_coverage": 0.98,
        "split_digits": True,
        "allow_whitespace_only_pieces": True,
        "minloglevel": 2,
        "vocab_size": VOCABULARY,
        **options,
    }
    lines = (line for text in corpus() for line in text.splitlines())
    prefix = str(folder / "tokenizer")
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=lines, model_prefix=prefix, **settings
    )
    return sentencepiece.SentencePieceProcessor(str(folder / "tokenizer.model"))


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_cuts_as_llama_cpp_does_and_comes_back(tmp_path: Path, prefix: bool) -> None:
    processor = train_pieces(tmp_path, add_dummy_prefix=prefix)
    keys = tokenizer_keys(tmp_path, VOCABULARY, RULES)
    assert keys["tokenizer.ggml.model"].decode() == "llama"
    assert keys["tokenizer.ggml.add_space_prefix"].decode() is prefix
    kinds = keys["tokenizer.ggml.token_type"].decode()
    assert [kinds[0], kinds[1], kinds[2], kinds[3], kinds[-1]] == [2, 3, 3, 6, 1]
    assert cut(keys, tmp_path) == [processor.EncodeAsIds(text) for text in TEXTS]
    second = back(keys, tmp_path)
    for text in TEXTS:
        assert second.encode(text, add_special_tokens=False).ids == processor.EncodeAsIds(text)
        assert second.decode(processor.EncodeAsIds(text)) == text
    data = json.loads(second.to_str())
    for written in (
        list,
        " ".join,
    ):  # as tokenizers writes merges, and as it wrote them before 0.20
        (tmp_path / "fast").mkdir(exist_ok=True)
        model = {**data["model"], "merges": [written(merge) for merge in data["model"]["merges"]]}
        (tmp_path / "fast" / "tokenizer.json").write_text(json.dumps({**data, "model": model}))
        fast = tokenizer_keys(tmp_path / "fast", VOCABULARY, RULES)
        assert cut(fast, tmp_path) == [processor.EncodeAsIds(text) for text in TEXTS]


@pytest.mark.parametrize(
    "spaces", [["▁▁", "▁▁▁▁"], []], ids=["user-defined pieces of spaces", "none"]
)
def test_user_defined_pieces_are_found_in_text_with_spaces(
    tmp_path: Path, spaces: list[str]
) -> None:
    """Gemma 2 and 3 have such pieces; llama.cpp searches for them in the text itself."""
    processor = train_pieces(
        tmp_path, user_defined_symbols=[*spaces, "<h1>"], add_dummy_prefix=False
    )
    ids = [processor.PieceToId(piece) for piece in [*spaces, "<h1>"]]
    added = {str(index): {"content": processor.IdToPiece(index)} for index in ids}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    keys = tokenizer_keys(tmp_path, VOCABULARY, RULES)
    assert {keys["tokenizer.ggml.scores"].decode()[index] for index in ids} == {-1000.0}, (
        "as the stock converter has it"
    )
    assert cut(keys, tmp_path) == [processor.EncodeAsIds(text) for text in TEXTS]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_type": "unigram"}, "unigram"),
        ({"normalization_rule_name": "nmt_nfkc"}, "nmt_nfkc"),
        ({"remove_extra_whitespaces": True}, "extra spaces"),
    ],
)
def test_sentencepiece_that_llama_cpp_does_not_have_is_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    train_pieces(tmp_path, **options)
    with pytest.raises(BadSource, match=message):
        tokenizer_keys(tmp_path, VOCABULARY, RULES)


@pytest.mark.parametrize(
    ("normalizer", "refused"),
    [(normalizers.NFC(), False), (normalizers.Lowercase(), True), (normalizers.NFKC(), True)],
    ids=["NFC", "Lowercase", "NFKC"],
)
def test_a_normalizer_that_changes_text_is_refused(
    normalizer: Any, refused: bool, tmp_path: Path
) -> None:
    tokenizer = known("gpt-2")
    tokenizer.normalizer = normalizers.Sequence([normalizer])
    if refused:
        with pytest.raises(BadSource, match="normalizes text"):
            keys_of(tokenizer, tmp_path)
        return
    keys = keys_of(tokenizer, tmp_path)
    assert composes_characters(tmp_path, keys)
    assert not composes_characters(tmp_path, {**keys, "tokenizer.ggml.model": string("llama")})


def test_llama_cpp_takes_every_name_of_the_list_and_no_other(tmp_path: Path) -> None:
    keys = keys_of(known("gpt-2"), tmp_path)
    names = pre_table().names
    assert PRE.keys() <= set(names)
    tried = [*names, "nonsense", "qwen", "llama"]
    for name in tried:
        vocabulary_file(keys | {"tokenizer.ggml.pre": string(name)}, tmp_path / f"{name}.gguf")
    token_ids = in_llama_cpp([tmp_path / f"{name}.gguf" for name in tried], [])
    assert [name for name, ids in zip(tried, token_ids, strict=True) if ids is not None] == list(
        names
    )
    with pytest.raises(UsageError, match="pre-tokenizer .*qwen2"):
        tokenizer_keys(tmp_path, VOCABULARY, RULES, pre="nonsense")
    assert (
        tokenizer_keys(tmp_path, VOCABULARY, RULES, pre="mpt")["tokenizer.ggml.pre"].decode()
        == "mpt"
    )


def test_added_tokens_special_tokens_and_the_chat_template_go_along(tmp_path: Path) -> None:
    tokenizer = known("gpt-2")
    tokenizer.add_special_tokens(["<|im_start|>"])
    tokenizer.add_tokens(["<think>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    settings = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "add_bos_token": True,
        "chat_template": "{{ messages }}",
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    keys = tokenizer_keys(tmp_path, VOCABULARY + 10, RULES)
    metadata = {name.removeprefix("tokenizer."): value.decode() for name, value in keys.items()}
    added = zip(metadata["ggml.tokens"], metadata["ggml.token_type"], strict=True)
    assert list(added)[VOCABULARY:][:3] == [("<|im_start|>", 3), ("<think>", 4), ("[PAD602]", 5)]
    assert [
        metadata[f"ggml.{name}"] for name in ("bos_token_id", "eos_token_id", "add_bos_token")
    ] == [0, 1, True]
    assert metadata["chat_template"] == "{{ messages }}"
    assert len(metadata["ggml.merges"]) == VOCABULARY - 256 - 2


def test_tokens_that_only_the_config_adds_are_there(tmp_path: Path) -> None:
    """ChatGLM 3 was published so; transformers adds them too."""
    tokenizer = known("gpt-2")
    tokenizer.add_special_tokens(["<|im_start|>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    texts = {
        5: "<|of another row|>",
        VOCABULARY: "<|other text|>",
        VOCABULARY + 1: "<|only here|>",
        VOCABULARY + 9: "<|beyond the embeddings|>",
    }
    listed = {
        str(index): {"content": text, "special": True, **flags} for index, text in texts.items()
    }
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "added_tokens_decoder": listed}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))

    keys = tokenizer_keys(tmp_path, VOCABULARY + 3, RULES)
    written = keys["tokenizer.ggml.tokens"].decode()
    kinds = keys["tokenizer.ggml.token_type"].decode()
    assert written[5] == tokenizer.id_to_token(5)
    assert written[VOCABULARY:] == ["<|im_start|>", "<|only here|>", f"[PAD{VOCABULARY + 2}]"]
    assert kinds[VOCABULARY:] == [TokenKind.CONTROL, TokenKind.CONTROL, TokenKind.UNUSED]

    # the second way, for the one token that a tokenizer can add at this place
    only = {"added_tokens_decoder": {str(VOCABULARY + 1): listed[str(VOCABULARY + 1)]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | only))
    by_transformers = AutoTokenizer.from_pretrained(tmp_path)
    assert by_transformers.convert_tokens_to_ids("<|only here|>") == VOCABULARY + 1


def test_a_space_in_front_is_no_setting_of_byte_level_tokenizers(tmp_path: Path) -> None:
    """llama.cpp's converter copies add_prefix_space = false for Mistral Nemo and GPT-2."""
    pytest.importorskip("llama_cpp")
    plain = keys_of(known("gpt-2"), tmp_path)
    key = "tokenizer.ggml.add_space_prefix"
    assert key not in plain

    texts = [" leading space", *TEXTS]
    results = {}
    for name, more in (
        ("absent", {}),
        ("false", {key: boolean(False)}),
        ("true", {key: boolean(True)}),
    ):
        path = tmp_path / f"{name}.gguf"
        vocabulary_file({**plain, **more}, path)
        with LlamaCppProcess(Load(path=str(path), vocabulary_only=True)) as process:
            token_ids = [process.encode(text) for text in texts]
            results[name] = (token_ids, [process.decode(ids) for ids in token_ids])
    assert results["absent"] == results["false"]
    # the control: a model that llama.cpp takes to have a space in front loses it in its answers
    assert results["absent"] != results["true"]


def test_special_tokens_and_the_chat_template_come_back(tmp_path: Path) -> None:
    keys = keys_of(known("gpt-2"), tmp_path) | {
        "tokenizer.ggml.bos_token_id": u32(0),
        "tokenizer.ggml.eos_token_id": u32(1),
        "tokenizer.ggml.add_bos_token": boolean(True),
        "tokenizer.chat_template": string("{{ messages }}"),
    }
    tokenizer = back(keys, tmp_path)
    assert tokenizer.encode("a").ids[0] == 0
    assert tokenizer.encode("a", add_special_tokens=False).ids == tokenizer.encode("a").ids[1:]
    text = tokenizer_text(GgufFile.open(tmp_path / "vocab.gguf"), by_name()["llama"])
    assert json.loads(text)["post_processor"] == json.loads(tokenizer.to_str())["post_processor"]
    assert tokenizer_config(GgufFile.open(tmp_path / "vocab.gguf"), 64) == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 64,
        "add_bos_token": True,
        "add_eos_token": False,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "chat_template": "{{ messages }}",
    }


def test_tokenizers_of_other_kinds_are_refused_on_the_way_back(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedBake, match="only llama and gpt2"):
        back(keys_of(known("gpt-2"), tmp_path) | {"tokenizer.ggml.model": string("t5")}, tmp_path)
