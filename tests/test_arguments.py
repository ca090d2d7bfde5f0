"""The functions of Python refuse arguments of another type, and accept whole numbers of any."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropeconv
from ropeconv.errors import UsageError

Call = Callable[[], object]
api: Any = ropeconv
"""The package without its types, since a type checker rejects most calls below."""


WRONG: dict[str, Call] = {
    "dry_run": lambda: api.apply("m", yarn=4, dry_run="no"),
    "probe": lambda: api.apply("m", yarn=4, probe=3),
    "methods": lambda: api.profiles("m", None),
    "methods=[4]": lambda: api.profiles("m", [4]),
    "out": lambda: api.profiles("m", "base", out=4),
    "reporter": lambda: api.profiles("m", "base", reporter=print),
    "in_place": lambda: api.restore("m", in_place="yes"),
    "fsync": lambda: api.restore("m", fsync=1),
    "trainer": lambda: api.train_config("m", ["trl"]),
    "family": lambda: api.inspect("m", family=3),
    "measured": lambda: api.advise("m", 4096, measured=3),
    "dark": lambda: api.plot("m", yarn=4, dark=1),
    "rotary_dim": lambda: api.bound(4096, rotary_dim="64"),
    "head_dim": lambda: api.bound(4096, head_dim=64.0),
    "plan": lambda: api.run(None),
    "on": lambda: api.run("plan.toml", on=2.5),
    "empty list": lambda: api.push([], "me/model"),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_argument_of_another_type_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(UsageError, match=rf"^(\w+\(\) got an )?{name.partition('=')[0]}"):
        WRONG[name]()


def test_none_is_the_default(llama: Path, tmp_path: Path) -> None:
    made = api.profiles(llama, "yarn:2", out=tmp_path / "p", runtime=None, encoding=None)
    assert list(made) == ["yarn2"]
    assert api.inspect(llama, family=None).context == 64


@pytest.mark.parametrize("length", [2048, 2048.0, np.int64(2048), np.float64(2048), "2k"])
def test_a_length_may_be_any_whole_number(length: object, llama: Path) -> None:
    assert api.plan(llama, yarn=length).context == 2048
    assert api.plan(llama, linear=4, context=length).context == 2048


def test_a_tensor_of_one_number_is_a_number(llama: Path) -> None:
    import torch

    assert api.plan(llama, yarn=torch.tensor(4.0)).context == 256
    with pytest.raises(UsageError):
        api.plan(llama, yarn=torch.tensor([4.0, 8.0]))


def test_a_length_of_zero_is_refused(llama: Path, tmp_path: Path) -> None:
    output = api.apply(llama, yarn=4, out=tmp_path / "out", validate="off")
    with pytest.raises(ropeconv.RecipeError, match="0"):
        api.validate(output, llama, length=0)
