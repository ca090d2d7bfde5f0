"""The functions of Python refuse arguments of another type, and accept whole numbers of any."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest

import ropeconv
from ropeconv.cli.app import all_commands, find
from ropeconv.engines.probe import SharedProbe
from ropeconv.errors import UsageError
from ropeconv.features.evaluation.options import EvalOptions, SizeOptions, TuneOptions
from ropeconv.features.imatrix.options import PieceOptions
from ropeconv.keywords import ApplyKeywords
from ropeconv.options import BoundedOptions, Option, ValidateRequest, options
from ropeconv.reporting import SilentReporter
from ropeconv.verbs.arguments import check_value

from .support.gguf_files import write

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


ON_A_PLAN: dict[str, dict[str, Any]] = {
    "force": {"force": True},
    "link": {"link": True},
    "checksum": {"checksum": True},
    "push": {"push": "me/long"},
    "private": {"push": "me/long", "private": True},
    "create_pr": {"push": "me/long", "create_pr": True},
    "validate": {"validate": "off"},
    "staged": {"staged": True},
    "fsync": {"fsync": False},
    "check": {"check": False},
    "remember": {"remember": False},
    "probe": {"probe": SharedProbe()},
    "reporter": {"reporter": SilentReporter()},
}
"""Options that act on a finished plan of a folder. Others are tested below, or refused."""
OF_MORE_FILES = {"ollama", "draft", "draft_original_context", "adapter"}


def any_value(name: str) -> Any:
    """A value of the type of a keyword of `apply`."""
    hint = get_type_hints(ApplyKeywords)[name]
    for value in (*get_args(hint), True, 4.0, "x"):
        try:
            return check_value(name, value, hint)
        except UsageError:
            continue
    raise AssertionError(f"no value for {name}")


def test_every_option_acts_on_a_finished_plan_or_is_refused(llama: Path, tmp_path: Path) -> None:
    plan = api.plan(llama, yarn=4, out=tmp_path / "out")
    known = set(ApplyKeywords.__annotations__)
    assert ON_A_PLAN.keys() | OF_MORE_FILES <= known
    for name in known - ON_A_PLAN.keys() - OF_MORE_FILES:
        with pytest.raises(UsageError, match=rf"\b{name};"):
            api.apply(plan, dry_run=True, **{name: any_value(name)})
    for keywords in ON_A_PLAN.values():
        assert api.apply(plan, dry_run=True, **keywords).context == 256
    # a switch that is on by default
    with pytest.raises(UsageError, match="truncate"):
        api.apply(plan, dry_run=True, truncate=False)


def test_options_with_files_of_their_own_act_on_a_finished_plan(
    llama: Path, tmp_path: Path
) -> None:
    plan = api.plan(llama, yarn=4, out=tmp_path / "out")
    paired = api.apply(plan, dry_run=True, draft=llama, draft_original_context=64)
    assert paired.draft or paired.target.draft
    with pytest.raises(ropeconv.RopeconvError, match="adapter"):
        api.apply(plan, dry_run=True, adapter=tmp_path / "no-adapter")
    with pytest.raises(UsageError, match="draft-original-context"):
        api.apply(plan, dry_run=True, draft_original_context=64)

    model = write(tmp_path / "model.gguf", "qwen2", extra={"feed_forward_length": 96})
    gguf = api.plan(model, yarn=4, out=tmp_path / "long.gguf")
    for name in ("link", "checksum", "staged"):
        with pytest.raises(UsageError, match=name):
            api.apply(gguf, dry_run=True, **{name: True})
    done = api.apply(gguf, ollama=True, validate="off")
    assert done.modelfile == tmp_path / "long.Modelfile"
    assert done.modelfile.exists()


def test_a_plan_of_restore_has_its_place(llama: Path, tmp_path: Path) -> None:
    done = api.apply(llama, yarn=4, out=tmp_path / "out", validate="off")
    plan = api.restore_plan(api.open_source(done), tmp_path / "planned")
    for keywords in ({"out": tmp_path / "wanted"}, {"in_place": True}):
        with pytest.raises(UsageError, match=next(iter(keywords))):
            api.restore(plan, **keywords)
    assert not (tmp_path / "planned").exists()
    assert api.restore(plan, force=True, fsync=False).path == tmp_path / "planned"
    assert not (tmp_path / "wanted").exists()


def test_a_restore_in_place_refuses_options_of_a_new_file(tmp_path: Path) -> None:
    model = write(tmp_path / "model.gguf", "qwen2", extra={"feed_forward_length": 96})
    before = model.read_bytes()
    api.apply(model, yarn=4, in_place=True, validate="off")
    changed = model.read_bytes()
    plan = api.restore_plan(api.open_source(model), in_place=True)
    for keywords, name in (({"force": True}, "force"), ({"fsync": False}, "fsync")):
        for subject in (plan, model):
            given = keywords if subject is plan else {**keywords, "in_place": True}
            with pytest.raises(UsageError, match=name):
                api.restore(subject, **given)
    assert model.read_bytes() == changed
    api.restore(plan)
    assert model.read_bytes() == before


def test_a_patch_by_a_plan_refuses_other_keywords(llama: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(llama)
    plan = api.plan(llama, yarn=4)
    with pytest.raises(UsageError, match="beta_fast"):
        api.patch(model, plan, beta_fast=16)
    api.patch(model, plan, beta_fast=None)()


# Bounds of numbers

GROUPS = (ValidateRequest, EvalOptions, SizeOptions, TuneOptions, PieceOptions)
"""The classes with all options that have bounds."""


def has_bounds(option: Option) -> bool:
    return option.least is not None or option.most is not None


BOUNDED = [
    pytest.param(kind, option, id=f"{kind.__name__} {option.flag}")
    for kind in GROUPS
    for option in options(kind)
    if has_bounds(option)
]
CHECKED_ELSEWHERE = {"--gpus", "--port"}
"""`train_config` has a check of its own, and a port that is out of range opens no server."""


def filled(kind: type, **values: object) -> object:
    """An instance of a class of options."""
    if kind is TuneOptions:
        values["context"] = "8k"
    return kind(**values)


@pytest.mark.parametrize(("kind", "option"), BOUNDED)
def test_the_bounds_of_an_option_hold_for_python(kind: type, option: Option) -> None:
    assert issubclass(kind, BoundedOptions)
    for bound, step in ((option.least, -1), (option.most, 1)):
        if bound is None:
            continue
        filled(kind, **{option.name: bound})
        with pytest.raises(UsageError, match=rf"^{option.flag} is {bound + step};"):
            filled(kind, **{option.name: bound + step})


def test_every_bound_of_the_command_line_holds_for_python() -> None:
    flags = set()
    for name in all_commands():
        for parameter in find(name).options:
            if (parameter.min, parameter.max) != (None, None):
                flags.add(parameter.opts[0])
    known = {option.flag for kind in GROUPS for option in options(kind) if has_bounds(option)}
    assert len(known) > 8
    assert flags - CHECKED_ELSEWHERE == known


OUT_OF_BOUNDS: dict[str, Call] = {
    "--tokens is 3": lambda: api.validate("m", "n", tokens=3),
    "--tokens is -5": lambda: api.validate("m", "n", tokens=-5),
    "--chunk is 0": lambda: api.validate("m", "n", chunk=0),
    "--chunk is -1": lambda: api.evaluate("m", text="words", chunk=-1),
    "--threads is 0": lambda: api.evaluate("m", text="words", threads=0),
    "--depths is 0": lambda: api.evaluate("m", text="words", measure="passkey", depths=0),
    "--windows is 1": lambda: api.tune("m", "words", "8k", windows=1),
    "--chunk-size is 0": lambda: api.imatrix("m.gguf", "text.txt", chunk_size=0),
    "--chunks is -1": lambda: api.imatrix("m.gguf", "text.txt", chunks=-1),
}


@pytest.mark.parametrize("start", OUT_OF_BOUNDS)
def test_a_number_out_of_bounds_is_refused_before_anything_is_read(start: str) -> None:
    with pytest.raises(UsageError, match=f"^{start};"):
        OUT_OF_BOUNDS[start]()


# Options without an effect

IGNORED: dict[str, Call] = {
    "--chunk": lambda: api.validate("m.gguf", "n", chunk=7),
    "--device": lambda: api.validate("m.gguf", "n", device="cuda:7"),
    "--layer-by-layer": lambda: api.validate("m.gguf", "n", layer_by_layer=True),
    "--dtype": lambda: api.validate("m.gguf", "n", dtype="float16"),
    "--length": lambda: api.validate("m.gguf", "n", length="1k"),
    "--length, --text": lambda: api.validate("m.gguf", "n", text="hello world"),
    "--trust-remote-code": lambda: api.validate("m.gguf", "n", trust_remote_code=True),
    "--model": lambda: api.validate("m.gguf", "n", model="x"),
    "--seed": lambda: api.validate("m", "n", text="hello world", seed=1),
    "--dequantised": lambda: api.validate("m", "n", dequantised=True),
    "--tokens": lambda: api.validate("m", "n", server="http://127.0.0.1:9", tokens=64),
    "--device-map": lambda: api.validate("m", server="http://127.0.0.1:9", device_map="auto"),
    "--depths": lambda: api.evaluate("m", text="words", depths=3),
    "--generate": lambda: api.evaluate("m", text="words", generate=True),
    "--targets": lambda: api.evaluate("m", text="words", measure="passkey", targets=3),
    "--threads": lambda: api.evaluate("m", text="words", server="http://127.0.0.1:9", threads=2),
    "--model names": lambda: api.identify("m", model="x"),
}


@pytest.mark.parametrize("start", IGNORED)
def test_an_option_without_effect_is_refused_in_python(start: str) -> None:
    with pytest.raises(UsageError, match=f"^{start}"):
        IGNORED[start]()


def test_a_switch_that_is_off_asks_for_nothing() -> None:
    with pytest.raises(ropeconv.RopeconvError, match="nowhere"):
        api.validate("nowhere", "n", dequantised=False, trust_remote_code=False, model="")
