"""A real model is inspected, converted, baked in three encodings, and validated.

`scripts/test --all` runs this by itself, since the weights take half a gigabyte.
`test_patched_gguf.py` has its GGUF.
"""

from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from ropeconv.engines.transformers.engine import TransformersEngine
from ropeconv.engines.transformers.load import DeviceSpec
from ropeconv.engines.transformers.patch import patch
from ropeconv.rope.methods.method import REGISTRY
from ropeconv.rope.recipe import Recipe
from scripts.real_model import RealModel

from ..support.baking import apply, make_plan


def test_the_tokenizer_splits_the_manual_of_python_as_llama_cpp_does(real: RealModel) -> None:
    llama = pytest.importorskip("llama_cpp")
    llama.llama_backend_init()
    settings = llama.llama_model_default_params()
    settings.vocab_only = True
    model = llama.llama_model_load_from_file(str(real.gguf).encode(), settings)
    vocabulary = llama.llama_model_get_vocab(model)
    tokenizer = AutoTokenizer.from_pretrained(real.checkpoint)
    texts = [path.read_text("utf-8") for path in sorted(real.texts.iterdir())]
    assert len(texts) > 50
    for text in texts:
        data = text.encode()
        room = (llama.llama_token * (len(data) + 8))()
        count = llama.llama_tokenize(vocabulary, data, len(data), room, len(room), False, True)
        assert tokenizer(text, verbose=False).input_ids == list(room[:count])
    llama.llama_free_model(model)


@pytest.fixture(scope="module")
def patched(real: RealModel) -> TransformersEngine:
    """The source, loaded once, to be patched."""
    return TransformersEngine.load(real.checkpoint, DeviceSpec("cpu", "float32"))


@pytest.mark.parametrize(
    ("method", "encoding"), [("yarn", "native"), ("mixed", "factors"), ("yarn", "weights")]
)
def test_transformers_computes_the_same_from_a_baked_checkpoint_and_a_patched_model(
    method: str, encoding: str, real: RealModel, patched: TransformersEngine, tmp_path: Path
) -> None:
    plan = make_plan(
        real.checkpoint, Recipe(REGISTRY[method](4.0)), tmp_path / "baked", encoding=encoding
    )
    assert plan.result.encoding == encoding
    stock = TransformersEngine.load(
        apply(plan, link=True, fsync=False), DeviceSpec("cpu", "float32")
    )
    tokenizer = AutoTokenizer.from_pretrained(real.checkpoint)
    ids = tokenizer((real.texts / "class.txt").read_text("utf-8")).input_ids[:160]
    targets = range(1, len(ids))
    undo = patch(patched.model, plan.schedule, plan.source_spec.mla)
    reference = patched.token_losses(ids, targets).loss
    undo()
    assert np.abs(stock.token_losses(ids, targets).loss - reference).max() < 2e-3
    assert np.abs(patched.token_losses(ids, targets).loss - reference).max() > 0.1
