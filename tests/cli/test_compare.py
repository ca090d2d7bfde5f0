"""`ropeconv compare`, as a person types it."""

from __future__ import annotations

import json
from pathlib import Path

from ..conftest import CONFIGS, Run

STOCK, DISTILLED = CONFIGS / "Qwen--Qwen3-8B.json", CONFIGS / "deepseek-ai--DeepSeek-R1-0528-Qwen3-8B.json"


def test_what_differs_is_said_with_its_numbers(run: Run) -> None:
    text = run("compare", STOCK, DISTILLED, "--explain").stdout
    assert "They differ in the frequencies (40 of 64 pairs, by up to 4 times) and the attention factor." in text
    assert "at pair 40" in text
    assert f"A: {STOCK}" in text
    rows = {line.split("  ")[0]: line.split()[-3:] for line in text.splitlines() if line}
    assert rows["attention factor"] == ["1", "1.13863", "differs"]
    assert rows["candle 0.11"][-2:] == ["exact", "ignored"]
    short = run("compare", STOCK, DISTILLED).stdout
    assert "rotate_half" not in short
    assert "candle" not in short
    assert text.splitlines()[-1] == short.splitlines()[-1]


def test_the_exit_code(run: Run) -> None:
    same = run("compare", STOCK, STOCK, "--exit-code")
    assert (same.returncode, "They compute the same RoPE." in same.stdout) == (0, True)
    for second, flags, code in ((DISTILLED, (), 0), (DISTILLED, ("--exit-code",), 3), ("nowhere", (), 1)):
        assert run("compare", STOCK, second, *flags).returncode == code


def test_json(run: Run) -> None:
    found = json.loads(run("compare", STOCK, DISTILLED, "--json").stdout)
    assert (found["same"], found["differs"]) == (False, ["frequencies", "attention_factor"])
    assert (found["frequencies"]["pairs"], found["frequencies"]["differing"]) == (64, 40)
    assert found["second"]["rope"]["factor"] == 4.0
    assert {"runtime", "display_name", "statuses", "reasons"} == set(found["runtimes"][0])


def test_a_merge(run: Run, tmp_path: Path) -> None:
    (tmp_path / "merge.yaml").write_text(f"base_model: {STOCK}\nmodels: [{{model: {STOCK}}}, {{model: {DISTILLED}}}]")
    found = run("compare", "merge.yaml", "--exit-code")
    assert found.returncode == 3
    assert f"-> ropeconv apply {DISTILLED} --theta 1000000 --context 40960 --replace" in found.stdout
    assert found.stdout.endswith("They cannot be merged unchanged: 1 difference.\n")
    data = json.loads(run("compare", STOCK, DISTILLED, "--merge", "--json").stdout)
    assert (data["fits"], [misfit["about"] for misfit in data["misfits"]]) == (False, ["rope"])
    same = run("compare", STOCK, STOCK, STOCK, "--exit-code")
    assert (same.returncode, "They can be merged." in same.stdout) == (0, True)
    for given in ((STOCK,), ("merge.yaml", STOCK)):
        assert run("compare", *given).returncode == 2


def test_an_adapter(run: Run, tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    settings = {"peft_type": "LORA", "r": 16, "base_model_name_or_path": str(DISTILLED), "target_modules": ["q_proj"]}
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(settings))
    shown = run("inspect", "adapter").stdout
    assert "LoRA adapter of rank 16, not a whole model" in shown
    assert json.loads(run("inspect", "adapter", "--json").stdout)["trained_on"]["rope_type"] == "yarn"
    assert run("compare", DISTILLED, "adapter", "--exit-code").returncode == 0
    over = run("compare", STOCK, "adapter", "--exit-code")
    assert (over.returncode, "PEFT loads it without a warning -> ropeconv apply" in over.stdout) == (3, True)
