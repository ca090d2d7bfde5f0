"""Lists of numbers as people have them: in files, arrays, tensors and lists of Python.

`vector_method` makes a method from any of these. `read_lists` reads files: JSON (also config.json),
CSV and other text, .npy, .safetensors and .pt. A file is read as what its first bytes are, whatever
its name.
"""

import csv
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Annotated, Any, Protocol, runtime_checkable

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..errors import BadSource, UsageError
from ..formats import jsontext
from ..formats.files import expand_home, open_regular, read_text
from ..formats.jsontext import JsonObject
from ..formats.kind import UNCLEAR_KINDS, Kind, kind_of, refusal
from ..formats.safetensors import read_header
from ..loader import load_numbers
from ..rope.errors import counted, shown
from ..rope.methods.method import Method
from ..rope.methods.vectors import method_from_lists
from .schema import text_config


@runtime_checkable
class SupportsArray(Protocol):
    """An array of numpy, a tensor of torch, or another object that numpy reads as an array."""

    def __array__(self) -> NDArray[Any]:
        """Return the numbers as an array."""


NumbersLike = SupportsArray | Sequence[float]
"""One list of numbers, as `list_numbers` accepts it."""
VectorLike = str | os.PathLike[str] | NumbersLike | Mapping[str, NumbersLike]
"""The value of `inv_freq=` and `longrope=`, as `vector_method` accepts it."""

LONGEST = 65_536
"""Limit of a list; the widest published heads rotate 256 pairs."""
Numbers = Annotated[
    list[Annotated[float, msgspec.Meta(ge=-1e38, le=1e38)]], msgspec.Meta(max_length=LONGEST)
]
FILES = "a .json, .csv, .txt, .npy, .safetensors or .pt file"
LIST_NAMES = ("inv_freq", "long_factor", "short_factor")
"""The names of lists that methods search for."""
COMMENT = re.compile(r"(#|//).*")
REPAIRED = ("lfs", "html")
"""Kinds of texts that are not the file that was meant."""
REAL = "fiu"  # numpy's kinds of floats, integers and unsigned integers
STORED = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
}


def vector_method(method: type[Method], value: object) -> Method:
    """Return the method `inv-freq` or `longrope` with the lists of numbers that a user gives.

    Args:
        method: The class of the method.
        value: The path of a file with the lists; or one list as an array, a tensor or a Python
            list; or a dictionary of such lists by their names (long_factor, short_factor).

    Raises:
        UsageError: For a file that cannot be read, and for a value that is not one list of finite
            numbers.
        RecipeError: Where the list that the method needs is not there, or has numbers that it does
            not accept.
    """
    name = method.name.replace("-", "_")  # "inv_freq" or "longrope", for messages
    if isinstance(value, str | os.PathLike):
        return method_from_lists(method, read_lists(expand_home(os.fspath(value))))
    if isinstance(value, Mapping):
        lists = {str(key): list_numbers(part, str(key)) for key, part in value.items()}
        return method_from_lists(method, lists)
    # a list without a name gets the names inv_freq and long_factor, of which each method reads one
    numbers = list_numbers(value, name)
    return method_from_lists(method, _under_names_of_both_methods(numbers))


def list_numbers(value: object, name: str) -> list[float]:
    """Return the numbers of an array, a tensor or a list, float64.

    Args:
        value: A numpy array or a tensor of torch of any real dtype, on any device, with or without
            a gradient; a list or tuple of numbers; or another object that numpy reads as an array.
            All dimensions but one have the size 1.
        name: The name of the value, for messages.

    Raises:
        UsageError: For another shape, an empty one, and for numbers that are complex, NaN or
            infinite.
    """
    try:
        numbers = _numbers_of(value, name)
        _check_numbers(numbers, name)
    except BadSource as problem:
        raise UsageError(f"{problem}; pass one list with a number per rotated pair") from None
    return numbers


def _numbers_of(value: object, name: str) -> list[float]:
    """The numbers of a value. Raises BadSource, without a fix, for one that is not a list."""
    if hasattr(value, "detach"):
        return _of_tensor(value, name)
    if hasattr(value, "__array__"):
        if np.ma.is_masked(value):
            raise BadSource(f"{name} has masked numbers, and every number is needed")
        return _of_array(np.asarray(value), name)
    unordered = isinstance(value, str | bytes | Set)
    if unordered or not isinstance(value, Iterable):
        raise BadSource(f"{name}={shown(value)} is not a list of numbers")
    return _of_items(value, name)


def _of_array(array: NDArray[Any], name: str) -> list[float]:
    """Return the numbers of a numpy array. Raises BadSource for a wrong dtype or shape."""
    if array.dtype.kind not in REAL:
        raise BadSource(f"{name} has the dtype {array.dtype}, and real numbers are needed")
    _check_value_shape(array.shape, name)
    return [float(number) for number in array.astype(np.float64).ravel()]


def _of_tensor(tensor: Any, name: str) -> list[float]:
    """Return the numbers of a tensor of torch. Raises BadSource for a wrong dtype or shape."""
    _check_dtype(tensor, name)
    _check_value_shape(tuple(tensor.shape), name)
    try:
        return _floats_of(tensor)
    except RuntimeError as problem:  # a sparse tensor, or one on the device "meta"
        message = str(problem).partition("\n")[0]
        raise BadSource(f"{name} is a tensor that cannot be read ({message})") from None


def _check_value_shape(shape: tuple[int, ...], name: str) -> None:
    """Raise BadSource, without a fix, for a shape that is not one list."""
    if shape == ():
        raise BadSource(f"{name} is one number, and a list is needed")
    if math.prod(shape) > LONGEST:
        raise BadSource(f"{name} has the shape {shape}, and the limit is {LONGEST:,} numbers")
    if sum(size != 1 for size in shape) > 1:
        raise BadSource(f"{name} has the shape {shape}, and one list is needed")


def _of_items(items: Iterable[object], name: str) -> list[float]:
    """Return the numbers of a list. Raises BadSource for an item that is not a real number."""
    numbers = []
    for index, item in enumerate(items):
        if index == LONGEST:
            raise BadSource(f"{name} has more than {LONGEST:,} numbers")
        if not _is_real(item):
            raise BadSource(f"{name}[{index}] is {shown(item)}, and a real number is needed")
        try:
            numbers.append(float(item))  # type: ignore[arg-type]
        except OverflowError:
            raise BadSource(f"{name}[{index}] is larger than any float") from None
    return numbers


def _is_real(item: object) -> bool:
    """Whether an item of a list is a real number: of Python, of numpy, or a tensor of one."""
    if isinstance(item, bool | np.bool_ | str | bytes | complex | np.complexfloating):
        return False
    if getattr(item, "shape", ()) != ():
        return False
    return hasattr(item, "__float__")


def _check_numbers(numbers: list[float], name: str) -> None:
    """Raise BadSource for no numbers, and for one that is not finite."""
    if not numbers:
        raise BadSource(f"{name} is empty")
    for index, number in enumerate(numbers):
        if not math.isfinite(number):
            raise BadSource(f"{name}[{index}] is {number}, and finite numbers are needed")


def read_lists(path: Path) -> dict[str, list[float]]:
    """Return the lists of numbers in a file, by name, such as {"long_factor": [1.0, 1.05, ...]}.

    A single list without a name is returned under every name that methods look for.

    Raises:
        UsageError: When the file cannot be read or has no list of numbers.
    """
    try:
        data = _reader(path)(path)
        lists = {key: value for key, value in data.items() if isinstance(value, list)}
        numbers = msgspec.convert(lists, dict[str, Numbers])
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist; give {FILES}") from None
    except (OSError, BadSource, msgspec.ValidationError) as problem:
        raise UsageError(f"{path} cannot be read as a list of numbers ({problem})") from None
    if not numbers:
        raise UsageError(f"{path} has no list of numbers; write one list, or an object of lists")
    return _known_names(numbers)


def _reader(path: Path) -> Callable[[Path], JsonObject]:
    """Return the reader of a file, by its first bytes.

    Raises:
        UsageError: For a file that has no list in any case.
    """
    kind = kind_of(path)
    if kind in READERS:
        return READERS[kind]
    if kind in UNCLEAR_KINDS and kind not in REPAIRED:  # its reader says what is wrong with it
        return BY_NAME.get(path.suffix, _read_json)
    raise UsageError(refusal(path, FILES))


def _known_names(lists: dict[str, list[float]]) -> dict[str, list[float]]:
    """Lists by the names that methods search for.

    A single list may have any name, and `rotary_emb.inv_freq` ends in its own.
    """
    if len(lists) > 1:
        return lists
    ((name, values),) = lists.items()
    ending = name.rpartition(".")[2]
    if ending in LIST_NAMES:
        return {ending: values}
    return _under_names_of_both_methods(values)


def _under_names_of_both_methods(values: object) -> JsonObject:
    """Name one list as the method `inv-freq` calls it, and as `longrope` does."""
    return {"inv_freq": values, "long_factor": values}


def _read_json(path: Path) -> JsonObject:
    """Read a list, an object of lists, or the RoPE settings of a config.json, such as Phi 3's."""
    data = jsontext.loads(read_text(path, str(path)), path.name)
    if not isinstance(data, dict):
        return _under_names_of_both_methods(data)

    # a config.json has its lists inside, under the older name or the one of transformers 5
    for part in (data, text_config(data) or {}):
        for key in ("rope_scaling", "rope_parameters"):
            setting = part.get(key)
            if isinstance(setting, dict) and "long_factor" in setting:
                return setting
    return data


def _read_text(path: Path) -> JsonObject:
    """Read a table with the names of its columns in the first line, or one list of numbers.

    The list is one column, or one line. Empty lines and comments do not count.
    """
    lines = _read_rows(path)
    numbers = [_floats(line) for line in lines]  # None for a line with something else than numbers
    if len(lines) > 1 and numbers[0] is None:
        return _named_columns(lines[0], numbers[1:], path.name)

    # one list; columns without names could be anything
    problem = BadSource(
        "write one column of numbers, or columns with their names in the first line"
    )
    is_column = all(len(line) == 1 for line in lines)
    if len(lines) > 1 and not is_column:
        raise problem
    values: list[float] = []
    for line_numbers in numbers:
        if line_numbers is None:
            raise problem
        values += line_numbers
    if not values:
        raise problem
    return _under_names_of_both_methods(values)


def _read_rows(path: Path) -> list[list[str]]:
    """Return the cells of a text file, without empty lines and comments.

    A file with the lines `a,b` and `1,2` gives [["a", "b"], ["1", "2"]].
    """
    text = read_text(path, str(path)).removeprefix("\ufeff")  # the mark of some editors on Windows
    lines = [COMMENT.sub("", line) for line in text.splitlines()]
    rows = []
    try:
        for row in csv.reader(lines):
            if any(row):
                rows.append([cell.strip() for cell in row])
    except csv.Error as problem:
        raise BadSource(f"{path.name} is not CSV: {problem}") from None

    # numpy.savetxt writes a list with one dimension more, [[1.0, 0.5]], as "1.0 0.5"
    if len(rows) == 1 and len(rows[0]) == 1:
        (only_cell,) = rows[0]
        rows = [only_cell.split()]
    return [row for row in rows if any(row)]  # without rows of blanks


def _named_columns(
    names: list[str], rows: list[list[float] | None], file: str
) -> dict[str, list[float]]:
    """Return the columns of a table by name.

    Args:
        names: The names in the first line.
        rows: The numbers of each further line; None for a line without numbers.
        file: The name of the file, for messages.
    """
    complete_rows = list[list[float]]()
    for row in rows:
        if row is None or len(row) != len(names):
            raise BadSource(
                f"a line of {file} is not {counted(len(names), 'number')}, as many as its"
                " first line has names"
            )
        complete_rows.append(row)

    columns: dict[str, list[float]] = {}
    for index, name in enumerate(names):
        columns[name] = [row[index] for row in complete_rows]
    return columns


def _read_torch(path: Path) -> JsonObject:
    """Return a tensor, or a dictionary of tensors or of lists, that torch.save wrote."""
    data = load_numbers(path)
    if not isinstance(data, dict):
        return _under_names_of_both_methods(_as_list(data, ""))
    return {str(name): _as_list(value, str(name)) for name, value in data.items()}


def _as_list(value: Any, name: str) -> Any:
    """Return the numbers of a tensor as a list; a list is returned unchanged."""
    if not hasattr(value, "detach"):
        return list(value) if isinstance(value, tuple) else value
    words = f"the tensor {shown(name)}" if name else "the tensor"
    _check_dtype(value, words)
    _check_shape(tuple(value.shape), words)
    return _floats_of(value)


def _check_dtype(tensor: Any, name: str) -> None:
    """Raise BadSource for a tensor of other than real numbers."""
    if tensor.is_complex() or tensor.is_quantized or str(tensor.dtype) == "torch.bool":
        raise BadSource(f"{name} has the dtype {tensor.dtype}, and real numbers are needed")


def _floats_of(tensor: Any) -> list[float]:
    """Return the numbers of a tensor, on any device and with or without a gradient."""
    numbers = tensor.detach().cpu().double().flatten().tolist()
    return [float(number) for number in numbers]


def _floats(row: list[str]) -> list[float] | None:
    """Return the numbers of a row; None where one of its cells is not a number."""
    try:
        return [float(cell) for cell in row]
    except ValueError:
        return None


def _read_npy(path: Path) -> JsonObject:
    """Read the numbers of an array that numpy.save wrote.

    numpy parses the header, and `_numbers` reads no more than a list of frequencies may have.
    """
    from numpy.lib import format

    with open_regular(path) as file:
        try:
            version = format.read_magic(file)
            if version == (1, 0):
                shape, _, dtype = format.read_array_header_1_0(file)
            else:  # 3.0 differs from 2.0 only in the names of fields, which a list does not have
                shape, _, dtype = format.read_array_header_2_0(file)
        except Exception as problem:
            # numpy parses the header as Python, and passes on any error of that
            raise BadSource(f"its header is damaged: {shown(str(problem))}") from None

        # an array has no name, so it counts for either method that takes a list
        values = _numbers(file.read, dtype, shape, "the array")
        return _under_names_of_both_methods(values)


def _read_safetensors(path: Path) -> JsonObject:
    """Return the tensors of a safetensors file, by name."""
    header = read_header(path)
    vectors = {}
    with open_regular(path) as file:
        for tensor in header.tensors.values():
            if tensor.dtype not in STORED:
                raise BadSource(f"{shown(tensor.name)} is {tensor.dtype}; write it as F32 or F64")
            file.seek(header.data_start + tensor.start)
            dtype = np.dtype(STORED[tensor.dtype])
            vectors[tensor.name] = _numbers(file.read, dtype, tensor.shape, shown(tensor.name))
    return vectors


def _numbers(
    read: Callable[[int], bytes], dtype: np.dtype[Any], shape: tuple[int, ...], name: str
) -> list[float]:
    """Read an array of real numbers; `name` is its name in messages."""
    if dtype.kind not in REAL:  # objects (dtype "O") would be unpickled
        raise BadSource(f"{name} has the dtype {dtype}, and real numbers are needed")
    _check_shape(shape, name)

    count = math.prod(shape)
    data = read(count * dtype.itemsize)
    if len(data) < count * dtype.itemsize:
        raise BadSource(f"{name} is cut off; write it again")
    values: NDArray[np.float64] = np.frombuffer(data, dtype, count).astype(np.float64)
    return [float(value) for value in values]


def _check_shape(shape: tuple[int, ...], name: str) -> None:
    """Raise BadSource for a shape that is not one list, or too long."""
    if min((0, *shape)) < 0 or math.prod(shape) > LONGEST:
        raise BadSource(
            f"{name} has the shape {shown(shape)}, and the limit is {LONGEST:,} numbers"
        )
    if sum(size != 1 for size in shape) > 1:
        raise BadSource(
            f"{name} has the shape {shown(shape)}, and one list is needed; save one row of it"
        )


READERS: dict[Kind, Callable[[Path], JsonObject]] = {
    "json": _read_json,
    "text": _read_text,
    "npy": _read_npy,
    "safetensors": _read_safetensors,
    "torch": _read_torch,
    "pickle": _read_torch,
}
"""Readers by the kind of a file."""
BY_NAME: dict[str, Callable[[Path], JsonObject]] = {
    ".csv": _read_text,
    ".txt": _read_text,
    ".npy": _read_npy,
    ".safetensors": _read_safetensors,
}
"""Readers of empty and damaged files, by the ends of their names."""
