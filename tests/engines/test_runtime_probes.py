"""Probes of installed runtimes: what they say of real ones, and what becomes of programs that
break.

transformers is always asked. vLLM, mlx-lm and exllamav3 are asked where they are installed, or where
ROPECONV_VLLM_PYTHON, ROPECONV_MLX_LM_PYTHON and ROPECONV_EXLLAMAV3_PYTHON name the Python that has
them.
"""

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

import ropeconv
from ropeconv.bake.checkpoint import CheckpointPlan
from ropeconv.engines.probes import installed as probes
from ropeconv.engines.probes.installed import (
    ASKABLE,
    Installation,
    InstalledRuntime,
    find_askable,
    find_installed,
)
from ropeconv.engines.probes.outcome import Outcome, RuntimeAnswer, parse_runtime_answer
from ropeconv.formats.jsontext import JsonObject
from ropeconv.inspection.inspection import ConfigInspection
from ropeconv.models.open import open_source
from ropeconv.rope.errors import RopeconvError
from ropeconv.runtimes.askable import BEFORE_WRITING
from ropeconv.runtimes.asked import asking
from ropeconv.runtimes.evidence import records
from ropeconv.runtimes.runtime import runtimes
from ropeconv.runtimes.verdict import PlannedConfig
from ropeconv.verbs.probing import expected_of
from scripts.gather_pages import ROOT
from scripts.laboratory.cells import cells, sources
from scripts.laboratory.runtimes import RUNTIMES

from ..support.baking import LINEAR, YARN, apply, inspected, make_plan, recipe_of
from ..support.in_process import command

CONFIGS = Path(__file__).parents[1] / "data" / "configs"
QWEN3 = CONFIGS / "Qwen--Qwen3-8B.json"


def runtime(name: str) -> InstalledRuntime:
    """An installed runtime; a test of one that is not installed is skipped."""
    variable = f"ROPECONV_{name.upper().replace('-', '_')}_PYTHON"
    found = find_installed(name, os.environ.get(variable, ""))
    if found is None:
        pytest.skip(f"{name} is not installed; name the Python that has it in {variable}")
    return found


def breaking(program: str, seconds: float = 30.0) -> InstalledRuntime:
    """The installed transformers, asked by another program, without cached answers."""
    found = find_installed("transformers")
    assert found is not None
    found.process.command = [sys.executable, "-c", program]
    found.seconds = seconds
    found.cache.folder = None
    return found


def answer_of(found: InstalledRuntime) -> RuntimeAnswer:
    """The answer of a runtime about Qwen3-8B."""
    return found.ask(json.loads(QWEN3.read_text()), 32768, 40960)


# programs that break


RUBBISH = "print('loading', flush=True)\nimport time\ntime.sleep(60)"
NOT_A_NUMBER = """import sys
for line in sys.stdin:
    rope = '{"inv_freq": [NaN], "attention_factor": 1.0}'
    print('{"ropes": [' + rope + '], "layers": [0]}', flush=True)
"""
NO_SUCH_ROPE = """import sys
for line in sys.stdin:
    print('{"ropes": [], "layers": [3]}', flush=True)
"""
SAYS_NOTHING = "import sys\nfor line in sys.stdin:\n    print('{}', flush=True)"
ENDS = "import sys\nsys.stdin.readline()\nsys.exit('out of memory')"
DIES = "import os, signal, sys\nsys.stdin.readline()\nos.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (RUBBISH, "cannot be read"),
        (NOT_A_NUMBER, "cannot be read"),
        (NO_SUCH_ROPE, "cannot be read"),
        (SAYS_NOTHING, "cannot be read"),
        (ENDS, "code 1 and without an answer: out of memory"),
        (DIES, "code -9 and without an answer"),
    ],
    ids=["rubbish", "NaN", "no such rope", "says nothing", "ends", "dies"],
)
def test_a_program_that_breaks_says_nothing_about_the_runtime(program: str, words: str) -> None:
    found = breaking(program)
    told: list[str] = []
    found.tell = told.append
    inspection = inspected(QWEN3)
    assert isinstance(inspection, ConfigInspection)
    assert found.verdict(inspection.planned) is None
    assert words in answer_of(found).unseen
    assert not found.process.is_running
    assert found.verdict(inspection.planned) is None
    assert len(told) == 2, "it was started once, and the reason is said once"
    assert words in told[1]


def test_a_program_that_hangs_is_ended() -> None:
    found = breaking("import time\ntime.sleep(60)", seconds=0.5)
    assert "did not answer" in answer_of(found).unseen
    assert not found.process.is_running


def test_a_process_that_was_killed_between_two_questions_is_started_again() -> None:
    program = """import sys
for line in sys.stdin:
    print('{"absent": "no model of it"}', flush=True)
"""
    found = breaking(program)
    assert answer_of(found).absent == "no model of it"
    found.process.process.kill()
    found.process.process.wait()
    assert answer_of(found).absent == "no model of it"
    found.stop()


PROGRAM = """
import os, sys
import probe_protocol
print("a library prints at import")
os.write(1, b"so does compiled code")
VERSION = "7.0"

def ask(config, question):
    print("and later")
    kind = config["model_type"]
    if kind == "absent":
        raise probe_protocol.NoModel("no model of it")
    if kind == "refused":
        raise probe_protocol.Refused("load", KeyError("rope_theta"))
    if kind == "needs a GPU":
        raise probe_protocol.Refused("load", RuntimeError("No CUDA GPUs are available"))
    if kind == "needs a package":
        raise probe_protocol.Refused("load", ModuleNotFoundError("No module named 'fla'"))
    if kind == "odd":
        assert False, "three axes"
    if kind == "broken":
        raise ZeroDivisionError("in the probe")
    return probe_protocol.answer([probe_protocol.rope([0.5, 0.25], 1.5), None])
"""


def test_the_protocol_keeps_answers_apart_from_what_libraries_print(tmp_path: Path) -> None:
    (tmp_path / "ask_stand_in.py").write_text(PROGRAM)
    kinds = ["fine", "absent", "refused", "needs a GPU", "needs a package", "odd", "broken"]
    lines = ""
    for kind in kinds:
        question = {"config": {"model_type": kind}, "trained": 8, "context": 16}
        lines += json.dumps(question) + "\n"
    done = subprocess.run(
        [sys.executable, probes.FOLDER / "run_probe.py", "ask_stand_in"],
        input=lines.encode(),
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        check=True,
        timeout=60,
    )
    answers = [parse_runtime_answer(line) for line in done.stdout.splitlines()]
    assert None not in answers
    fine, absent, refused, gpu, package, odd, broken = [a for a in answers if a is not None]
    assert fine.version == "7.0"
    assert fine.layers == (0, None)
    assert fine.ropes[0].attention_factor == 1.5
    assert absent.absent == "no model of it"
    assert (refused.stage, refused.error) == ("load", "KeyError: 'rope_theta'")
    for nothing in (gpu, package, odd, broken):
        assert nothing.says_nothing, "it is about this machine, or the probe"
        assert not nothing.error
    assert b"and later" in done.stderr


def test_a_runtime_that_cannot_be_imported_says_so(tmp_path: Path) -> None:
    (tmp_path / "ask_stand_in.py").write_text("import a_package_that_is_not_there")
    done = subprocess.run(
        [sys.executable, probes.FOLDER / "run_probe.py", "ask_stand_in"],
        input=b'{"config": {}, "trained": 8, "context": 16}\n',
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        check=True,
        timeout=60,
    )
    answer = parse_runtime_answer(done.stdout)
    assert answer is not None
    assert "a_package_that_is_not_there" in answer.unseen


# which runtimes there are


def test_every_runtime_that_can_be_asked_is_in_the_table_and_has_a_program() -> None:
    names = {row.name for row in runtimes()}
    for askable in ASKABLE:
        assert askable.name in names
        assert (probes.FOLDER / f"{askable.program}.py").is_file()
    assert not {askable.name for askable in ASKABLE} & probes.NOT_ASKED.keys()
    assert probes.NOT_ASKED.keys() <= names


def test_the_help_names_every_runtime_that_can_be_asked(tmp_path: Path) -> None:
    help_of_probe = command(tmp_path, "probe", "--help", code=0).stdout
    assert ropeconv.probe.__doc__ is not None
    help_of_inspect = command(tmp_path, "inspect", "--help", code=0).stdout
    for askable in ASKABLE:
        assert askable.name in help_of_probe
        assert f'"{askable.name}"' in ropeconv.probe.__doc__
    for name in BEFORE_WRITING:
        assert name in help_of_inspect.lower()


def test_the_page_names_every_runtime_whose_record_the_probe_makes() -> None:
    page = " ".join((ROOT / "docs" / "runtimes.md").read_text("utf-8").split())
    (sentence,) = re.findall(r"with what its layers compute: for (.*?) it is that of", page)
    by_probe = {runtime.name for runtime in RUNTIMES if runtime.program.startswith("ask_")}
    assert by_probe == {askable.name for askable in ASKABLE}
    assert set(re.findall(r"[\w-]+", sentence.lower())) - {"and"} == by_probe


@pytest.mark.parametrize(
    "name", ["sglang", "lmdeploy", "turbomind", "mistralrs", "llama.cpp", "nonsense"]
)
def test_other_runtimes_are_refused_with_the_reason(name: str) -> None:
    with pytest.raises(RopeconvError, match=r"cannot be asked: \w+.*vllm"):
        find_installed(name)


def test_a_program_imports_nothing_of_ropeconv() -> None:
    for path in probes.FOLDER.glob("*.py"):
        if path.name.startswith(("ask_", "run_", "probe_")):
            assert "ropeconv." not in path.read_text().replace("ropeconv; ", ""), path.name


def test_a_python_that_does_not_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "python").write_text("#!/bin/sh\necho no\n")
    (tmp_path / "python").chmod(0o755)
    for python in (tmp_path / "python", tmp_path / "nothing"):
        with pytest.raises(RopeconvError, match="does not run as a Python"):
            find_installed("vllm", str(python))


# transformers, which is always there


@pytest.fixture(scope="module")
def transformers() -> InstalledRuntime:
    found = find_installed("transformers")
    assert found is not None
    return found


@pytest.fixture(scope="module")
def tiny() -> dict[str, dict[str, Any]]:
    """The small configs of the lab."""
    return sources(published=False)


@pytest.mark.parametrize("model", ["llama", "olmo3", "phimoe", "gemma3", "deepseek_v3", "smollm3"])
def test_transformers_says_what_its_record_says(
    model: str, transformers: InstalledRuntime, tiny: dict[str, dict[str, Any]]
) -> None:
    """Cells that differ are among them: YaRN without truncation in Olmo 3, LongRoPE in PhiMoE."""
    (record,) = [
        record
        for record in records()
        if (record.runtime, record.version) == ("transformers", transformers.version)
    ]
    grid = list(cells(model, tiny[model]))
    recorded = record.models[model].statuses(tuple(cell.name for cell in grid))
    said = {}
    for cell in grid:
        planned = PlannedConfig(cell.config, cell.family, cell.schedule, cell.before)
        said[cell.name] = transformers.outcome(planned)[1].status
    assert said == recorded
    if model in ("olmo3", "phimoe"):
        assert "differs" in said.values()


def test_the_numbers_are_those_of_the_formula(transformers: InstalledRuntime) -> None:
    """Hand-computed: 1e6^(-2i/128), and YaRN's 0.1 ln 4 + 1."""
    config = json.loads(QWEN3.read_text())
    (plain,) = transformers.ask(config, 32768, 40960).ropes
    expected = [1e6 ** (-2 * pair / 128) for pair in range(64)]
    assert np.allclose(plain.inv_freq, expected, rtol=4e-7)
    assert not plain.switches

    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    (scaled,) = transformers.ask({**config, "rope_scaling": yarn}, 32768, 131072).ropes
    assert scaled.attention_factor == pytest.approx(0.1 * math.log(4) + 1, rel=1e-6)
    assert scaled.inv_freq[0] == pytest.approx(1.0, rel=1e-6)
    assert scaled.inv_freq[63] == pytest.approx(expected[63] / 4, rel=4e-7)


def test_two_lists_are_seen_to_switch(transformers: InstalledRuntime) -> None:
    config = json.loads((CONFIGS / "microsoft--Phi-3-mini-128k-instruct.json").read_text())
    (rope,) = transformers.ask(config, 4096, 131072).ropes
    scaling = config["rope_scaling"]
    width = 2 * len(scaling["long_factor"])
    for pair, (long, short) in enumerate(
        zip(scaling["long_factor"], scaling["short_factor"], strict=True)
    ):
        plain = 1e4 ** (-2 * pair / width)
        assert rope.inv_freq[pair] == pytest.approx(plain / long, rel=1e-6)
        assert rope.short_inv_freq[pair] == pytest.approx(plain / short, rel=1e-6)


def test_a_model_that_transformers_lacks_is_unsupported(transformers: InstalledRuntime) -> None:
    config = {**json.loads(QWEN3.read_text()), "model_type": "qwen33"}
    assert "qwen33" in transformers.ask(config, 32768, 40960).absent


def test_a_config_that_transformers_does_not_read_is_refused(
    transformers: InstalledRuntime,
) -> None:
    config = {**json.loads(QWEN3.read_text()), "num_attention_heads": "many"}
    answer = transformers.ask(config, 32768, 40960)
    assert answer.error
    assert answer.stage in ("config", "load")


# negative controls: an edited output, and a transformers that ignores YaRN


def test_an_output_is_compared_with_its_receipt(llama: Path, tmp_path: Path) -> None:
    """From config.json, everything would be right."""
    out = apply(make_plan(llama, YARN, tmp_path / "out"))
    right = ropeconv.probe("transformers", out)
    assert (right.status, right.is_right) == ("exact", True)
    assert right.attention_factor == pytest.approx(0.1 * math.log(4) + 1, rel=1e-6)
    assert right.deviation is not None
    assert right.deviation < 1e-6

    path = out / "ropeconv.json"
    receipt = json.loads(path.read_text())
    receipt["schedule"]["inv_freq"][3] *= 1.0001
    path.write_text(json.dumps(receipt))
    wrong = ropeconv.probe("transformers", out)
    assert (wrong.status, wrong.is_wrong) == ("differs", True)
    assert "frequencies are 0.9999 to 1 times" in wrong.reason


SITE = """
import transformers.modeling_rope_utils as code
from transformers import PreTrainedModel

def unscaled(config, device=None, seq_len=None, **keys):
    import torch
    dimensions = config.hidden_size // config.num_attention_heads
    base = config.rope_parameters["rope_theta"]
    return base ** (-torch.arange(0, dimensions, 2).float() / dimensions), 1.0

code.ROPE_INIT_FUNCTIONS["yarn"] = unscaled
"""


@pytest.fixture
def ignoring(tmp_path: Path) -> Path:
    """The Python of an environment whose transformers ignores YaRN: that of here, edited."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


def test_a_runtime_that_ignores_the_scaling_is_found_out(
    llama: Path, tmp_path: Path, ignoring: Path
) -> None:
    out = apply(make_plan(llama, YARN, tmp_path / "out"))
    done = command(tmp_path, "probe", "transformers", out, "--python", ignoring, "--json")
    result = json.loads(done.stdout)
    assert done.returncode == 3
    assert result["status"] == "ignored"
    assert result["attention_factor"] == 1.0
    assert result["deviation"] > 0.5


def test_its_answer_beats_the_table(llama: Path, tmp_path: Path, ignoring: Path) -> None:
    """The table says that YaRN is exact in it, so without the question it would be written."""
    words = ("apply", llama, "--yarn", "4", "--runtime", "transformers", "--dry-run", "--json")
    for more in ((), ("--attention-factor", "1")):
        told = json.loads(command(tmp_path, *words, *more, code=0).stdout)
        asked = json.loads(command(tmp_path, *words, *more, "--python", ignoring, code=0).stdout)
        assert (told["encoding"], asked["encoding"]) == ("native", "factors")

    # where no form is exact in it, nothing is written
    named = (*words, "--encoding", "native")
    command(tmp_path, *named, code=0)
    refused = command(tmp_path, *named, "--python", ignoring, code=1)
    assert "transformers" in refused.stderr


# verdicts of other commands


def test_verdicts_are_those_of_the_runtime_that_is_asked(
    llama: Path, transformers: InstalledRuntime
) -> None:
    with asking([transformers]):
        plan = make_plan(llama, YARN, runtimes=("transformers",))
    (verdict,) = [verdict for verdict in plan.result.verdicts if verdict.here]
    assert verdict.status == "exact"
    assert verdict.runtime == f"transformers@{transformers.version}"
    assert verdict.evidence.detail == f"{transformers.version}, here"
    last = [row for row in plan.result.verdicts if row.runtime.startswith("transformers@")][-1]
    assert last is verdict
    assert plan.to_dict()["runtimes"] == [row.to_dict() for row in plan.result.verdicts]

    without = make_plan(llama, YARN, runtimes=("transformers",))
    assert not [verdict for verdict in without.result.verdicts if verdict.here]


class RightRuntime(InstalledRuntime):
    """A runtime that computes every schedule, as one that is asked about RoPE alone."""

    def __init__(self, name: str, version: str) -> None:
        super().__init__(find_askable(name), Installation(sys.executable, {}, ""), version)

    def outcome(
        self, planned: PlannedConfig, options: Mapping[str, object] = MappingProxyType({})
    ) -> tuple[RuntimeAnswer, Outcome]:
        return RuntimeAnswer(version=self.version), Outcome("exact")


@pytest.mark.parametrize(
    ("name", "version", "weights", "status", "word"),
    [
        ("mlx-lm", "0.32.2", {"quant_method": "fp8"}, "unknown", "fp8"),
        ("mlx-lm", "0.32.2", {"quant_method": "compressed-tensors"}, "unknown", "formats"),
        ("vllm", "0.33.0", {"quant_method": "auto-round", "bits": 4}, "unknown", "auto-round"),
        ("vllm", "0.33.0", {"quant_method": "fp8"}, "exact", ""),
        # mlx-lm 0.32.1 is the first version of the table that loads it
        ("mlx-lm", "0.32.2", {"quant_method": "mxfp8"}, "exact", ""),
        ("mlx-lm", "0.30.2", {"quant_method": "mxfp8"}, "unsupported", "mxfp8"),
    ],
)
def test_an_answer_about_rope_does_not_lift_a_verdict_on_quantised_weights(
    name: str,
    version: str,
    weights: JsonObject,
    status: str,
    word: str,
    llama: Path,
    tmp_path: Path,
) -> None:
    config = json.loads((llama / "config.json").read_text())
    source = tmp_path / "config.json"
    source.write_text(json.dumps({**config, "quantization_config": weights}))
    with asking([RightRuntime(name, version)]):
        plan = make_plan(source, LINEAR)
    (verdict,) = [verdict for verdict in plan.result.verdicts if verdict.here]
    assert verdict.status == status
    assert word in verdict.reason
    assert (verdict.grade == "run") == (status == "exact")


def test_an_output_does_not_depend_on_what_is_installed(llama: Path, tmp_path: Path) -> None:
    """Its receipt has the table only, so the same command finds it complete on another machine."""
    words = ("apply", llama, "--yarn", "4", "--runtime", "hf", "-o", tmp_path / "out")
    command(tmp_path, *words, "--python", sys.executable, code=0)
    receipt = (tmp_path / "out" / "ropeconv.json").read_bytes()
    assert b", here" not in receipt
    command(tmp_path, *words, code=0)
    assert (tmp_path / "out" / "ropeconv.json").read_bytes() == receipt


def test_the_screens_say_that_it_was_run_here(llama: Path, tmp_path: Path) -> None:
    asked = ("--python", sys.executable)
    version = ropeconv.probe("transformers", llama).version
    words = f"transformers {version} (run here)"
    assert words in command(tmp_path, "inspect", llama, *asked, code=0).stdout
    yarn = ("apply", llama, "--yarn", "4", "--dry-run")
    assert words in command(tmp_path, *yarn, "--runtime", "hf", *asked, code=0).stdout
    assert words not in command(tmp_path, *yarn, code=0).stdout


def test_advice_counts_the_methods_that_the_installed_runtime_computes(
    llama: Path, tmp_path: Path, transformers: InstalledRuntime
) -> None:
    words = ("advise", llama, "--context", "256")
    name = f"transformers {transformers.version} (run here)"
    alone = command(tmp_path, *words, code=0).stdout
    assert name not in alone
    with_python = (*words, "--python", sys.executable)
    text = command(tmp_path, *with_python, code=0).stdout
    (line,) = [line for line in text.splitlines() if line.startswith(name)]
    supported, methods = map(int, re.findall(r"(\d+) of (\d+) methods", line)[0])

    document = json.loads(command(tmp_path, *with_python, "--json", code=0).stdout)
    statuses = [
        runtime["status"]
        for row in document["advice"]
        for runtime in row["outputs"]["safetensors"]["runtimes"]
        if runtime["evidence_detail"] == f"{transformers.version}, here"
    ]
    assert methods == len(statuses) == len(document["advice"])
    assert supported == statuses.count("exact") + statuses.count("rounded") > 0


def test_a_named_runtime_that_is_not_installed_is_said_to_be_run_elsewhere(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes.importlib.util, "find_spec", lambda name: None)
    words = ("apply", llama, "--yarn", "4", "--dry-run", "--runtime", "vllm")
    assert "(not run here)" in command(tmp_path, *words, code=0).stdout


def test_python_without_a_runtime_to_ask_is_refused(llama: Path, tmp_path: Path) -> None:
    words = ("apply", llama, "--yarn", "4", "--dry-run", "--python", sys.executable)
    assert command(tmp_path, *words).returncode == 2
    assert command(tmp_path, *words, "--runtime", "sglang").returncode == 2


# the cache


def test_an_answer_is_cached_by_the_config_and_the_versions(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    inspection = inspected(llama)
    assert isinstance(inspection, ConfigInspection)
    first = find_installed("transformers")
    assert first is not None
    assert first.outcome(inspection.planned)[1].status == "exact"
    first.stop()

    def refuse() -> None:
        raise AssertionError("it was started")

    again = find_installed("transformers")
    assert again is not None
    monkeypatch.setattr(again.process, "start", refuse)
    assert again.outcome(inspection.planned)[1].status == "exact"
    again.installation.versions["torch"] = "9.9"
    with pytest.raises(AssertionError, match="it was started"):
        again.outcome(inspection.planned)


# runtimes that a machine may have


@pytest.mark.parametrize("name", ["vllm", "mlx-lm", "exllamav3"])
def test_a_runtime_computes_yarn_as_transformers_does(
    name: str, llama: Path, tmp_path: Path, transformers: InstalledRuntime
) -> None:
    found = runtime(name)
    out = apply(make_plan(llama, YARN, tmp_path / "out"))
    config = json.loads((out / "config.json").read_text())
    (theirs,) = found.ask(config, 64, 256).ropes
    (ours,) = transformers.ask(config, 64, 256).ropes
    found.stop()
    assert np.allclose(theirs.inv_freq, ours.inv_freq, rtol=2e-6)
    assert theirs.attention_factor == pytest.approx(ours.attention_factor, rel=2e-6)


@pytest.mark.parametrize("name", ["vllm", "mlx-lm", "exllamav3"])
def test_a_runtime_is_found_out_where_it_computes_something_else(
    name: str, llama: Path, tmp_path: Path
) -> None:
    """Two lists, of which vLLM applies one to every position, and the others too."""
    found = runtime(name)
    pairs = 32
    lists = (tuple(2.0 for _ in range(pairs)), tuple(1.0 for _ in range(pairs)))
    recipe = recipe_of("longrope", *lists, context=256)
    plan = make_plan(llama, recipe, tmp_path / "out", runtimes=("transformers",))
    source = open_source(str(apply(plan)))
    inspection = inspected(tmp_path / "out")
    assert isinstance(inspection, ConfigInspection)
    _, outcome = found.outcome(expected_of(inspection, source))  # type: ignore[arg-type]
    found.stop()
    assert outcome.status in ("differs", "refused")


@pytest.mark.parametrize("name", ["vllm"])
def test_a_window_that_is_shorter_than_the_context_is_seen(name: str) -> None:
    """vLLM starts Phi-3 with its trained length, unless --max-model-len says otherwise."""
    found = runtime(name)
    phi: Any = CONFIGS / "microsoft--Phi-3-mini-128k-instruct.json"
    answer = found.ask(json.loads(phi.read_text()), 4096, 131072)
    found.stop()
    assert answer.window == 4096


def test_a_class_that_cannot_be_imported_here_is_not_refused(tmp_path: Path) -> None:
    """The classes of vision models import torchvision, which says nothing about their RoPE."""
    site = tmp_path / "site" / "torchvision"
    site.mkdir(parents=True)
    (site / "__init__.py").write_text("raise RuntimeError('built for another torch')")
    python = tmp_path / "python"
    command = runtime("vllm").installation.python
    python.write_text(f'#!/bin/sh\nPYTHONPATH={site.parent} exec {command} "$@"\n')
    python.chmod(0o755)
    found = find_installed("vllm", str(python))
    assert found is not None
    config = json.loads((CONFIGS / "Qwen--Qwen2.5-VL-7B-Instruct.json").read_text())
    answer = found.ask(config, 32768, 128000)
    found.stop()
    assert answer.says_nothing
    assert not answer.error


MORE = CONFIGS.with_name("more_configs")


@pytest.mark.parametrize(
    "model",
    [
        "Qwen--Qwen3-VL-8B-Instruct",  # imports torchvision, which is not installed everywhere
        "google--gemma-3-4b-it",
        "moonshotai--Kimi-K2.5",  # moves its vision tower to a device while it is built
        "XiaomiMiMo--MiMo-V2-Flash",  # has narrower values than keys
        "deepseek-ai--DeepSeek-V3.2",  # chooses tokens in a kernel that CPUs do not have
        "zai-org--GLM-5",
    ],
)
def test_vllm_builds_models_that_need_more_than_a_cpu(
    model: str, transformers: InstalledRuntime
) -> None:
    """Its frequencies are those of transformers, and follow the base of the config."""
    found = runtime("vllm")
    config = json.loads((MORE / f"{model}.json").read_text())
    answer = found.ask(config, 4096, 16384)
    reference = transformers.ask(config, 4096, 16384)
    assert (answer.error, answer.unseen) == ("", "")
    assert answer.layers
    ropes = {rope.inv_freq[-1]: rope for rope in reference.ropes}
    assert len(answer.ropes) == len(ropes)
    for rope in answer.ropes:
        nearest = min(ropes, key=lambda slowest: abs(slowest - rope.inv_freq[-1]))
        assert np.allclose(rope.inv_freq, ropes[nearest].inv_freq, rtol=4e-6)
        assert rope.attention_factor == pytest.approx(ropes[nearest].attention_factor, rel=2e-6)

    # the control: another base is noticed
    for part in (config, config.get("text_config", {})):
        for place in (part, part.get("rope_parameters") or {}, part.get("rope_scaling") or {}):
            if "rope_theta" in place:
                place["rope_theta"] *= 8
    config.get("text_config", config)["rope_theta"] = 8e7
    moved = found.ask(config, 4096, 16384)
    found.stop()
    assert moved.ropes != answer.ropes


def test_vllm_needs_the_files_of_a_processor_for_some_models() -> None:
    """Llama 3.2 Vision has no file in vLLM 0.32, and its backend asks for the image processor."""
    found = runtime("vllm")
    model: Any = MORE / "meta-llama--Llama-3.2-11B-Vision-Instruct.json"
    answer = found.ask(json.loads(model.read_text()), 8192, 131072)
    found.stop()
    assert answer.says_nothing or answer.absent
    assert "trust" not in answer.unseen.partition(". ")[0]


def test_transformers_refuses_a_text_model_with_a_text_config(
    transformers: InstalledRuntime,
) -> None:
    """The first publication of Ministral 3 3B, whose model type is that of its text model."""
    config = json.loads((CONFIGS / "mistralai--Ministral-3-3B-2512.json").read_text())
    answer = transformers.ask(config, 16384, 262144)
    assert answer.stage == "load"
    assert answer.error.startswith("AttributeError: 'dict' object")
    # the control: the text model alone is built
    assert transformers.ask(config["text_config"], 16384, 262144).ropes


def test_vllm_has_no_positions_beyond_the_factor_of_yarn(llama: Path, tmp_path: Path) -> None:
    """Its table of cosines has a row for each position up to 8 * 64 (yarn_scaling_rope.py:79)."""
    found = runtime("vllm")
    statuses = {}
    for context in (512, 1024):
        plan = make_plan(llama, recipe_of("yarn", 8.0, context=context), tmp_path / str(context))
        assert isinstance(plan, CheckpointPlan)
        written = PlannedConfig(
            plan.result.config, plan.result.family, plan.schedule, plan.source_spec
        )
        statuses[context] = found.outcome(written)[1].status
    found.stop()
    assert statuses == {512: "exact", 1024: "refused"}
