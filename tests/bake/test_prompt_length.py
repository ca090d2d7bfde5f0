"""A prompt of the declared length passes in transformers, tokenizers, Sentence Transformers and
llama.cpp.

Each test puts the source's own file back into the output, and sees the runtime refuse or cut the
same prompt.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from llama_cpp import Llama
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from ropeconv.rope.methods.method import REGISTRY
from ropeconv.rope.recipe import Recipe

from ..support import llamacpp
from ..support.baking import YARN, apply, make_plan
from ..support.models import TRAINED

CONTEXT = 4 * TRAINED
SENTENCE = "sentence_bert_config.json"
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
]
POOLING = {"word_embedding_dimension": 128, "pooling_mode_mean_tokens": True}


def write(path: Path, data: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(data, indent=2) + "\n")


def edit(path: Path, **keys: Any) -> None:
    """Sets keys of a JSON file; a key whose value is None is removed."""
    data = json.loads(path.read_text()) | keys
    write(path, {key: value for key, value in data.items() if value is not None})


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny Llama that limits prompts to its trained length in every file, and its extension to
    four times that.
    """
    root = tmp_path_factory.mktemp("lengths")
    source = llamacpp.checkpoint("llama", root / "source")
    edit(source / "generation_config.json", max_length=TRAINED, eos_token_id=None)
    edit(
        source / "tokenizer_config.json",
        model_max_length=TRAINED,
        max_length=TRAINED,
        pad_token="</s>",
    )
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    tokenizer.enable_truncation(TRAINED)
    tokenizer.save(str(source / "tokenizer.json"))
    write(source / SENTENCE, {"max_seq_length": TRAINED, "do_lower_case": False})
    write(source / "modules.json", MODULES)
    write(source / "1_Pooling" / "config.json", POOLING)
    return source, apply(make_plan(source, YARN, root / "out"))


@pytest.fixture(scope="module")
def prompt(folders: tuple[Path, Path]) -> str:
    """A text of exactly the declared length in tokens."""
    tokenizer = Tokenizer.from_file(str(folders[0] / "tokenizer.json"))
    tokenizer.no_truncation()
    text = ""
    while len(tokenizer.encode(text).ids) < CONTEXT:
        text += "qzxjkvwy"[len(text) % 8]
    assert len(tokenizer.encode(text).ids) == CONTEXT
    return text


def generated(folder: Path, tokens: list[int], **options: Any) -> int:
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.generation_config.eos_token_id = None
    return int(model.generate(torch.tensor([tokens]), **options).shape[1])


@pytest.mark.parametrize("name", ["generation_config.json", "config.json"])
def test_generate_fills_the_declared_context(
    folders: tuple[Path, Path], tmp_path: Path, name: str
) -> None:
    """Without generation_config.json transformers takes the generation parameters from
    config.json.
    """
    source = shutil.copytree(folders[0], tmp_path / "source")
    tokens = llamacpp.sequence(CONTEXT)
    if name == "config.json":
        (source / "generation_config.json").unlink()
        edit(source / "config.json", max_length=TRAINED)
    out = apply(make_plan(source, YARN, tmp_path / "out"))
    assert generated(out, tokens[:-1]) == CONTEXT
    assert generated(out, tokens, max_new_tokens=1) == CONTEXT + 1
    edit(out / name, max_length=TRAINED)
    with pytest.raises(ValueError, match=f"`max_length` is set to {TRAINED}"):
        generated(out, tokens[:-1])


@pytest.mark.parametrize("key", ["model_max_length", "max_len"])
def test_a_tokenizer_keeps_the_prompt(
    folders: tuple[Path, Path], tmp_path: Path, prompt: str, key: str
) -> None:
    source = shutil.copytree(folders[0], tmp_path / "source")
    edit(source / "tokenizer_config.json", **{"model_max_length": None, key: TRAINED})
    both = (source, apply(make_plan(source, YARN, tmp_path / "out")))
    kept = [
        len(AutoTokenizer.from_pretrained(folder)(prompt, truncation=True).input_ids)
        for folder in both
    ]
    assert kept == [TRAINED, CONTEXT]
    kept = [
        len(Tokenizer.from_file(str(folder / "tokenizer.json")).encode(prompt).ids)
        for folder in both
    ]
    assert kept == [TRAINED, CONTEXT]


def test_sentence_transformers_encodes_the_whole_prompt(
    folders: tuple[Path, Path], tmp_path: Path, prompt: str
) -> None:
    model = SentenceTransformer(str(folders[1]), device="cpu")
    assert model.preprocess([prompt])["input_ids"].shape[1] == CONTEXT
    whole = model.encode(prompt)
    old = shutil.copytree(folders[1], tmp_path / "with an old file")
    shutil.copy(folders[0] / SENTENCE, old / SENTENCE)
    cut = SentenceTransformer(str(old), device="cpu")
    assert cut.preprocess([prompt])["input_ids"].shape[1] == TRAINED
    assert abs(whole - cut.encode(prompt)).max() > 1e-3


def test_llamacpp_evaluates_the_whole_prompt(folders: tuple[Path, Path], tmp_path: Path) -> None:
    """With a window of 0 llama.cpp takes that of the file, and at least 256."""
    source = folders[0]
    length = 8 * TRAINED
    tokens = llamacpp.sequence(length)
    windows = {}
    for method in (REGISTRY["yarn"](8.0), REGISTRY["as-is"]()):
        path = tmp_path / f"{method.name}.gguf"
        llamacpp.bake(source, Recipe(method), path)
        model = Llama(str(path), n_ctx=0, verbose=False)
        windows[method.name] = model.n_ctx()
        if method.name == "as-is":
            with pytest.raises((RuntimeError, ValueError)):
                model.eval(tokens)
        else:
            model.eval(tokens)
            assert model.n_tokens == length
    assert windows == {"yarn": length, "as-is": 256}
