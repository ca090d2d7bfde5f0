"""`ropeconv compare`, as a person types it."""

from __future__ import annotations

import json

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
