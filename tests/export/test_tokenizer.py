"""Tokenizers in GGUF, as llama.cpp cuts text with them, against the tokenizers library."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from ropeconv.errors import BadSource, UsageError
from ropeconv.export.tokenizer import composes_characters, tokenizer_keys
from ropeconv.export.tokenizer.files import Bpe, TokenizerJson, decoded
from ropeconv.export.tokenizer.pre import merges_make_every_token, pre_table, recognise
from ropeconv.formats.gguf import Edit, GgufFile, string
from ropeconv.formats.gguf.write import write_new
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe

from ..support.baking import apply, make_plan
from ..support.gguf_files import write
from ..support.llamacpp import checkpoint

TEXTS = [
    "Hello, world! It's 12345 o'clock; isn't it?",
    "  leading and   many    spaces\n\n\nnew\tlines \r\n end ",
    "Grüße aus Köln: naïve café, 你好世界, привет мир, こんにちは",
    "def f(x):\n    return x**2 + 3.14159  # comment\n",
    "CamelCaseWords HTTPRequest iPhone 100%! ¿Qué? 😀👍🏽",
    "we'll WE'LL they've I'd I'M don't",
]
VOCABULARY = 600


def corpus() -> list[str]:
    """Text with all kinds of characters in it."""
    here = [path.read_text("utf-8") for path in sorted(Path(__file__).parent.glob("*.py"))]
    return here * 2 + TEXTS * 30


def byte_level(pre: Any, ignore_merges: bool) -> Tokenizer:
    """A byte-level BPE that cuts text as `pre` does."""
    made = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    made.pre_tokenizer, made.decoder = pre, decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
    made.train_from_iterator(corpus(), trainer)
    return made


def parsed(text: str) -> TokenizerJson:
    """A tokenizer.json as the conversion reads it."""
    return decoded(text.encode(), TokenizerJson, "tokenizer.json")


def as_pre_tokenizer(steps: tuple[str, ...]) -> Any:
    """The steps of the table as the tokenizers library has them."""
    found = []
    for step in steps:
        if step in ("digits", "numbers"):
            found.append(pre_tokenizers.Digits(individual_digits=step == "digits"))
        elif step == "punctuation":
            found.append(pre_tokenizers.Punctuation("contiguous"))
        elif step == "gpt2":
            found.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True))
        elif step.startswith("split "):
            found.append(pre_tokenizers.Split(Regex(step.removeprefix("split ")), "isolated"))
    if "gpt2" not in steps:
        found.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return pre_tokenizers.Sequence(found)


def vocabulary_file(keys: dict[str, Any], path: Path) -> None:
    """A GGUF file with the keys of a tokenizer."""
    plain = write(path.with_name("plain.gguf"), vocabulary=1, tensors={"x": np.zeros(32, np.float32)})
    write_new(GgufFile.open(plain), 0, Edit(keys, frozenset({"tokenizer.ggml.scores"} - keys.keys())), path)


def in_llama_cpp(keys: dict[str, Any], folder: Path) -> list[list[int]]:
    """TEXTS as llama.cpp cuts them: the vocabulary alone is loaded, in a process of its own."""
    vocabulary_file(keys, folder / "vocab.gguf")
    return in_python(f"""
import json
from llama_cpp import Llama
model = Llama({str(folder / "vocab.gguf")!r}, vocab_only=True, verbose=False)
print(json.dumps([model.tokenize(text.encode(), add_bos=False, special=True) for text in {TEXTS!r}]))
""")


def in_python(script: str) -> Any:
    """What a script prints as JSON, in a process of its own: llama.cpp aborts on some files."""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("pre", pre_table().pre, ids=lambda pre: pre.name)
def test_every_pre_tokenizer_of_the_table_cuts_as_llama_cpp_does(pre: Any, tmp_path: Path) -> None:
    tokenizer = byte_level(as_pre_tokenizer(pre.steps), pre.ignore_merges)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    keys = tokenizer_keys(tmp_path, VOCABULARY, {})
    assert keys["tokenizer.ggml.pre"].decode() == pre.name
    assert in_llama_cpp(keys, tmp_path) == [tokenizer.encode(text).ids for text in TEXTS]


def test_the_wrong_pre_tokenizer_gives_other_tokens(tmp_path: Path) -> None:
    """The check above can fail."""
    digits = next(pre for pre in pre_table().pre if pre.name == "starcoder")
    tokenizer = byte_level(as_pre_tokenizer(digits.steps), False)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    keys = tokenizer_keys(tmp_path, VOCABULARY, {}, pre="falcon")
    assert in_llama_cpp(keys, tmp_path) != [tokenizer.encode(text).ids for text in TEXTS]


def test_families_call_some_of_them_otherwise() -> None:
    data = parsed(byte_level(as_pre_tokenizer(("digits", "gpt2")), False).to_str())
    assert recognise(data, {}) == "starcoder"
    assert recognise(data, {"starcoder": "command-r"}) == "command-r"


@pytest.mark.parametrize(
    "pre",
    [
        pre_tokenizers.Whitespace(),
        pre_tokenizers.ByteLevel(add_prefix_space=True),
        pre_tokenizers.Split(Regex(r"\p{N}{1,4}"), "isolated"),
        pre_tokenizers.Sequence([pre_tokenizers.Punctuation(), pre_tokenizers.ByteLevel(add_prefix_space=False)]),
    ],
    ids=str,
)
def test_an_unknown_pre_tokenizer_is_an_error_and_never_a_guess(pre: Any) -> None:
    data = parsed(byte_level(pre, False).to_str())
    with pytest.raises(BadSource, match="pass --pre NAME"):
        recognise(data, {})


def with_lookup(made: bool) -> dict[str, Any]:
    """A tokenizer.json that cuts as qwen2 does, and has ignore_merges. made: merging makes all of its tokens."""
    qwen2 = next(pre for pre in pre_table().pre if pre.name == "qwen2")
    data: dict[str, Any] = json.loads(byte_level(as_pre_tokenizer(qwen2.steps), True).to_str())
    model = data["model"]
    for text in [entry["content"] for entry in data["added_tokens"]]:
        model["vocab"].pop(text, None)
    lookup = Tokenizer.from_str(json.dumps({**data, "model": {**model, "ignore_merges": False}}))
    free = {text: number for text, number in model["vocab"].items() if len(lookup.model.tokenize(text)) == 1}
    model["vocab"] = free if made else {**free, "Qzq": VOCABULARY - 1}
    model["merges"] = [merge for merge in model["merges"] if "".join(merge) in free]
    return data


def test_looking_words_up_first_says_nothing_where_merging_makes_every_token(tmp_path: Path) -> None:
    """As in gpt-oss, which has ignore_merges where llama.cpp merges. One token more, and llama.cpp gives others."""
    for made, same in ((True, True), (False, False)):
        (tmp_path / "tokenizer.json").write_text(json.dumps(with_lookup(made)))
        keys = tokenizer_keys(tmp_path, VOCABULARY, {}, pre="" if made else "qwen2")
        assert keys["tokenizer.ggml.pre"].decode() == "qwen2"
        tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        wanted = [tokenizer.encode(text).ids for text in (*TEXTS[:-1], "Qzq")]
        vocabulary_file(keys, tmp_path / "vocab.gguf")
        script = f"""
import json
from llama_cpp import Llama
model = Llama({str(tmp_path / "vocab.gguf")!r}, vocab_only=True, verbose=False)
print(json.dumps([model.tokenize(text.encode(), add_bos=False) for text in {[*TEXTS[:-1], "Qzq"]!r}]))
"""
        assert (in_python(script) == wanted) is same


def test_a_known_pattern_with_other_merging_is_another_one() -> None:
    data = parsed(json.dumps(with_lookup(made=False)))
    with pytest.raises(BadSource, match=r"cuts text as llama\.cpp's qwen2, and has ignore_merges = true") as problem:
        recognise(data, {})
    assert str(problem.value).endswith("pass --pre qwen2 to convert it all the same")
    assert "split" not in str(problem.value)
    with pytest.raises(BadSource, match="pass --pre qwen35x to"):
        recognise(data, {"qwen2": "qwen35x"})


def train_pieces(folder: Path, **options: Any) -> sentencepiece.SentencePieceProcessor:
    """A SentencePiece BPE with byte fallback in tokenizer.model, as Llama 2 and Mistral have it."""
    text = folder / "corpus.txt"
    text.write_text("\n".join(corpus()))
    settings = {
        "model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False, "character_coverage": 0.98, "split_digits": True,
        "allow_whitespace_only_pieces": True, "minloglevel": 2, "vocab_size": VOCABULARY,
    }  # fmt: skip
    sentencepiece.SentencePieceTrainer.Train(
        input=str(text), model_prefix=str(folder / "tokenizer"), **(settings | options)
    )
    text.unlink()
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromFile(str(folder / "tokenizer.model"))
    return processor


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece(tmp_path: Path, prefix: bool) -> None:
    processor = train_pieces(tmp_path, add_dummy_prefix=prefix)
    keys = tokenizer_keys(tmp_path, VOCABULARY, {})
    assert keys["tokenizer.ggml.model"].decode() == "llama"
    assert keys["tokenizer.ggml.add_space_prefix"].decode() is prefix
    kinds = keys["tokenizer.ggml.token_type"].decode()
    assert [kinds[0], kinds[1], kinds[2], kinds[3], kinds[-1]] == [2, 3, 3, 6, 1]
    assert in_llama_cpp(keys, tmp_path) == [processor.EncodeAsIds(text) for text in TEXTS]


@pytest.mark.parametrize("spaces", [["▁▁", "▁▁▁▁"], []], ids=["user-defined pieces of spaces", "none"])
def test_user_defined_pieces_are_found_in_text_with_spaces(tmp_path: Path, spaces: list[str]) -> None:
    """Gemma 2 and 3 have such pieces; llama.cpp searches for them in the text itself."""
    processor = train_pieces(tmp_path, user_defined_symbols=[*spaces, "<h1>"], add_dummy_prefix=False)
    added = [{"id": processor.PieceToId(piece), "content": piece} for piece in [*spaces, "<h1>"]]
    settings = {"added_tokens_decoder": {str(entry["id"]): {"content": entry["content"]} for entry in added}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    keys = tokenizer_keys(tmp_path, VOCABULARY, {})
    assert in_llama_cpp(keys, tmp_path) == [processor.EncodeAsIds(text) for text in TEXTS]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"model_type": "unigram"}, "unigram"),
        ({"normalization_rule_name": "nmt_nfkc"}, "nmt_nfkc"),
        ({"remove_extra_whitespaces": True}, "extra spaces"),
    ],
)
def test_sentencepiece_that_llama_cpp_does_not_have_is_refused(
    tmp_path: Path, options: dict[str, Any], what: str
) -> None:
    train_pieces(tmp_path, **options)
    with pytest.raises(BadSource, match=what):
        tokenizer_keys(tmp_path, VOCABULARY, {})


def test_composition_is_noted_since_llama_cpp_does_not_compose(tmp_path: Path) -> None:
    """As of Qwen 2 and 3: decomposed text becomes other tokens, composed text the same."""
    source = checkpoint("qwen2", tmp_path / "source")
    plan = make_plan(source, Recipe(REGISTRY["as-is"]()), tmp_path / "out.gguf", to="gguf")
    assert not any("NFC" in line for line in plan.warnings)
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.save(str(source / "tokenizer.json"))
    plan = make_plan(source, Recipe(REGISTRY["as-is"]()), tmp_path / "out.gguf", to="gguf")
    assert any("llama.cpp does not compose characters (NFC)" in line for line in plan.warnings)
    pytest.importorskip("llama_cpp")
    apply(plan)
    for text, same in (("caf\u00e9", True), ("cafe\u0301", False)):
        path = tmp_path / "out.gguf"
        script = (
            f"import json; from llama_cpp import Llama; model = Llama({str(path)!r}, vocab_only=True, verbose=False)"
        )
        script += f"; print(json.dumps(model.tokenize({text!r}.encode(), add_bos=False)))"
        assert (in_python(script) == tokenizer.encode(text).ids) is same


def test_a_normalizer_that_changes_text_is_refused(tmp_path: Path) -> None:
    tokenizer = byte_level(as_pre_tokenizer(("gpt2",)), False)
    for normalizer, refused in (
        (normalizers.NFC(), False),
        (normalizers.Lowercase(), True),
        (normalizers.NFKC(), True),
    ):
        tokenizer.normalizer = normalizers.Sequence([normalizer])
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        if not refused:
            keys = tokenizer_keys(tmp_path, VOCABULARY, {})
            assert composes_characters(tmp_path, keys)
            assert not composes_characters(tmp_path, {**keys, "tokenizer.ggml.model": string("llama")})
            continue
        with pytest.raises(BadSource, match="normalizes text"):
            tokenizer_keys(tmp_path, VOCABULARY, {})


def test_only_names_that_llama_cpp_takes_are_accepted(tmp_path: Path) -> None:
    byte_level(as_pre_tokenizer(("gpt2",)), False).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UsageError, match="no pre-tokenizer of llama.cpp; take one of: .*qwen2"):
        tokenizer_keys(tmp_path, VOCABULARY, {}, pre="nonsense")
    assert tokenizer_keys(tmp_path, VOCABULARY, {}, pre="mpt")["tokenizer.ggml.pre"].decode() == "mpt"


def test_llama_cpp_takes_every_name_of_the_list_and_no_other(tmp_path: Path) -> None:
    byte_level(as_pre_tokenizer(("gpt2",)), False).save(str(tmp_path / "tokenizer.json"))
    keys = tokenizer_keys(tmp_path, VOCABULARY, {})
    assert {pre.name for pre in pre_table().pre} <= set(pre_table().names)
    tried = [*pre_table().names, "nonsense", "qwen", "llama"]
    for name in tried:
        vocabulary_file(keys | {"tokenizer.ggml.pre": string(name)}, tmp_path / f"{name}.gguf")
    script = f"""
import json
from llama_cpp import Llama
def loads(name):
    try:
        return bool(Llama(f"{tmp_path}/{{name}}.gguf", vocab_only=True, verbose=False))
    except ValueError:
        return False
print(json.dumps([name for name in {tried!r} if loads(name)]))
"""
    assert in_python(script) == list(pre_table().names)


def test_sentencepiece_from_tokenizer_json_alone(tmp_path: Path) -> None:
    """The merges of the converted model in place of its scores."""
    processor = train_pieces(tmp_path)
    pieces = [processor.IdToPiece(index) for index in range(VOCABULARY)]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    ranked = sorted(
        ((-processor.GetScore(index), piece[:cut], piece[cut:]) for index, piece in enumerate(pieces) if index > 258
         for cut in range(1, len(piece)) if piece[:cut] in vocabulary and piece[cut:] in vocabulary)
    )  # fmt: skip
    made = Tokenizer(
        models.BPE(vocabulary, [(left, right) for _, left, right in ranked], unk_token="<unk>", byte_fallback=True)
    )
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.ByteFallback()
    (tmp_path / "tokenizer.model").unlink()
    made.save(str(tmp_path / "tokenizer.json"))
    keys = tokenizer_keys(tmp_path, VOCABULARY, {})
    assert keys["tokenizer.ggml.add_space_prefix"].decode() is True
    assert in_llama_cpp(keys, tmp_path) == [made.encode(text).ids for text in TEXTS]


def test_added_tokens_special_tokens_and_the_chat_template_go_along(tmp_path: Path) -> None:
    tokenizer = byte_level(as_pre_tokenizer(("gpt2",)), False)
    tokenizer.add_special_tokens(["<|im_start|>"])
    tokenizer.add_tokens(["<think>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True, "chat_template": "{{ messages }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    keys = tokenizer_keys(tmp_path, VOCABULARY + 10, {})
    tokens, kinds = (keys[f"tokenizer.ggml.{name}"].decode() for name in ("tokens", "token_type"))
    assert (tokens[VOCABULARY], kinds[VOCABULARY]) == ("<|im_start|>", 3)
    assert (tokens[VOCABULARY + 1], kinds[VOCABULARY + 1]) == ("<think>", 4)
    assert (tokens[VOCABULARY + 2], kinds[VOCABULARY + 2]) == ("[PAD602]", 5)
    assert keys["tokenizer.ggml.bos_token_id"].decode() == 0
    assert keys["tokenizer.ggml.eos_token_id"].decode() == 1
    assert keys["tokenizer.ggml.add_bos_token"].decode() is True
    assert keys["tokenizer.chat_template"].decode() == "{{ messages }}"
    assert len(keys["tokenizer.ggml.merges"].decode()) == VOCABULARY - 256 - 2
    text = "<|im_start|>hi<think>there"
    assert tokenizer.encode(text).ids[0] == VOCABULARY


def test_a_tokenizer_with_more_tokens_than_embeddings_is_another_models(tmp_path: Path) -> None:
    byte_level(as_pre_tokenizer(("gpt2",)), False).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(BadSource, match="the embeddings have 500 rows"):
        tokenizer_keys(tmp_path, 500, {})


def test_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(BadSource, match="neither tokenizer.json nor"):
        tokenizer_keys(tmp_path, 500, {})
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"type": "WordPiece", "vocab": {}}}))
    with pytest.raises(BadSource, match="WordPiece"):
        tokenizer_keys(tmp_path, 500, {})


def test_a_vocabulary_that_takes_long_to_merge_is_not_tried() -> None:
    """Ten tokens of 20,000 letters take minutes to merge, and a hostile file may have them."""
    letters, merges = {"a" * 20_000 + str(index): index for index in range(10)}, [("a", "a"), "a a", ""]
    before = time.process_time()
    assert not merges_make_every_token(Bpe(letters, tuple(merges)))
    assert time.process_time() - before < 1
    assert merges_make_every_token(Bpe({"a": 0, "aa": 1, "aaa": 2}, (("a", "a"), "aa a")))
    assert not merges_make_every_token(Bpe({"a": 0, "aa": 1, "aaa": 2}, ("a a",)))
