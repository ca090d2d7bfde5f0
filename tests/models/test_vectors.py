"""Frequencies as people have them: in files, arrays, tensors and lists of Python."""

import json
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropeconv.errors import UsageError
from ropeconv.models.vectors import LONGEST, list_numbers, vector_method
from ropeconv.rope.errors import RecipeError
from ropeconv.rope.methods.method import REGISTRY
from ropeconv.rope.methods.vectors import InvFreq, LongRopeMethod

from ..conftest import Run

INV_FREQ = REGISTRY["inv-freq"]
LONGROPE = REGISTRY["longrope"]
HALVES = (1.0, 0.5, 0.25)
"""Numbers that every floating type has exactly."""

VALUES: dict[str, Callable[[], Any]] = {
    "a list": lambda: [1, 0.5, 0.25],
    "a tuple": lambda: HALVES,
    "float64": lambda: np.array(HALVES),
    "float32": lambda: np.array(HALVES, np.float32),
    "float16, big endian": lambda: np.array(HALVES, ">f2"),
    "one row": lambda: np.array([HALVES]),
    "one column": lambda: np.array(HALVES)[:, None],
    "every second number": lambda: np.array([1.0, 9, 0.5, 9, 0.25, 9])[::2],
    "numbers of numpy": lambda: [np.float32(1), np.float16(0.5), np.array(0.25)],
    "fractions": lambda: [1, Fraction(1, 2), Decimal("0.25")],
    "a generator": lambda: (2.0**-power for power in range(3)),
    "by its name": lambda: {"inv_freq": [1, 0.5, 0.25], "other": [9]},
}


@pytest.mark.parametrize("value", VALUES)
def test_a_value_gives_its_numbers(value: str) -> None:
    assert vector_method(INV_FREQ, VALUES[value]()) == InvFreq(HALVES)


def test_integers_are_frequencies_too() -> None:
    assert vector_method(INV_FREQ, np.array([3, 2, 0], np.uint8)) == InvFreq((3.0, 2.0, 0.0))
    assert vector_method(INV_FREQ, range(2, 0, -1)) == InvFreq((2.0, 1.0))


def test_a_value_of_float32_is_widened_and_not_rounded_again() -> None:
    third = np.float32(1 / 3)
    assert vector_method(INV_FREQ, np.array([third])) == InvFreq((float(third),))
    assert vector_method(INV_FREQ, [1 / 3]) == InvFreq((1 / 3,))
    assert float(third) != 1 / 3  # so the two tell apart


TENSORS = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn")


@pytest.mark.parametrize("dtype", TENSORS)
def test_a_tensor_of_any_dtype_gives_its_numbers(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    assert vector_method(INV_FREQ, torch.tensor(HALVES).to(getattr(torch, dtype))) == InvFreq(
        HALVES
    )


def test_a_tensor_may_have_a_gradient_and_one_row() -> None:
    torch = pytest.importorskip("torch")
    assert vector_method(INV_FREQ, torch.tensor(HALVES, requires_grad=True)) == InvFreq(HALVES)
    assert vector_method(INV_FREQ, torch.tensor([HALVES])) == InvFreq(HALVES)
    assert vector_method(INV_FREQ, list(torch.tensor(HALVES))) == InvFreq(HALVES)
    parameter = torch.nn.Parameter(torch.tensor(HALVES))
    assert vector_method(INV_FREQ, parameter) == InvFreq(HALVES)
    assert parameter.requires_grad


def test_one_list_serves_longrope_and_two_go_by_their_names() -> None:
    assert vector_method(LONGROPE, np.array([4.0, 2.0])) == LongRopeMethod((4.0, 2.0))
    two = {"short_factor": [1.0, 1.0], "long_factor": np.array([4.0, 2.0])}
    assert vector_method(LONGROPE, two) == LongRopeMethod((4.0, 2.0), (1.0, 1.0))


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "two rows": (lambda: np.ones((2, 3)), r"shape \(2, 3\)"),
    "nested lists": (lambda: [[1.0, 2.0]], r"inv_freq\[0\] is \[1.0, 2.0\]"),
    "an empty array": (lambda: np.array([]), "empty"),
    "an empty list": (list, "empty"),
    "NaN": (lambda: [1.0, float("nan")], r"inv_freq\[1\] is nan"),
    "infinite": (lambda: np.array([np.inf, 1.0]), r"inv_freq\[0\] is inf"),
    "a complex array": (lambda: np.array([1j]), "complex128"),
    "a complex number": (lambda: [1, 1j], r"inv_freq\[1\] is 1j"),
    "texts": (lambda: ["1.0"], r"inv_freq\[0\] is '1.0'"),
    "an array of texts": (lambda: np.array(["1.0"]), "dtype <U3"),
    "objects": (lambda: np.array([None]), "dtype object"),
    "truth values": (lambda: [True], r"inv_freq\[0\] is True"),
    "an array of these": (lambda: np.array([True]), "dtype bool"),
    "None in a list": (lambda: [1.0, None], r"inv_freq\[1\] is None"),
    "None": (lambda: None, "None is not a list"),
    "a number": (lambda: 0.5, "0.5 is not a list"),
    "a number of numpy": (lambda: np.array(0.5), "is one number"),
    "bytes": (lambda: b"1.0", "not a list"),
    "a set, which has no order": (lambda: {1.0, 0.5}, "not a list"),
    "a huge integer": (lambda: [10**400], "larger than any float"),
    "too many": (lambda: np.zeros(LONGEST + 1), f"{LONGEST:,}"),
    "too many in a list": (lambda: [0.0] * (LONGEST + 1), f"{LONGEST:,}"),
    "masked numbers": (lambda: np.ma.array([1.0, 2.0], mask=[0, 1]), "masked"),
}


@pytest.mark.parametrize("value", WRONG)
def test_a_wrong_value_is_a_sentence_with_the_fix(value: str) -> None:
    make, words = WRONG[value]
    with pytest.raises(UsageError, match=words) as raised:
        vector_method(INV_FREQ, make())
    assert str(raised.value).startswith("inv_freq")
    assert "; pass one list" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_wrong_tensor_is_a_sentence_with_the_fix() -> None:
    torch = pytest.importorskip("torch")
    wrong = {
        "shape": torch.ones(2, 2),
        "one number": torch.tensor(1.0),
        "complex64": torch.tensor([1j]),
        "torch.bool": torch.tensor([True]),
        "empty": torch.tensor([]),
        "nan": torch.tensor([float("nan")]),
        "cannot be read": torch.empty(3, device="meta"),
    }
    for words, tensor in wrong.items():
        with pytest.raises(UsageError, match=f"^inv_freq.*{words}"):
            vector_method(INV_FREQ, tensor)


def test_what_the_method_itself_refuses_stays_its_error() -> None:
    with pytest.raises(RecipeError, match="not negative"):
        vector_method(INV_FREQ, [-1.0])
    with pytest.raises(RecipeError, match="no 'inv_freq' .*long_factor"):
        vector_method(INV_FREQ, {"long_factor": [1.0]})
    with pytest.raises(UsageError, match=r"^short_factor\[0\] is nan"):
        vector_method(LONGROPE, {"long_factor": [1.0], "short_factor": [float("nan")]})


def test_numbers_are_named_as_the_caller_says() -> None:
    assert list_numbers((2,), "x") == [2.0]
    with pytest.raises(UsageError, match=r"^x is empty"):
        list_numbers([], "x")


# Files


def files(folder: Path) -> dict[str, Path]:
    """The same numbers in every format."""
    numpy_file = folder / "a.npy"
    np.save(numpy_file, np.array(HALVES, np.float32))
    texts = {
        "a.txt": "1.0\n0.5\n0.25\n",
        "a.json": json.dumps(HALVES),
        "b.json": json.dumps({"inv_freq": HALVES}),
        "a.csv": "pair,inv_freq,wavelength,divided_by\n0,1.0,6.28,1\n1,0.5,12.6,1\n2,0.25,25.1,2\n",
    }
    paths = {name: folder / name for name in texts}
    for name, text in texts.items():
        paths[name].write_text(text)
    return paths | {"a.npy": numpy_file}


def test_a_path_of_any_kind_gives_the_numbers_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, path in files(tmp_path).items():
        for value in (path, str(path), f"~/{name}"):
            assert vector_method(INV_FREQ, value) == InvFreq(HALVES), value
    with pytest.raises(UsageError, match=r"none.npy does not exist"):
        vector_method(INV_FREQ, tmp_path / "none.npy")


def test_files_of_tensors_give_their_numbers(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    torch.save(torch.tensor(HALVES, requires_grad=True), tmp_path / "a.pt")
    save_file({"rotary_emb.inv_freq": torch.tensor(HALVES)}, tmp_path / "a.safetensors")
    for name in ("a.pt", "a.safetensors"):
        assert vector_method(INV_FREQ, tmp_path / name) == InvFreq(HALVES)


def test_the_numbers_that_plot_writes_are_read_again(run: Run, tmp_path: Path) -> None:
    config = {"model_type": "llama", "hidden_size": 128, "num_attention_heads": 2}
    config |= {"max_position_embeddings": 64, "num_hidden_layers": 1, "rope_theta": 10000.0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = run("plot", tmp_path / "config.json", "--linear", 4, "-o", tmp_path / "x.csv")
    assert done.returncode == 0, done.stderr
    by_hand = tuple(10000.0 ** (-index / 32) / 4 for index in range(32))
    method: Any = vector_method(INV_FREQ, tmp_path / "x.csv")
    assert method.inv_freq == pytest.approx(by_hand, rel=1e-15)


def test_a_damaged_table_of_contents_is_refused_in_a_sentence(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "a.pt"
    torch.save(torch.tensor(HALVES), path)
    content = path.read_bytes()
    assert b"PK\1\2" in content
    path.write_bytes(content.replace(b"PK\1\2", b"PK\1\3"))
    with pytest.raises(UsageError, match="damaged"):
        vector_method(INV_FREQ, path)
