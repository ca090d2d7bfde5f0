"""Whose model a card says it is, how it was made, and how it is run."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from huggingface_hub import ModelCard

from ropeconv.hub.base_model import BaseModel, inheritable_metadata, name_of
from ropeconv.hub.card import card, list_branch
from ropeconv.hub.options import Branch, PublishOptions
from ropeconv.hub.upload_set import UploadSet, from_folder, from_gguf, planned_upload
from ropeconv.inspection.receipts.receipt import (
    BeforeRecord,
    OriginalRecord,
    Receipt,
    RuntimeRecord,
    SourceRecord,
    StepRecord,
    TargetRecord,
)
from ropeconv.rope.methods.method import REGISTRY
from ropeconv.rope.recipe import Recipe

from ..conftest import hashes
from ..inspection.receipts.test_folders import BEFORE, receipt
from ..support.baking import LINEAR, NTK, apply, inspected, make_plan
from ..support.baking import YARN as YARN_4
from ..support.gguf_files import write
from ..support.in_process import command
from ..support.models import make

YARN: dict[str, Any] = {"method": "yarn", "parameters": {"factor": 16.0}}
AS_IS: dict[str, Any] = {"method": "as-is", "parameters": {}}
HUB = SourceRecord("tiny", "hub", "base/tiny", "c" * 40)
LOCAL = SourceRecord("tiny-yarn16", "folder")
OWN_CARD = "---\nbase_model: somebody/model\nlicense: mit\n---\n# Mine\n"
NO_OPTIONS = PublishOptions()


def made(**more: Any) -> Receipt:
    given: dict[str, Any] = {"source": LOCAL, "recipe": YARN, "original": None}
    return msgspec.structs.replace(receipt(), **given | more)


def text_of(
    upload: UploadSet, base: BaseModel = BaseModel("base/tiny"), ggufs: tuple[str, ...] = ()
) -> str:
    return card(upload, "me/tiny-1k", base, ggufs)


def data_of(text: str) -> Any:
    return ModelCard(text).data


EXPORT = made(
    recipe=AS_IS,
    target=TargetRecord("gguf", outtype="q8_0"),
    original=OriginalRecord(HUB, steps=(StepRecord(YARN, TargetRecord("safetensors"), BEFORE),)),
    before=BeforeRecord("yarn", "yarn", 1.277, 1024, 64, None, None),
)
"""The receipt of a GGUF file of a folder that was extended before."""

MIDDLE = SourceRecord("tiny-yarn4", "hub", "me/tiny-yarn4", "d" * 40)
SECOND = made(
    source=MIDDLE,
    original=OriginalRecord(HUB, steps=(StepRecord(YARN, TargetRecord("safetensors"), BEFORE),)),
    before=BeforeRecord("yarn", "wider yarn", 1.277, 256, 64, None, None),
)
"""The receipt of an output of an output, both of which extend the model of `HUB`."""


@pytest.mark.parametrize(
    ("upload", "options", "name"),
    [
        (UploadSet({}, made(source=HUB), 64), NO_OPTIONS, ("base/tiny", "c" * 40)),
        (UploadSet({}, made(), 64), NO_OPTIONS, ("", "")),
        (UploadSet({}, EXPORT, 64), NO_OPTIONS, ("base/tiny", "c" * 40)),
        (UploadSet({}, SECOND, 64), NO_OPTIONS, ("base/tiny", "c" * 40)),
        (
            UploadSet({}, made(source=MIDDLE, original=OriginalRecord(LOCAL)), 64),
            NO_OPTIONS,
            ("me/tiny-yarn4", "d" * 40),
        ),
        (UploadSet({}, made(), 64, card=OWN_CARD), NO_OPTIONS, ("somebody/model", "")),
        (
            UploadSet({}, made(), 64, card_metadata={"base_model": "keys/say"}),
            NO_OPTIONS,
            ("keys/say", ""),
        ),
        (
            UploadSet({}, made(), 64, card="---\nbase_model: [one/a, two/b]\n---\n"),
            NO_OPTIONS,
            ("one/a", ""),
        ),
        (UploadSet({}, made(), 64, card="---\nbase_model: ../../etc\n---\n"), NO_OPTIONS, ("", "")),
        (
            UploadSet({}, made(), 64, card=OWN_CARD),
            PublishOptions(base_model="given/one"),
            ("given/one", ""),
        ),
        (
            UploadSet({}, made(source=HUB), 64),
            PublishOptions(base_model="given/one"),
            ("given/one", ""),
        ),
    ],
)
def test_the_base_model(upload: UploadSet, options: PublishOptions, name: tuple[str, str]) -> None:
    assert name_of(upload, options) == name


def test_what_the_keys_of_a_file_say(tmp_path: Path) -> None:
    keys: dict[str, Any] = {
        "general.license": "apache-2.0",
        "general.languages": ["en", "fr"],
        "general.tags": ["chat"],
        "general.base_model.0.repo_url": "https://huggingface.co/somebody/model",
        "general.datasets": 3,
    }
    source = write(tmp_path / "m.gguf", extra=keys)
    out = apply(make_plan(source, Recipe(REGISTRY["yarn"](4.0)), tmp_path / "m-yarn4.gguf"))
    upload = from_gguf(out)
    assert upload.card_metadata == {
        "license": "apache-2.0",
        "language": ["en", "fr"],
        "tags": ["chat"],
        "base_model": "somebody/model",
    }
    data = data_of(
        card(upload, "me/m-GGUF", BaseModel("somebody/model", upload.card_metadata), upload.gguf)
    )
    assert (data.license, data.language, data.base_model) == (
        "apache-2.0",
        ["en", "fr"],
        "somebody/model",
    )
    assert data.tags == ["chat", "ropeconv", "yarn", "long-context"]
    assert (data.base_model_relation, data.library_name) == ("quantized", "gguf")


# How it was made, and how it is run


def runtimes(*names: str) -> tuple[RuntimeRecord, ...]:
    return tuple(
        RuntimeRecord(f"{name}@1.0", "exact", display_name=f"{name.upper()} 1.0") for name in names
    )


CANDLE = RuntimeRecord("candle@0.11", "ignored", display_name="candle 0.11")
ONE = ("tiny-Q8_0.gguf",)
STEPS = (
    "ropeconv apply base/tiny --yarn 16 -o step1\nropeconv apply step1 --as-is --to gguf --outtype"
    " q8_0"
)
CHECKPOINT = UploadSet({}, made(source=HUB), 1024)
CARDS: dict[str, tuple[UploadSet, tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "two steps are one extension": (
        UploadSet({}, EXPORT, 1024),
        ONE,
        (
            (
                "extended from 64 to 1,024 tokens with [YaRN](https://arxiv.org/abs/2309.00071)"
                " (Peng et al. 2023; factor 16)"
            ),
            "| context | 64 | 1,024 |",
            "| frequencies | default | yarn |",
            f"```\n{STEPS}\n```",
            f"from commit `{'c' * 40}`",
        ),
        ("as-is (",),
    ),
    "a conversion alone is one": (
        UploadSet({}, made(recipe=AS_IS, source=HUB), 1024),
        ONE,
        ("with its RoPE unchanged", "converted to GGUF"),
        (", extended ",),
    ),
    "two extensions are one of the first source": (
        UploadSet({}, SECOND, 1024),
        (),
        (
            "extended from 64 to 1,024 tokens",
            "| frequencies | default | wider yarn |",
            f"from commit `{'c' * 40}`:",
        ),
        ("256", "d" * 40),
    ),
    "a commit of another repository than the base model": (
        UploadSet({}, made(source=MIDDLE), 1024),
        (),
        (f"from commit `{'d' * 40}` of me/tiny-yarn4",),
        (),
    ),
    "an unchanged model in all runtimes": (
        UploadSet({}, made(recipe=AS_IS, source=HUB, runtimes=runtimes("vllm", "sglang")), 64),
        (),
        ("all runtimes read alike",),
        ("Not fine-tuned", "static"),
    ),
    "an unchanged model that a runtime reads otherwise": (
        UploadSet({}, made(recipe=AS_IS, source=HUB, runtimes=(*runtimes("vllm"), CANDLE)), 64),
        (),
        ("RoPE unchanged", "Silently ignored by candle."),
        ("alike", "Not fine-tuned", "static"),
    ),
    "an unchanged model with a longer context": (
        UploadSet({}, made(recipe=AS_IS, source=HUB), 1024),
        (),
        ("**Not fine-tuned.**",),
        ("static",),
    ),
    "an extended model": (CHECKPOINT, (), ("static", "**Not fine-tuned.**"), ("alike",)),
    "GGUF files have the window in their commands": (
        UploadSet({}, EXPORT, 1024),
        ONE,
        ("llama-server -hf me/tiny-1k -c 1024", "OLLAMA_CONTEXT_LENGTH=1024 ollama serve"),
        ("vllm serve",),
    ),
    "weights of mlx": (
        UploadSet({}, made(source=HUB), 1024, quantised="mlx"),
        (),
        ("library_name: mlx", "mlx_lm.server --model me/tiny-1k"),
        ("AutoModelForCausalLM",),
    ),
    "weights of awq": (
        UploadSet({}, made(source=HUB), 1024, quantised="awq"),
        (),
        ("library_name: transformers", "quantised (awq)", "base_model_relation: quantized"),
        (),
    ),
    "weights as they were": (
        CHECKPOINT,
        (),
        ("**Not fine-tuned.**",),
        ("quantised (", "base_model_relation"),
    ),
    "a checkpoint as GGUF": (CHECKPOINT, ("a.gguf",), ("base_model_relation: quantized",), ()),
    "runtimes by their names": (
        UploadSet({}, made(source=HUB, runtimes=runtimes("vllm", "llama-cpp")), 1024),
        (),
        ("| supported | VLLM 1.0, LLAMA-CPP 1.0 |",),
        ("@1.0",),
    ),
    "runtimes that are wrong": (
        UploadSet({}, made(source=HUB, runtimes=(CANDLE,)), 64),
        (),
        ("Silently ignored by candle.",),
        ("| | runtimes",),
    ),
    "a GGUF file is named as a file": (
        UploadSet(
            {}, made(source=SourceRecord("tiny-Q8_0", "gguf"), target=TargetRecord("gguf")), 64
        ),
        ONE,
        ("ropeconv apply tiny-Q8_0.gguf --yarn 16", "the metadata of the GGUF file"),
        (),
    ),
    "how to run it comes first": (
        replace(CHECKPOINT, kv_cache="KV cache: 2.0 GiB at 1,024 tokens in bfloat16."),
        (),
        ("## How to run it\n\n```python", "**KV cache:** 2.0 GiB at 1,024 tokens in bfloat16."),
        ("stands for the path",),
    ),
    "what memory it takes, and one size of the cache": (
        replace(
            CHECKPOINT,
            kv_cache="KV cache: 4.0 GiB at 1,024 tokens in float32.",
            memory="Memory: weights 1.0 GiB + KV cache 2.0 GiB = 3.0 GiB in vLLM.",
        ),
        (),
        ("**Memory:** weights 1.0 GiB + KV cache 2.0 GiB = 3.0 GiB in vLLM.",),
        ("KV cache:", "4.0 GiB"),
    ),
}
"""Outputs, names of GGUF files, what their cards say, and what they do not say."""


@pytest.mark.parametrize("case", CARDS)
def test_a_card_says_how_an_output_was_made_and_is_run(case: str) -> None:
    upload, ggufs, expected, unsaid = CARDS[case]
    text = text_of(upload, ggufs=ggufs)
    assert [words for words in expected if words not in text] == []
    assert [words for words in unsaid if words in text] == []
    assert (
        text.index("## How to run it")
        < text.index("## Runtime support")
        < text.index("## How it was made")
    )


# The README.md that `apply` writes beside a model


def test_a_folder_gets_a_card_and_keeps_that_of_the_source(llama: Path, tmp_path: Path) -> None:
    (llama / "README.md").write_text("---\nlicense: mit\nlanguage: [en]\n---\n# The base\n")
    command(tmp_path, "apply", "model", "--yarn", "4", "-q", code=0)
    out = tmp_path / "model-yarn4"
    assert (out / "README-source.md").read_text() == (llama / "README.md").read_text()
    text = (out / "README.md").read_text()
    assert (data_of(text).license, data_of(text).language) == ("mit", ["en"])
    assert [
        words for words in ("# model-yarn4", "ropeconv apply model --yarn 4") if words not in text
    ] == []
    upload = from_folder(out)
    assert (upload.own_card, upload.card) == (False, (llama / "README.md").read_text())
    assert {"README.md", "README-source.md"} & {*upload.adds, *upload.copies} == set()


@pytest.mark.parametrize(
    "metadata",
    [
        "license: [",
        "- mit",
        "license: mit\ntags: 7",
        "date: 2024-13-45",
        "license: " + "[" * 3000,
        "license: 2024-01-01",
        "license: {x: 1}",
        "license: mit\ntags: [1, 2024-01-01]\nlanguage: no\ndatasets: [3]",
        "license: mit\nself: 1\nignore_metadata_errors: 1\n2: 3",
        "license: mit\nmodel-index: [{name: a, results: [{task: {type: a}, dataset: {type: a, name:"
        " b}, source: x, metrics: []}]}]",
    ],
)
def test_metadata_that_the_hub_would_refuse_is_left_out(
    metadata: str, llama: Path, tmp_path: Path
) -> None:
    (llama / "README.md").write_text(f"---\n{metadata}\n---\n# The base\n")
    command(tmp_path, "apply", "model", "--yarn", "4", "-q", code=0)
    data = data_of((tmp_path / "model-yarn4" / "README.md").read_text())
    assert (data.license, data.tags) == (
        "mit" if "mit\n" in metadata else None,
        ["ropeconv", "yarn", "long-context"],
    )


@pytest.mark.parametrize(
    ("text", "license"),
    [
        ("---\nlicense: mit\n---\n# The base\n", "mit"),
        ("---\r\nlicense: mit\r\n---\r\n# The base\r\n", "mit"),
        ("---\rlicense: mit\r---\n# The base\n", "mit"),
        ("\ufeff---\nlicense: mit\n---\n# The base\n", "mit"),
        ("\n\n---\nlicense: mit\n---", "mit"),
        ("# The base\n---\nlicense: mit\n---\n", None),
        ("--- \nlicense: mit\n---\n", None),
        ("", None),
    ],
)
def test_metadata_begins_where_the_hub_reads_it(text: str, license: str | None) -> None:
    assert inheritable_metadata(text).get("license") == license


def test_a_card_is_replaced_by_the_next_bake_and_undone_and_an_edited_one_stays(
    llama: Path, tmp_path: Path
) -> None:
    (llama / "README.md").write_text("# The base\n")
    command(tmp_path, "apply", "model", "--yarn", "4", "-q", code=0)
    command(
        tmp_path, "apply", "model-yarn4", "--yarn", "2", "--on-top", "-o", "further", "-q", code=0
    )
    assert "extended from" in (tmp_path / "further" / "README.md").read_text()
    assert (tmp_path / "further" / "README-source.md").read_text() == "# The base\n"
    command(tmp_path, "restore", "further", "-o", "back", "-q", code=0)
    assert hashes(tmp_path / "back") == hashes(llama)
    (tmp_path / "model-yarn4" / "README.md").write_text("# Mine\n")
    done = command(tmp_path, "validate", "model-yarn4", "--against", "model", "--quick", code=0)
    assert "README.md has other contents" in done.stderr
    assert from_folder(tmp_path / "model-yarn4").own_card
    again = command(
        tmp_path, "apply", "model", "--yarn", "2", "-o", "model-yarn4", "--force", code=1
    )
    assert (
        "model-yarn4 has README.md, which ropeconv did not write and --force would delete"
        in again.stderr
    )
    command(
        tmp_path, "apply", "model-yarn4", "--yarn", "2", "--on-top", "-o", "again", "-q", code=0
    )
    assert (tmp_path / "again" / "README.md").read_text() == "# Mine\n"
    command(tmp_path, "restore", "model-yarn4", "-o", "home", "-q", code=0)
    assert hashes(tmp_path / "home") == hashes(llama)


def test_a_replaced_output_is_extended_from_its_first_source(llama: Path, tmp_path: Path) -> None:
    linear = apply(make_plan(llama, LINEAR, tmp_path / "linear"))
    replaced = make_plan(linear, NTK, tmp_path / "ntk", replace=True)
    text = text_of(from_folder(apply(replaced)))
    assert "extended from 64 to 256 tokens" in text
    assert "linear" not in text

    file = write(tmp_path / "m.gguf")
    trained = inspected(file).spec.context
    changed = apply(make_plan(file, LINEAR, tmp_path / "linear.gguf"))
    again = apply(make_plan(changed, NTK, tmp_path / "ntk.gguf", replace=True))
    text = text_of(from_gguf(again), ggufs=ONE)
    assert f"extended from {trained:,} to {4 * trained:,} tokens" in text
    assert "linear, " not in text


# The branches that the card of the main branch lists


@pytest.mark.parametrize(
    ("family", "changes", "options", "words"),
    [
        ("llama", {}, {}, "vllm serve me/m --revision b --max-model-len 256"),
        ("llama", {}, {"runtimes": ("sglang",)}, "sglang serve --model-path me/m --revision b"),
        ("llama", {}, {"runtimes": ("mlx-lm",)}, "vllm serve me/m --revision b"),
        ("qwen2", {"model_type": "mimo"}, {"runtimes": ("vllm",)}, "--trust-remote-code"),
    ],
)
def test_a_branch_is_listed_with_the_command_of_its_next_steps(
    family: str, changes: dict[str, Any], options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    source = make(family, tmp_path / "model")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | changes))
    plan = make_plan(source, YARN_4, tmp_path / "out", **options)
    branch = list_branch(plan, "me/m", "b")
    assert (branch.name, branch.tokens) == ("b", 256)
    assert words in branch.command

    of_main = PublishOptions(repo_id="me/m", branches=(branch,))
    of_branch = PublishOptions(repo_id="me/m", revision="b")
    upload = planned_upload(plan)
    for publication in (of_main, of_branch):
        assert branch.command in card(upload, "me/m", BaseModel(), options=publication)


def test_a_branch_without_a_command_is_loaded_by_its_name(llama: Path, tmp_path: Path) -> None:
    upload = planned_upload(make_plan(llama, YARN_4, tmp_path / "out"))
    publication = PublishOptions(repo_id="me/m", branches=(Branch("b", 256, ""),))
    text = card(upload, "me/m", BaseModel(), options=publication)
    assert '| 256 | load it with `revision="b"` |' in text


def test_the_memory_of_a_card_is_that_of_one_gpu(llama: Path, tmp_path: Path) -> None:
    command(tmp_path, "apply", llama, "--yarn", "4", "-o", "out", "--validate", "off", code=0)
    lines = (tmp_path / "out/README.md").read_text().splitlines()
    [memory] = [line for line in lines if "**Memory:**" in line]
    assert " on one GPU, with one sequence of 256 tokens" in memory
