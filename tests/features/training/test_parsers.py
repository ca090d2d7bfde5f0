"""The trainers' own parsers read the files. They are skipped where a trainer is not installed:
axolotl 0.19.0, llamafactory 0.9.5 and trl 1.16.0, with their dependencies.
"""

import ast
import sys
from dataclasses import fields
from typing import Any

import pytest

from ropeconv.features.training.memory import parameter_count
from ropeconv.features.training.training import make_snippet, trainers

from .test_memory import GIB, shape_of
from .test_snippets import baked

yaml = pytest.importorskip("yaml")


def printed(name: str, gpus: int, memory: int) -> str:
    """The file of a trainer for Qwen3-8B with 131,072 tokens."""
    shape = shape_of("Qwen--Qwen3-8B")
    facts = baked(shape=shape, parameters=parameter_count(shape, tied=False))
    return make_snippet(trainers()[name], facts, gpus, memory).text


def test_the_schema_of_axolotl_takes_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    schemas = pytest.importorskip("axolotl.utils.schemas.config")
    liger = pytest.importorskip("axolotl.integrations.liger.args")
    # the schema imports it where a sequence is divided, and it needs CUDA
    monkeypatch.setitem(sys.modules, "ring_flash_attn", ast)

    class Schema(schemas.AxolotlInputConfig, liger.LigerArgs):  # type: ignore[misc, name-defined]
        """As axolotl puts the arguments of a plugin beside its own."""

    given = yaml.safe_load(printed("axolotl", 8, 24 * GIB))
    read = Schema(**given)
    assert (read.sequence_len, read.context_parallel_size) == (131072, 8)
    assert read.liger_fused_linear_cross_entropy is True
    assert read.fsdp_config.reshard_after_forward is True
    with pytest.raises(ValueError, match="requires attn_implementation: flash_attention_2"):
        Schema(**given | {"attn_implementation": "sdpa"})


def test_the_parser_of_llama_factory_takes_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISABLE_VERSION_CHECK", "1")  # of transformers
    parser = pytest.importorskip("llamafactory.hparams.parser")
    from transformers import HfArgumentParser

    given = yaml.safe_load(printed("llama-factory", 8, 141 * GIB))
    known = {field.name for kind in parser._TRAIN_ARGS for field in fields(kind)}
    assert given.keys() <= known
    assert "context_parallel_size" not in known
    # its arguments of training need a GPU
    kinds = [kind for kind in parser._TRAIN_ARGS if kind.__name__ != "TrainingArguments"]
    model = HfArgumentParser(kinds).parse_dict(given, allow_extra_keys=True)[0]
    assert (model.flash_attn, model.enable_liger_kernel) == ("fa2", True)


def test_the_config_of_trl_takes_the_call() -> None:
    trl = pytest.importorskip("trl")
    tree = ast.parse(printed("trl", 8, 24 * GIB))
    given: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "SFTConfig":
            for keyword in node.keywords:
                given[str(keyword.arg)] = ast.literal_eval(keyword.value)
    config = trl.SFTConfig(**given | {"bf16": False}, use_cpu=True)
    assert (config.max_length, config.loss_type) == (131072, "nll")
    assert config.model_init_kwargs == {"dtype": "bfloat16"}
    with pytest.raises(TypeError, match="unexpected keyword"):
        trl.SFTConfig(**given | {"context_parallel_size": 4}, use_cpu=True)
