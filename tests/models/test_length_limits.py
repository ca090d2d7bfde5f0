"""The table of keys that limit a prompt, and how they are found and raised in files of any size."""

from pathlib import Path
from typing import Any

import pytest

import ropeconv
from ropeconv.bake.restore import restore, restore_plan
from ropeconv.models.length_limits import SMALL, limits_in
from ropeconv.rope.errors import RopeconvError

from ..conftest import hashes
from ..support.baking import YARN, apply, inspected, make_plan, recipe_of
from ..support.corruptions import edit, verified
from ..support.models import TRAINED

TOKENIZER = "tokenizer_config.json"


def values(name: str, text: str) -> dict[str, int]:
    return {limit.key: limit.tokens for limit in limits_in(name, (text.encode(),))}


NUMBERS = {
    "4096": 4096,
    "4096.0": 4096,
    "1e3": 1000,
    "1": 1,
    "0": None,
    "-1": None,
    "true": None,
    "null": None,
    str(10**15): None,
    str(10**15 - 1): 10**15 - 1,
    "1000000000000000019884624838656": None,
    '"4096"': None,
}


@pytest.mark.parametrize("value", NUMBERS)
def test_the_limit_of_a_tokenizer(value: str) -> None:
    assert (
        values(TOKENIZER, f'{{"model_max_length": {value}}}').get("model_max_length")
        == NUMBERS[value]
    )


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "generation_config.json",
            '{"max_length": 64, "max_new_tokens": 8, "min_length": 2}',
            {"max_length": 64},
        ),
        (
            "config.json",
            (
                '{"sliding_window": 8, "text_config": {"max_length": 9}, "vision_config":'
                ' {"max_length": 1}}'
            ),
            {"text_config.max_length": 9},
        ),
        (
            "config.json",
            '{"task_specific_params": {"text-generation": {"max_length": 50, "min_length": 1}}}',
            {"task_specific_params.text-generation.max_length": 50},
        ),
        (
            "tokenizer_config.json",
            '{"added_tokens_decoder": {"max_length": 7}, "max_len": 512, "max_length": 8}',
            {"max_len": 512, "max_length": 8},
        ),
        (
            "tokenizer.json",
            '{"truncation": {"max_length": 8, "stride": 1}, "padding": {"strategy": {"Fixed": 4}}}',
            {"truncation.max_length": 8},
        ),
        ("tokenizer.json", '{"truncation": null, "model": {"truncation": {"max_length": 8}}}', {}),
        (
            "processor_config.json",
            (
                '{"text_kwargs": {"max_length": 64, "padding": false}, "images_kwargs":'
                ' {"max_length": 5}, "image_processor": {"max_length": 6}}'
            ),
            {"text_kwargs.max_length": 64},
        ),
        (
            "preprocessor_config.json",
            '{"image_processor_type": "CLIPImageProcessor", "max_length": 64}',
            {"max_length": 64},
        ),
        (
            "preprocessor_config.json",
            (
                '{"max_length": 1024, "feature_extractor_type": "ASTFeatureExtractor",'
                ' "num_mel_bins": 128, "sampling_rate": 16000, "text_kwargs": {"max_length": 64}}'
            ),
            {"text_kwargs.max_length": 64},
        ),
        (
            "sentence_xlm-roberta_config.json",
            '{"max_seq_length": 512, "query_expansion": {"length": 32}}',
            {"max_seq_length": 512},
        ),
        (
            "sentence_bert_config.json",
            '{"processing_kwargs": {"text": {"max_length": 9}}, "document_length": 180}',
            {"processing_kwargs.text.max_length": 9, "document_length": 180},
        ),
        (
            "Modelfile",
            "FROM .\nparameter  num_ctx 4096 \r\nPARAMETER num_predict 9\n# PARAMETER num_ctx 3\n",
            {"PARAMETER num_ctx": 4096},
        ),
        ("notes.json", '{"max_length": 64}', {}),
    ],
)
def test_keys_that_limit_a_prompt_and_keys_that_do_not(
    name: str, text: str, expected: dict[str, int]
) -> None:
    assert values(name, text) == expected


# Folders


def large_tokenizer(folder: Path, limit: int) -> None:
    """A tokenizer.json of 8 MB with a truncation, as tokenizers writes it."""
    vocabulary = ",".join(f'"\u65e5\u672c {i:30}": {i}' for i in range(170_000))
    truncation = (
        f'{{"direction": "Right", "max_length": {limit}, "strategy": "LongestFirst", "stride": 0}}'
    )
    keys = [
        '"version": "1.0"',
        f'"truncation": {truncation}',
        f'"model": {{"vocab": {{{vocabulary}}}}}',
    ]
    path = folder / "tokenizer.json"
    path.write_text("{" + ", ".join(keys) + "}")
    assert path.stat().st_size > 7 * SMALL


LIMITED: dict[str, str] = {
    "generation_config.json": '{"max_length":64,  "é": [1]}\n',
    "tokenizer_config.json": '{\r\n  "model_max_length": 64.0,\r\n  "é": 2\r\n}\r\n',
    "tokenizer.json": (
        '{"version": "1.0", "truncation": {"max_length": 64}, "model": {"vocab": {"é": 0}}}'
    ),
    "sentence_bert_config.json": '{"max_seq_length": 64}',
    "processor_config.json": '{"text_kwargs": {"max_length": 64}}',
    "preprocessor_config.json": '{"max_length": 64}',
    "Modelfile": "FROM .\nPARAMETER num_ctx 64\n",
}


@pytest.fixture
def limited(llama: Path) -> Path:
    """A tiny Llama with files that limit a prompt to its trained length."""
    for name, text in LIMITED.items():
        (llama / name).write_bytes(text.encode())
    return llama


@pytest.mark.parametrize("large", [False, True])
def test_every_file_is_raised_and_verify_accepts_no_other_change(
    large: bool, limited: Path, tmp_path: Path
) -> None:
    if large:
        large_tokenizer(limited, TRAINED)
    plan = make_plan(limited, YARN, tmp_path / "out")
    note = next(
        note
        for note in plan.notes
        if note.startswith("raises to 256 tokens what limited prompts to fewer:")
    )
    out = apply(plan)
    restored = restore(restore_plan(ropeconv.open_source(str(out)), tmp_path / "back"))
    assert hashes(restored.path) == hashes(limited)
    assert not inspected(out).problems
    verified(out, limited)
    for name in LIMITED:
        was = (limited / name).read_bytes()
        content = (out / name).read_bytes()
        assert content == was.replace(b"64.0", b"64").replace(b"64", b"256", 1), name
        assert f"in {name} (64)" in note
        for old, new in (
            (b"256", b"64"),
            (b"256", b"257"),
            *([(b": 0", b": 1")] if name == "tokenizer.json" else []),
        ):
            (out / name).write_bytes(content.replace(old, new, 1))
            with pytest.raises(RopeconvError, match=name):
                verified(out, limited)
        (out / name).write_bytes(content)


def test_inspect_names_every_limit_of_a_folder_that_ropeconv_did_not_make(
    limited: Path, tmp_path: Path
) -> None:
    def problems(folder: Path) -> list[dict[str, Any]]:
        return inspected(folder).to_dict()["problems"]

    assert not problems(limited)
    lengths = {"max_position_embeddings": 256, "seq_length": 64, "max_length": 64}
    edit(limited, "config.json", lambda config: config.update(lengths))
    limit_problems = problems(limited)
    assert {problem["message"].split(" has ")[0] for problem in limit_problems} == {
        *LIMITED,
        "config.json",
    }
    assert {problem["code"] for problem in limit_problems} == {
        "generation",
        "tokenizer",
        "sentence-transformers",
        "processor",
        "modelfile",
        "config",
    }
    assert {problem["repair"] for problem in limit_problems} == {"--as-is"}
    plan = make_plan(limited, recipe_of("as-is"), tmp_path / "out")
    for key in ("seq_length", "max_length"):
        message = f"config.json has {key} = 64, below the declared context of 256"
        assert any(message in problem["message"] for problem in limit_problems)
        assert f"{key} in config.json (64)" in " ".join(plan.notes)
    assert problems(apply(plan)) == []
