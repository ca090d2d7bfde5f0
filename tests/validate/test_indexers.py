"""GGUF files of GLM 5, whose indexer chooses the keys that attention sees.

llama.cpp chooses those of transformers, except where scores are equal. A choice among equal scores
does not make a file wrong, and a wrong base does.
"""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from ropeconv.bake.plan import Plan
from ropeconv.engines.llamacpp import LlamaCppEngine
from ropeconv.engines.transformers.load import load_stock
from ropeconv.engines.transformers.patch import choose_all_keys, indexers, patch
from ropeconv.validate import gguf
from ropeconv.validate.comparison import Comparison, Settings
from ropeconv.validate.validation import Validation

from ..support.baking import recipe_of
from ..support.llamacpp import LENGTH, beyond, checkpoint, sequence
from ..support.llamacpp import bake as baked
from .test_gguf_against_gguf import with_keys

pytest.importorskip("llama_cpp")

THETA = recipe_of("theta", 2e6, context=256)
TOP_K = "glm-dsa.attention.indexer.top_k"
PADDING = 0
"""A token whose embedding is zeros: every key has the score 0 for it."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint("glm_moe_dsa", tmp_path_factory.mktemp("indexer") / "source")


@pytest.fixture(scope="module")
def plan(source: Path) -> Plan:
    """The plan of a file with another base, which is written without the validation."""
    return baked(source, THETA, source.with_name("theta.gguf"))


def of_transformers(
    source: Path, plan: Plan, ids: list[int], all_keys: bool = False, old_base: bool = False
) -> torch.Tensor:
    """Logits of the source with the schedule of a plan, [tokens, vocabulary].

    all_keys: whether indexers choose all keys. old_base: whether they rotate as the source does.
    """
    model = load_stock(source, "cpu")
    positions = torch.arange(len(ids))[None]
    cos_and_sin = model.model.rotary_emb(torch.zeros(1), positions)
    patch(model, plan.schedule, plan.before.mla)

    def rotate_as_before(module: Any, given: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        hidden_states, queries, _, *rest = given
        return (hidden_states, queries, cos_and_sin, *rest), keywords

    if old_base:
        for module in indexers(model):
            module.register_forward_pre_hook(rotate_as_before, with_kwargs=True)
    with ExitStack() as stack, torch.no_grad():
        if all_keys:
            choose_all_keys(stack, model)
        output = model(input_ids=torch.tensor([ids]), use_cache=False)
    return output.logits[0].float()


def of_llamacpp(plan: Plan, ids: list[int], top_k: int | None = None) -> torch.Tensor:
    """Logits of the file, [tokens, vocabulary]. top_k: the number of keys that are chosen."""
    overrides: dict[str, Any] = {} if top_k is None else {TOP_K: ("int", top_k)}
    engine = LlamaCppEngine(plan.out, overrides)
    return engine.logits(ids, list(range(LENGTH)))


def distances(reference: torch.Tensor, other: torch.Tensor) -> list[float]:
    """Mean KLs at one to two, and at two to four times the trained length."""
    return [result.kl_mean for result in beyond(reference, other)]


def test_llamacpp_chooses_the_keys_that_transformers_chooses(source: Path, plan: Plan) -> None:
    ids = sequence()
    assert PADDING not in ids
    reference = of_transformers(source, plan, ids)
    assert max(distances(reference, of_llamacpp(plan, ids))) <= 1e-7

    # one key fewer changes the logits, and so does an indexer that rotates with the old base
    assert min(distances(reference, of_llamacpp(plan, ids, top_k=23))) >= 1e-3
    with_old_base = of_transformers(source, plan, ids, old_base=True)
    assert min(distances(with_old_base, of_llamacpp(plan, ids))) >= 1e-3


def test_llamacpp_chooses_others_among_equal_scores(source: Path, plan: Plan) -> None:
    ids = sequence()
    ids[100] = PADDING
    own_choices = distances(of_transformers(source, plan, ids), of_llamacpp(plan, ids))
    assert max(own_choices) >= 1e-3
    all_keys = of_transformers(source, plan, ids, all_keys=True)
    assert max(distances(all_keys, of_llamacpp(plan, ids, top_k=LENGTH))) <= 1e-7


def validated(source: Path, out: Path) -> Validation:
    return gguf.validate_gguf(Comparison.open(out, str(source)), Settings())


def test_a_choice_among_equal_scores_does_not_fail_a_file(
    source: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = validated(source, plan.out)
    assert result.agrees, result.sentence
    assert "attention to all keys" in result.sentence
    assert max(bucket.kl_mean for bucket in result.buckets) <= 1e-7

    # where the source keeps its own choice, the same file fails
    monkeypatch.setattr(gguf, "choose_all_keys", lambda stack, model: None)
    assert validated(source, plan.out).sentence.startswith("FAIL")


@pytest.mark.parametrize("theta", [2.2e6, 1e4])
def test_a_wrong_base_fails_all_the_same(
    theta: float, source: Path, plan: Plan, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.gguf"
    with_keys(plan.out, wrong, "freq_base", theta)
    result = validated(source, wrong)
    assert not result.agrees
    assert result.sentence.startswith("FAIL")
