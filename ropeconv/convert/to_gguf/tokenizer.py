"""The tokenizer.ggml.* keys from the files of a tokenizer.

Read `tokenizer_keys` first.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ...errors import BadSource, UsageError
from ...formats.files import scratch
from ...formats.gguf.header import (
    ARRAY,
    FLOAT32,
    FORMATS,
    INT32,
    STRING,
    GgufValue,
    array,
    boolean,
    string,
    strings,
)
from ...formats.package_data import package_data
from ...models.family import Gguf
from ...rope.errors import shown
from .vocabulary import (
    COMPOSED,
    AddedToken,
    Bpe,
    PreTokenizer,
    TokenizerConfig,
    TokenizerJson,
    TokenKind,
    Vocabulary,
    check_normalizer,
    composes,
    from_json,
    from_model,
    read,
)

if TYPE_CHECKING:
    from gguf import GGUFWriter
    from gguf.gguf_writer import GGUFValue

TEMPLATES = "tokenizer.chat_templates"
"""The key with the names of chat templates."""
MOST_STEPS = 1 << 25
"""The most merging steps; the 200,000 tokens of gpt-oss take a third of them, in some seconds."""


class Pre(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A pre-tokenizer of llama.cpp; the beginning of pre.toml explains the fields."""

    name: str
    ignore_merges: bool
    steps: tuple[str, ...]
    runs: tuple[str, ...] = ()
    difference: str = ""
    aliases: tuple[str, ...] = ()


class TemplateToken(msgspec.Struct, frozen=True):
    """A special token of a template."""

    id: str = ""
    """Its text."""


class TemplatePiece(msgspec.Struct, frozen=True):
    """A part of a template: a special token, or a text, which is None here."""

    SpecialToken: TemplateToken | None = None


class Processor(msgspec.Struct, frozen=True):
    """A step of tokenizer.json that adds special tokens to a text, or several such steps."""

    type: str = ""
    processors: tuple[Processor, ...] = ()

    single: tuple[TemplatePiece, ...] | None = None
    """The template of one text, for the type TemplateProcessing."""


class PostProcessed(msgspec.Struct, frozen=True):
    """The parts of tokenizer.json with its post-processor and the tokens that it may add."""

    post_processor: Processor | None = None
    added_tokens: tuple[AddedToken, ...] | None = None

    @property
    def steps(self) -> tuple[Processor, ...]:
        """The post-processors that it consists of."""
        if self.post_processor is None:
            return ()
        return self.post_processor.processors or (self.post_processor,)


class SpecialIds(msgspec.Struct, frozen=True):
    """The special tokens of config.json that may be lists."""

    bos_token_id: int | list[int] | None = None
    eos_token_id: int | list[int] | None = None


class PreTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The schema of pre.toml."""

    names: tuple[str, ...]
    """All pre-tokenizers of llama.cpp."""

    pre: tuple[Pre, ...]
    """The pre-tokenizers that are recognised."""


@cache
def pre_table() -> PreTable:
    """Return the table of pre-tokenizers, pre.toml."""
    return package_data("convert/to_gguf/pre.toml", PreTable)


def recognise(tokenizer: TokenizerJson, names: dict[str, str]) -> str:
    """Return llama.cpp's name of the pre-tokenizer in a tokenizer.json (tokenizer.ggml.pre).

    llama.cpp has a fixed way to split text into words for each name. Some names split alike, and
    differ in `ignore_merges`: whether a word that is a token is taken as a whole, before its
    letters are merged. That does not matter where merging makes every token of the vocabulary from
    its own text, as in gpt-oss.

    Args:
        tokenizer: The content of tokenizer.json.
        names: Names that the family has for pre-tokenizers, by the usual ones: {"starcoder":
            "command-r"} for Command R.

    Raises:
        BadSource: Where no known pre-tokenizer splits text in the same way.
    """
    # those that split text as the tokenizer does
    own_steps = steps(tokenizer.pre_tokenizer)
    splitting_alike = [pre for pre in pre_table().pre if pre.steps == own_steps]
    if not splitting_alike:
        cuts = "; ".join(own_steps or ("nothing",))
        raise BadSource(
            "tokenizer.json splits text by a pre-tokenizer that is not in the table"
            f" ({shown(cuts)}), and a guess would change the tokens; if you know its name in"
            " llama.cpp, pass --pre NAME"
        )

    # the first that agrees in ignore_merges too, else the first that splits alike
    ignore_merges = bool(tokenizer.kind.ignore_merges)
    agreeing = [pre for pre in splitting_alike if pre.ignore_merges == ignore_merges]
    best, *_ = agreeing or splitting_alike
    name = names.get(best.name, best.name)
    if agreeing or merges_make_every_token(tokenizer.bpe):
        return name

    stated = str(ignore_merges).lower()
    usual = str(not ignore_merges).lower()
    raise BadSource(
        f"tokenizer.json splits text as llama.cpp's {name}, and has ignore_merges = {stated}, where"
        f" {name} has {usual}: words that are one token, which merging does not make, would become"
        f" other tokens; pass --pre {name} to convert it anyway"
    )


def merges_make_every_token(bpe: Bpe) -> bool:
    """Return whether merging the letters of every token of a vocabulary gives that token.

    False for a vocabulary that takes more than MOST_STEPS.
    """
    if sum(len(text) ** 2 for text in bpe.vocab) > MOST_STEPS:
        return False
    ranks: dict[tuple[str, ...], int] = {}
    for rank, merge in enumerate(bpe.merges):
        # "a b" in files of tokenizers before 0.20, ["a", "b"] since
        pair = tuple(merge.split(" ", 1)) if isinstance(merge, str) else merge
        ranks.setdefault(pair, rank)
    return all(_merge_all(text, ranks) for text in bpe.vocab)


def _merge_all(text: str, ranks: dict[tuple[str, ...], int]) -> bool:
    """Return whether byte-pair encoding joins all letters of a text into one token.

    With the merges (o, w) and (l, ow), "low" becomes l + ow and then low. The pair with the lowest
    rank is merged first, and of several equal pairs the first pair.

    Args:
        text: The text of a token.
        ranks: The place of each merge in the list of merges.
    """
    parts = list(text)
    no_merge = len(ranks)  # behind the rank of every merge
    while len(parts) > 1:
        pair_ranks = [ranks.get(pair, no_merge) for pair in pairwise(parts)]
        best = min(pair_ranks)
        if best == no_merge:
            return False
        at = pair_ranks.index(best)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return True


def steps(pre_tokenizer: PreTokenizer | None) -> tuple[str, ...] | None:
    """Return the steps by which a pre-tokenizer splits text into words, such as ("digits", "gpt2").

    The names of the steps are the names in pre.toml, the table of llama.cpp's pre-tokenizers.

    Returns:
        The names; empty for a pre-tokenizer that does not split text, and None for a pre-tokenizer
        that is missing, or has a step without a name in pre.toml.
    """
    if pre_tokenizer is None:
        return None
    kind = pre_tokenizer.type

    # several pre-tokenizers, one after another
    if kind == "Sequence":
        names = list[str]()
        for inner in pre_tokenizer.pretokenizers:
            names_of_inner = steps(inner)
            if names_of_inner is None:
                return None
            names += names_of_inner
        return tuple(names)

    # ByteLevel splits by GPT-2's regular expression, or not at all
    if kind == "ByteLevel" and not pre_tokenizer.add_prefix_space:
        return ("gpt2",) if pre_tokenizer.use_regex else ()
    # "2024" becomes four words ("digits"), or one word apart from letters ("numbers")
    if kind == "Digits":
        return ("digits",) if pre_tokenizer.individual_digits else ("numbers",)
    # "..." becomes one word; other behaviours have no name
    if kind == "Punctuation" and pre_tokenizer.behavior == "Contiguous":
        return ("punctuation",)

    # A regular expression whose matches are the words. With "Isolated", text between matches
    # becomes words too. With "Removed" and invert, such text is dropped; no text is dropped if the
    # pattern matches every character.
    pattern = pre_tokenizer.pattern
    if kind == "Split" and pattern is not None and pattern.Regex is not None:
        is_isolated = pre_tokenizer.behavior == "Isolated" and not pre_tokenizer.invert
        drops_between = pre_tokenizer.behavior == "Removed" and pre_tokenizer.invert
        if is_isolated or drops_between:
            regex = pattern.Regex.replace("\r", r"\r").replace("\n", r"\n")
            return (f"split {regex}",)
    return None


def tokenizer_keys(
    folder: Path, vocabulary: int, rules: Gguf, pre: str = ""
) -> dict[str, GgufValue]:
    """Return the metadata keys of GGUF for a tokenizer: its tokens, merges and special tokens.

    Args:
        folder: The folder with the files of the tokenizer.
        vocabulary: The number of tokens, which is the number of rows of the embeddings.
        rules: How checkpoints of the family become GGUF, with the family's names of pre-tokenizers
            and its special tokens.
        pre: The name of the pre-tokenizer from the option --pre; empty to find it.

    Raises:
        BadSource: For a folder without a tokenizer, or with a tokenizer that llama.cpp does not
            support.
        UsageError: For an unknown `pre`.
    """
    if pre and pre not in pre_table().names:
        raise UsageError(
            f"--pre {shown(pre)} is not a pre-tokenizer of llama.cpp; choose one of:"
            f" {', '.join(pre_table().names)}"
        )

    # 1. SentencePiece, as for Llama 2: a score for each token, and no merges. Only tokenizer.model
    # has the scores, so it is preferred to a tokenizer.json.
    model = folder / "tokenizer.model"
    data = read(folder / "tokenizer.json", TokenizerJson)
    sentencepiece = None
    if model.is_file():
        sentencepiece = from_model(model, vocabulary)
    # a tokenizer.json with byte fallback is SentencePiece too
    if sentencepiece is None and data is not None and data.kind.byte_fallback:
        sentencepiece = from_json(data, vocabulary)
    if sentencepiece is not None:
        tokens, puts_space_in_front = sentencepiece
        added_tokens = _added_tokens(folder, data, tokens)
        tokens.add(added_tokens)
        keys = _piece_keys(tokens, puts_space_in_front, pre or "default")
        return keys | _special_token_keys(folder, vocabulary, tokens, rules, merges=False)

    # 2. byte-level BPE, as for Llama 3: merges, and a pre-tokenizer, which splits text into words
    if data is None:
        raise BadSource(
            "there is neither tokenizer.json nor a SentencePiece tokenizer.model here; fetch the"
            " tokenizer too"
        )
    tokens, pre_tokenizer_name = _byte_level_tokens(
        data, vocabulary, names_of_family=rules.pre, name_from_user=pre
    )
    added_tokens = _added_tokens(folder, data, tokens)
    tokens.add(added_tokens)
    keys = {
        "tokenizer.ggml.model": string("gpt2"),
        "tokenizer.ggml.pre": string(pre_tokenizer_name),
        "tokenizer.ggml.tokens": strings(tokens.texts),
        "tokenizer.ggml.token_type": array(INT32, tokens.kinds),
    }
    return keys | _special_token_keys(folder, vocabulary, tokens, rules, merges=True)


def _piece_keys(tokens: Vocabulary, prefix_space: bool, pre: str) -> dict[str, GgufValue]:
    """The keys of a SentencePiece tokenizer."""
    return {
        "tokenizer.ggml.model": string("llama"),
        "tokenizer.ggml.pre": string(pre),
        "tokenizer.ggml.tokens": strings(tokens.texts),
        "tokenizer.ggml.scores": array(FLOAT32, tokens.scores),
        "tokenizer.ggml.token_type": array(INT32, tokens.kinds),
        "tokenizer.ggml.add_space_prefix": boolean(prefix_space),
    }


def _byte_level_tokens(
    data: TokenizerJson, vocabulary: int, names_of_family: dict[str, str], name_from_user: str
) -> tuple[Vocabulary, str]:
    """Return the tokens of a byte-level BPE tokenizer, and the name of its pre-tokenizer.

    Args:
        data: The content of tokenizer.json.
        vocabulary: The number of tokens, which is the number of rows of the embeddings.
        names_of_family: Second names of pre-tokenizers in the family of the model, by their usual
            names: {"starcoder": "command-r"} for Command R.
        name_from_user: The name from the option --pre; empty to find the pre-tokenizer by the way
            in which it splits text.

    Returns:
        The tokens, and llama.cpp's name of the pre-tokenizer, such as "qwen2".

    Raises:
        BadSource: For a tokenizer that is not BPE, and a normalizer that llama.cpp does not have.
    """
    if data.kind.type != "BPE":
        raise BadSource(
            f"tokenizer.json has a {data.kind.type} model, and only BPE is converted to GGUF"
        )
    # the only supported normalizer joins characters with their accents (NFC)
    check_normalizer(data.normalizer, COMPOSED)
    pre_tokenizer_name = name_from_user or recognise(data, names_of_family)

    tokens = Vocabulary.of_size(vocabulary)
    for text, index in data.bpe.vocab.items():
        tokens.put(index, text, TokenKind.NORMAL)
    return tokens, pre_tokenizer_name


def values_of(fill: Callable[[GGUFWriter], None]) -> dict[str, GgufValue]:
    """Return the keys that `fill` adds to a gguf.GGUFWriter.

    Every writer starts with an architecture, which is left out.
    """
    import gguf

    writer = gguf.GGUFWriter(None, "llama")
    fill(writer)
    values = {}
    for shard in writer.kv_data:
        for key, entry in shard.items():
            values[key] = _value(entry)
    values.pop("general.architecture", None)
    return values


def _value(entry: GGUFValue) -> GgufValue:
    """Return a value of gguf-py's writer as the number of its type, and its bytes."""
    import gguf

    kind = int(entry.type)
    value = entry.value
    if kind == STRING:
        return string(value)
    if kind != ARRAY:
        return GgufValue(kind, struct.pack("<" + FORMATS[kind], value))

    # gguf-py derives the type of elements from the first one where none was given
    sub_type = entry.sub_type
    if sub_type is None:
        sub_type = gguf.GGUFValueType.get_type(value[0])
    element_kind = int(sub_type)
    if element_kind != STRING:
        return array(element_kind, value)

    texts = []
    for item in value:
        texts.append(item if isinstance(item, bytes) else str(item).encode())
    return strings(texts)


def composes_characters(folder: Path, keys: Mapping[str, GgufValue]) -> bool:
    """Return whether a byte-level tokenizer composes characters (NFC), as llama.cpp does not."""
    data = read(folder / "tokenizer.json", TokenizerJson)
    kind = keys.get("tokenizer.ggml.model")
    if data is None or kind is None or kind.decode() != "gpt2":
        return False
    return composes(data.normalizer)


def _added_tokens(folder: Path, data: TokenizerJson | None, tokens: Vocabulary) -> list[AddedToken]:
    """Return the added tokens of a tokenizer, such as <|im_start|>.

    Args:
        folder: The folder with the files of the tokenizer.
        data: The content of tokenizer.json, or None for a folder without that file.
        tokens: The vocabulary before these tokens are added.
    """
    # all added tokens of tokenizer.json
    added = list(data.added_tokens or ()) if data is not None else []
    ids_in_json = {token.id for token in added}

    # the added tokens of tokenizer_config.json
    config = read(folder / "tokenizer_config.json", TokenizerConfig)
    tokens_in_config = (config.added_tokens_decoder if config is not None else None) or {}
    for token_id, token in tokens_in_config.items():
        # a folder with a tokenizer.json: only tokens with an id that no other token has, and that
        # has a row in the embeddings
        if data is not None:
            has_row = token_id < len(tokens.kinds)
            id_is_free = has_row and tokens.kinds[token_id] == TokenKind.UNUSED
            if not id_is_free or token_id in ids_in_json:
                continue
        added.append(msgspec.structs.replace(token, id=token_id))
    return added


def _special_token_keys(
    folder: Path, vocabulary: int, tokens: Vocabulary, rules: Gguf, merges: bool
) -> dict[str, GgufValue]:
    """Return the metadata keys of GGUF for merges, special tokens and chat templates.

    gguf-py reads and writes these keys, as in llama.cpp's converter.

    Args:
        folder: The folder with the files of the tokenizer.
        vocabulary: The number of tokens, which is the number of rows of the embeddings.
        tokens: The tokens.
        rules: How checkpoints of the family become GGUF, with the special tokens of the family.
        merges: Whether the tokenizer has merges, as byte-level BPE does.
    """
    import gguf

    logging.getLogger("gguf").setLevel(logging.CRITICAL)  # gguf-py logs its findings on stderr

    def add_keys(writer: GGUFWriter) -> None:
        """Write the special tokens, as gguf-py reads them and with corrections, into a writer.

        `folder`, `vocabulary`, `tokens`, `rules` and `merges` are arguments of the outer function.
        """
        try:
            # what gguf-py reads from tokenizer_config.json and config.json
            special = gguf.SpecialVocab(folder, load_merges=merges, n_vocab=vocabulary)

            # whether bos and eos are added to a text, {"bos": True, "eos": False}: corrected by the
            # post-processor of tokenizer.json
            data = read(folder / "tokenizer.json", PostProcessed)
            missing_in_config = _tokens_of_post_processor(folder, data)
            special.add_special_token |= _flags_of_post_processor(
                folder, data, missing_in_config, vocabulary
            )

            # The ids of special tokens, {"bos": 1, "eos": 2}. The post-processor counts most, then
            # gguf-py, then the table of the family.
            ids_of_family = _ids_of_family(folder, tokens, rules)
            ids_of_gguf_py = special.special_token_ids
            ids_of_post_processor = _ids_of_post_processor(data, missing_in_config, vocabulary)
            special.special_token_ids = ids_of_family | ids_of_gguf_py | ids_of_post_processor

            # the chat templates, sorted by name, since gguf-py has them in any order
            if isinstance(special.chat_template, list):
                special.chat_template.sort(key=lambda template: str(template.get("name")))
            special.add_to_gguf(writer, quiet=True)
        except Exception as problem:  # gguf-py does not check the types of its input
            raise BadSource(
                f"gguf-py cannot read the special tokens ({type(problem).__name__}:"
                f" {shown(str(problem))}); correct tokenizer_config.json, tokenizer.json or"
                " config.json"
            ) from None

    # call `add_keys` with a writer that only collects the keys
    values = values_of(add_keys)
    # gguf-py has the names of templates in a set, whose order differs in each process
    if TEMPLATES in values:
        template_names = values[TEMPLATES].decode()
        values[TEMPLATES] = strings(sorted(name.encode() for name in template_names))
    return values


def _tokens_of_post_processor(folder: Path, data: PostProcessed | None) -> dict[str, str]:
    """Return bos_token and cls_token where only the post-processor of tokenizer.json has them.

    A post-processor that puts <s> in front of a text gives {"bos_token": "<s>", "cls_token": "<s>"}
    for a tokenizer_config.json without these keys. gguf-py 0.20 does the same (SpecialVocab in
    gguf/vocab.py), and gguf-py 0.19 does not.

    Args:
        folder: The folder with the files of the tokenizer.
        data: The post-processor of tokenizer.json, or None for a folder without that file.
    """
    config = read(folder / "tokenizer_config.json", dict[str, Any])
    if data is None or not config:
        return {}

    missing_in_config = {}
    for step in data.steps:
        # the special token in front of the text, such as <s> in the template "<s> $A"
        pieces = step.single or ()
        first_token = pieces[0].SpecialToken if len(pieces) > 1 else None
        if first_token is None or not first_token.id:
            continue

        # Only texts are compared, as in gguf-py. Llama 2 has bos_token as an object, which differs
        # from the text <s>, so cls_token becomes <s>.
        text = first_token.id
        is_in_config = text in (config.get("bos_token"), config.get("cls_token"))
        if is_in_config:
            continue
        for key in ("bos_token", "cls_token"):
            if not config.get(key):
                missing_in_config[key] = text
    return missing_in_config


def _ids_of_post_processor(
    data: PostProcessed | None, missing_in_config: Mapping[str, str], vocabulary: int
) -> dict[str, int]:
    """The ids of tokens that `_tokens_of_post_processor` found, {"bos": 1, "cls": 1}."""
    ids = {}
    for key, text in missing_in_config.items():
        for token in (data.added_tokens if data else None) or ():
            if token.content == text and token.id is not None and token.id < vocabulary:
                ids[key.removesuffix("_token")] = token.id
                break
    return ids


def _flags_of_post_processor(
    folder: Path, data: PostProcessed | None, missing_in_config: Mapping[str, str], vocabulary: int
) -> dict[str, bool]:
    """Return whether the post-processor of a tokenizer.json adds bos and eos to a text.

    {"bos": True, "eos": False} means that only bos is added. gguf-py 0.19 finds this out, but with
    mistakes in three cases, so it gets corrected files.

    Args:
        folder: The folder with the files of the tokenizer.
        data: The post-processor of tokenizer.json, or None for a folder without that file.
        missing_in_config: Special tokens of the post-processor that tokenizer_config.json does not
            have, such as {"bos_token": "<s>"}.
        vocabulary: The number of tokens, which is the number of rows of the embeddings.
    """
    import gguf

    if data is None or data.post_processor is None:
        return {}

    # 1. gguf-py only knows the tokens of tokenizer_config.json, so the config is completed.
    config = read(folder / "tokenizer_config.json", dict[str, Any]) or {}
    config |= missing_in_config

    # 2. gguf-py prefers add_bos_token of tokenizer_config.json, and tokenizers ignores it, so it is
    # left out.
    corrected = {key: value for key, value in config.items() if not key.startswith("add_")}
    with scratch() as corrected_folder:
        link = corrected_folder / "tokenizer.json"
        link.symlink_to((folder / "tokenizer.json").resolve())
        target = corrected_folder / "tokenizer_config.json"
        target.write_bytes(msgspec.json.encode(corrected))
        flags_of_gguf_py = gguf.SpecialVocab(corrected_folder, n_vocab=vocabulary).add_special_token

    # 3. gguf-py ignores a byte-level post-processor, which adds neither token. Further steps of the
    # post-processor, which gguf-py reads, may add tokens.
    flags = {}
    if any(step.type == "ByteLevel" for step in data.steps):
        flags = {"bos": False, "eos": False}
    return flags | flags_of_gguf_py


def _ids_of_family(folder: Path, tokens: Vocabulary, rules: Gguf) -> dict[str, int]:
    """Return the ids of special tokens that llama.cpp's converter has in its code for a family.

    For example, {"eot": 151336} for GLM-4, whose turns end with <|user|>.

    Args:
        folder: The folder with the files of the tokenizer.
        tokens: The tokens.
        rules: How checkpoints of the family become GGUF. `rules.special` has the text of each such
            token, {"eot": "<|user|>"}, or the id of the token.
    """
    ids = {}
    id_of_text = {text: token_id for token_id, text in enumerate(tokens.texts)}
    for name, token in rules.special.items():
        token_id = id_of_text.get(token.encode()) if isinstance(token, str) else token
        if token_id is not None and token_id < len(tokens.texts):
            ids[name] = token_id

    # Laguna (`turn_end`) has several ids in eos_token_id, of which one is that of bos. A turn ends
    # with the first of the others.
    config = read(folder / "config.json", SpecialIds)
    if rules.turn_end and config is not None and isinstance(config.eos_token_id, list):
        for token_id in config.eos_token_id:
            if token_id != config.bos_token_id:
                ids["eot"] = token_id
                break
    return ids
