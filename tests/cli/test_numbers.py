"""Every option of every command that takes a number refuses what is none, in one sentence, and writes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from ropeconv.cli.app import find
from ropeconv.cli.command import METHOD, PanelOption

from ..faults.inputs.folders import small_config
from ..faults.inputs.worker import run_command
from ..support.extent import sample

VALUES = ("nan", "-inf", "1e308", "1e999", "-1")
NUMBERS = {"S", "TOKENS", "B"}
BASE = {
    "apply": ["config.json", "--dry-run"],
    "advise": ["config.json", "--context", "256"],
    "plot": ["--head-dim", "16"],
    "bound": ["config.json"],
    "validate": ["config.json"],
}
YARN = ["--yarn", "4"]


def options() -> list[tuple[str, str, bool]]:
    """Every numeric option: its command, its flag, and whether it chooses a method."""
    found = []
    for command in BASE:
        for param in find(command).params:
            numeric = isinstance(param.type, click.types.IntParamType | click.types.FloatParamType)
            if isinstance(param, PanelOption) and (numeric or param.metavar in NUMBERS):
                found.append((command, param.opts[0], param.panel == METHOD))
    assert len({flag for _, flag, _ in found}) > 25
    return found


@pytest.mark.parametrize(("command", "flag", "method"), sample(options(), 10))
def test_no_number_is_taken_that_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, flag: str, method: bool
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(small_config()))
    monkeypatch.chdir(tmp_path)
    for value in VALUES:
        beside = [] if method or command == "advise" else YARN
        done = run_command(0, [command, *BASE[command], *beside, f"{flag}={value}"], tmp_path)
        assert done.problem == "", (value, done)
        assert done.code in (1, 2), (value, done)
        assert done.message.count("\n") == 1
