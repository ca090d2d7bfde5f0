"""Every key of tokenizers and descriptions that llama.cpp's own converter writes is written too.

Each family has the same rich tokenizer: special tokens that some architectures name, several chat
templates, a post-processor that contradicts tokenizer_config.json, and settings of generation.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, processors

from ropeconv.bake.gguf import ExportPlan
from ropeconv.convert.to_gguf.stock import find_converter
from ropeconv.convert.to_gguf.vocabulary import TokenKind
from ropeconv.formats.gguf.file import GgufFile

from ...support.baking import AS_IS, make_plan
from ...support.extent import sample
from ...support.llamacpp import EXPORTED, tokenizer_json
from ...support.models import VOCABULARY
from ...support.stock_tree import OWN_VOCABULARY, published, stock_tree, tree_for_tiny_models

ADDED = (
    "[gMASK]",
    "<|user|>",
    "<|observation|>",
    "<|startoftext|>",
    "<|endofassistant|>",
    "<|im_end|>",
)
"""Tokens by which the converter names special tokens of GLM, Solar Open and others."""
UNMARKED = (
    "<unused7>",
    "<unused8",
    "<mask>",
    "<2mass>",
    "<pad>",
    "[@BOS@]",
    "<|>",
    "<\uff5cfim\uff5c>",
    "<|mixed\uff5c>",
    "<think>",
)
"""Added tokens that tokenizer.json does not call special. Most of them look so, and some do not."""
NEEDS_OTHERS = {
    "deepseek_v32": "a class of transformers with add_bos_token",
    "ernie4_5": "SentencePiece",
    "ernie4_5_moe": "SentencePiece",
    "gemma": "SentencePiece",
    "gemma2": "SentencePiece",
    "gemma4_text": "a tokenizer of Gemma 4",
    "hunyuan_v1_dense": "a tiktoken of Hunyuan",
    "hunyuan_v1_moe": "a tiktoken of Hunyuan",
    "minicpm3": "SentencePiece",
    "nemotron": "SentencePiece",
    "phi3": "SentencePiece",
}
"""Families whose class in the converter reads no byte-level BPE, and what it reads."""
UNREADABLE = {"gpt_neox", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"}
"""Model types on whose configs, as transformers 5 writes them, the converter stops."""
BYTE_LEVEL = [name for name in EXPORTED if not NEEDS_OTHERS.get(name) and name not in UNREADABLE]
DESCRIBED = ("general.sampling.", "tokenizer.")


def rich_tokenizer(folder: Path, begins: bool) -> None:
    """Rewrite the tokenizer of a checkpoint. begins: whether its post-processor adds bos."""
    tokenizer = Tokenizer.from_str(tokenizer_json())
    vocabulary = tokenizer.get_vocab()
    # tokens that were added have the last ids, which are taken from the vocabulary
    added = (*ADDED, *UNMARKED)
    last = sorted(vocabulary, key=vocabulary.__getitem__)[-len(added) :]
    data = json.loads(tokenizer.to_str())
    ids = {text: data["model"]["vocab"].pop(text) for text in last}
    kept = [merge for merge in data["model"]["merges"] if "".join(merge) not in ids]
    data["model"]["merges"] = kept
    for text, index in zip(added, sorted(ids.values()), strict=True):
        token = {"id": index, "content": text, "special": text in ADDED}
        flags = ("single_word", "lstrip", "rstrip", "normalized")
        data["added_tokens"].append(token | dict.fromkeys(flags, False))
    steps: list[Any] = [{"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}]
    steps[0]["use_regex"] = True
    if begins:
        template = processors.TemplateProcessing("<s> $A", "<s> $A <s> $B", [("<s>", 1)])
        alone = Tokenizer(models.BPE())
        alone.post_processor = template
        steps.append(json.loads(alone.to_str())["post_processor"])
    data["post_processor"] = {"type": "Sequence", "processors": steps}
    (folder / "tokenizer.json").write_text(json.dumps(data))

    special = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": not begins}
    special |= {"tokenizer_class": "PreTrainedTokenizerFast", "add_eos_token": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}")
    generation = {"top_k": 20, "top_p": 0.8, "temperature": 0.7, "eos_token_id": [2, 3]}
    generation |= {"repetition_penalty": 1.05, "do_sample": True}
    (folder / "generation_config.json").write_text(json.dumps(generation))


def rewrite(path: Path, **entries: Any) -> None:
    """Change entries of a JSON file; None removes one. Other entries stay, also those of null."""
    data = json.loads(path.read_text()) | entries
    removed = {key for key, value in entries.items() if value is None}
    path.write_text(json.dumps({key: data[key] for key in data if key not in removed}))


def stock_keys(source: Path, tree: Path, folder: Path) -> dict[str, Any]:
    """The keys that llama.cpp's converter writes."""
    converter = find_converter(tree)
    assert converter is not None
    out = folder / "stock.gguf"
    converter.convert(source, out, "bf16", predicts=False, header_only=True)
    header = GgufFile.open(out).header
    return {key: header.get(key) for key in header.values if key.startswith(DESCRIBED)}


def own_keys(source: Path, folder: Path) -> dict[str, Any]:
    plan = make_plan(source, AS_IS, folder / "own.gguf", to="gguf", outtype="bf16")
    assert isinstance(plan, ExportPlan)
    header = plan.exported.model.header
    return {key: header.get(key) for key in header.values if key.startswith(DESCRIBED)}


@pytest.fixture(scope="module")
def with_own_vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stock") / "llama.cpp"
    return tree_for_tiny_models(folder, stock_tree(), OWN_VOCABULARY)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("model_type", sample(BYTE_LEVEL, 5))
def test_every_key_of_the_converter_is_written(
    model_type: str, with_own_vocabulary: Path, tmp_path: Path
) -> None:
    source = published(model_type, tmp_path / "Tiny")
    rich_tokenizer(source, begins=True)
    rewrite(source / "config.json", eos_token_id=[2, 5])
    ours = own_keys(source, tmp_path)
    keys = stock_keys(source, with_own_vocabulary, tmp_path)
    assert len(keys) > 15
    assert keys["tokenizer.ggml.add_bos_token"] is True
    assert len(keys["tokenizer.ggml.tokens"]) == VOCABULARY
    kinds = dict(zip(keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"], strict=True))
    unmarked = {text: TokenKind(kinds[text]) for text in UNMARKED}
    assert set(unmarked.values()) == {TokenKind.CONTROL, TokenKind.USER_DEFINED}
    for key, value in keys.items():
        assert ours.get(key) == value, key


@pytest.mark.parametrize("begins", [True, False])
def test_the_post_processor_decides_and_not_the_config(begins: bool, tmp_path: Path) -> None:
    """tokenizers adds what it says; the config says the opposite here."""
    source = published("llama", tmp_path / "Tiny")
    rich_tokenizer(source, begins)
    ids = Tokenizer.from_file(str(source / "tokenizer.json")).encode("word").ids
    assert (ids[0] == 1) is begins
    keys = own_keys(source, tmp_path)
    assert keys["tokenizer.ggml.add_bos_token"] is begins
    assert keys["tokenizer.ggml.add_eos_token"] is False


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("form", ["absent", "an object"])
def test_a_token_that_the_post_processor_puts_in_front_is_bos(
    form: str, with_own_vocabulary: Path, tmp_path: Path
) -> None:
    """Llama 2 was published with an object, and ChatGLM 3 without a bos token."""
    source = published("llama", tmp_path / "Tiny")
    rich_tokenizer(source, begins=True)
    flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    bos = {"__type": "AddedToken", "content": "<s>", **flags} if form == "an object" else None
    rewrite(source / "tokenizer_config.json", bos_token=bos, add_bos_token=None)
    rewrite(source / "config.json", bos_token_id=3)

    first, *_ = Tokenizer.from_file(str(source / "tokenizer.json")).encode("word").ids
    keys = own_keys(source, tmp_path)
    assert keys["tokenizer.ggml.add_bos_token"] is True
    assert keys["tokenizer.ggml.bos_token_id"] == first == 1
    for key, value in stock_keys(source, with_own_vocabulary, tmp_path).items():
        assert keys.get(key) == value, key


def test_a_token_that_nothing_puts_in_front_is_not_bos(tmp_path: Path) -> None:
    source = published("llama", tmp_path / "Tiny")
    rich_tokenizer(source, begins=False)
    rewrite(source / "tokenizer_config.json", bos_token=None, add_bos_token=None)
    rewrite(source / "config.json", bos_token_id=3)
    keys = own_keys(source, tmp_path)
    assert keys["tokenizer.ggml.add_bos_token"] is False
    assert keys["tokenizer.ggml.bos_token_id"] == 3


NAMES = ("tool_use", "rag", "zeta", "default", "beta", "eta", "alpha")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("place", ["tokenizer_config.json", "additional_chat_templates"])
def test_chat_templates_are_in_the_same_order_each_time(
    place: str, with_own_vocabulary: Path, tmp_path: Path
) -> None:
    """gguf-py lists their names from a set; Command R and Aya have several."""
    source = published("llama", tmp_path / "Tiny")
    rich_tokenizer(source, begins=True)
    if place == "tokenizer_config.json":
        templates = [{"name": name, "template": f"{{{{ {name} }}}}"} for name in NAMES]
        rewrite(source / place, chat_template=templates)
    else:
        (source / "chat_template.jinja").write_text("{{ default }}")
        for name in NAMES:
            if name != "default":
                (source / place / f"{name}.jinja").write_text(f"{{{{ {name} }}}}")

    keys = own_keys(source, tmp_path)
    listed = keys["tokenizer.chat_templates"]
    assert listed == sorted(set(NAMES) - {"default"})
    assert [key for key in keys if key.startswith("tokenizer.chat_template.")] == [
        f"tokenizer.chat_template.{name}" for name in listed
    ]
    assert keys["tokenizer.chat_template"] == "{{ default }}"
    theirs = stock_keys(source, with_own_vocabulary, tmp_path)
    theirs["tokenizer.chat_templates"].sort()
    for key, value in theirs.items():
        assert keys.get(key) == value, key


def test_settings_of_another_kind_are_left_out(tmp_path: Path) -> None:
    source = published("llama", tmp_path / "Tiny")
    settings = {"top_k": "many", "top_p": None, "temperature": True, "min_p": 1}
    (source / "generation_config.json").write_text(json.dumps(settings))
    keys = own_keys(source, tmp_path)
    sampling = {key: value for key, value in keys.items() if ".sampling." in key}
    assert sampling == {"general.sampling.min_p": 1.0}


def test_every_family_is_compared_or_has_a_reason() -> None:
    assert {name for name, kind in NEEDS_OTHERS.items() if kind} <= set(EXPORTED)
    assert set(EXPORTED) >= UNREADABLE
    assert len(BYTE_LEVEL) > 40
