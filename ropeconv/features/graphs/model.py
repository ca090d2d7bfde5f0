"""Compiled graphs, ONNX and OpenVINO: their constants, and the operations that make cos and sin.

`open_graph` opens what a path names. `Graph` is what both formats have, `OnnxGraph` and
`OpenVinoGraph` read and change files, and `GraphSource` is a folder with graphs.
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ropeconv.environment import require
from ropeconv.errors import BadSource
from ropeconv.formats.files import check_regular, expand_home, graph_names
from ropeconv.formats.jsontext import parse
from ropeconv.formats.kind import frozen_words, kind_of
from ropeconv.models.folder import FolderSource
from ropeconv.models.source import RECEIPT
from ropeconv.rope.errors import shown

CONFIG = "config.json"
COMPANIONS = (".json", ".jsonl", ".txt", ".model", ".jinja", ".md")
"""Ends of the names of files beside a graph that belong to it: config, tokenizer, card."""
MOVING_OPERATIONS = frozenset(
    "Broadcast Cast Concat Convert Einsum Expand Flatten Gather Gemm Identity MatMul Mul Multiply"
    " Reshape Slice Split Squeeze StridedSlice Tile Transpose Unsqueeze VariadicSplit".split()
)
"""Operations of both formats that only multiply, repeat or move values."""
MOST_ONNX_BYTES = (1 << 31) - 1
"""Bytes of an ONNX file, by protobuf."""
TOO_LARGE_FOR_ONNX = (
    "larger than 2 GB, the limit of ONNX; export it with its weights in a file of their own"
)
BYTE_COUNT = re.compile("[0-9]{1,18}")
"""A number of bytes as ONNX writes it; no file has more than 18 digits of them."""
LEAST_OPSET = 15
"""The first opset of ONNX with CastLike, which gives a new factor the type of the other side."""


class Constant(NamedTuple):
    """Floating point numbers or booleans in a graph."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    array: Callable[[], NDArray[Any]]
    """Reads or maps them."""

    handle: Any
    """The object of the library."""


class StoredOutside(NamedTuple):
    """Where a file beside a graph has the numbers of a tensor."""

    location: str
    """The name of the file."""

    offset: int
    """The first byte."""

    length: int | None
    """The number of bytes; None where the graph does not say it."""


class Operation(NamedTuple):
    """An operation of a graph with the names of its values."""

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    handle: Any
    """The object of the library."""


class Graph(ABC):
    """A graph that a file describes.

    Args:
        path: The path of the file.
        described: Its format, for sentences.

    Attributes:
        data_files: Names of the files beside it that have its weights.
        constants: Its constants, by the names of their values.
        readers: The operations that read a value, by the name of the value.
        fixed_lengths: Inputs, [batch, length] or [batch, length, width], whose length is fixed,
            with that length.
    """

    saves_data: ClassVar[bool] = False
    """Whether the files with its weights are written with it."""

    def __init__(self, path: Path, described: str) -> None:
        self.path = path
        self.described = described
        self.data_files: tuple[str, ...] = ()
        self.constants: dict[str, Constant] = {}
        self.readers: dict[str, list[Operation]] = {}
        self.fixed_lengths: dict[str, int] = {}

    @abstractmethod
    def replace(self, constant: Constant, array: NDArray[Any]) -> None:
        """Give a constant other values, and perhaps another shape."""

    @abstractmethod
    def _multiply_rotation(
        self, rotation: Operation, scaling: Operation | None, factor: float
    ) -> None:
        """Multiply the result of a Cos or Sin; `scaling` is a Mul that does so already, or None."""

    @abstractmethod
    def save(self, target: Path) -> None:
        """Write the graph; where `saves_data`, also the file with its weights beside it."""

    def _add(self, operation: Operation) -> None:
        """Add an operation; a constant that it converts to another type counts as the same one."""
        for name in operation.inputs:
            self.readers.setdefault(name, []).append(operation)
        is_conversion = operation.kind in ("Cast", "CastLike", "Convert", "Identity")
        if is_conversion and operation.inputs[0] in self.constants:
            self.constants[operation.outputs[0]] = self.constants[operation.inputs[0]]

    def rotations(self, value: str) -> list[Operation]:
        """Return the Cos and Sin operations of the angles that are computed from frequencies.

        The frequencies reach them through a product with the positions, and through operations that
        only move or repeat numbers, such as Unsqueeze and Concat. These are followed from reader to
        reader.

        Args:
            value: The name of the frequencies, or of another constant.

        Returns:
            The operations; none unless there are both Cos and Sin.
        """
        rotations = dict[str, Operation]()
        pending = [value]
        met = {value}
        while pending:
            for reader in self.readers.get(pending.pop(), ()):
                if reader.kind in ("Cos", "Sin"):
                    rotations[reader.outputs[0]] = reader
                elif reader.kind in MOVING_OPERATIONS:
                    pending += [name for name in reader.outputs if name not in met]
                    met.update(reader.outputs)

        kinds = {operation.kind for operation in rotations.values()}
        if kinds != {"Cos", "Sin"}:
            return []
        return list(rotations.values())

    def _find_multiplication(self, rotation: Operation) -> tuple[Operation | None, Constant | None]:
        """Return the operation that multiplies a Cos or Sin by a constant, and that constant.

        Both are None where the result of the Cos or Sin is used without a factor.
        """
        for reader in self.readers.get(rotation.outputs[0], ()):
            if reader.kind not in ("Mul", "Multiply"):
                continue
            known = [self.constants[name] for name in reader.inputs if name in self.constants]
            if known and np.prod(known[0].shape) == 1:
                return reader, known[0]
        return None, None

    def attention_factor(self, value: str) -> float:
        """Return the number by which cos and sin are multiplied: the attention factor of a RoPE.

        Args:
            value: The name of the frequencies in the graph, from which cos and sin are computed.

        Raises:
            BadSource: Cos and sin are multiplied by different numbers.
        """
        factors = set()
        for rotation in self.rotations(value):
            # the constant of the multiplication that follows a Cos or Sin; None, for 1, without one
            _, constant = self._find_multiplication(rotation)
            factors.add(_factor_or_one(constant))
        if len(factors) != 1:
            raise BadSource(
                f"{self.path} multiplies cos and sin by different numbers; export it again"
            )
        return factors.pop()

    def set_attention_factor(self, frequencies: str, factor: float) -> None:
        """Set the attention factor: the number by which the cos and sin of a RoPE are multiplied.

        Args:
            frequencies: The name that the frequencies of the RoPE have in the graph.
            factor: The attention factor.
        """
        # Each Cos and Sin may have a Mul after it, which multiplies it by a constant. Without such
        # a Mul, `multiplication` and `constant` are None.
        rotations = self.rotations(frequencies)  # the Cos and Sin operations
        pairs = [self._find_multiplication(rotation) for rotation in rotations]
        all_multiplications = [operation for operation, _ in pairs if operation is not None]
        for rotation, (multiplication, constant) in zip(rotations, pairs, strict=True):
            present_factor = _factor_or_one(constant)
            if present_factor == factor:
                continue

            # Replace the constant if other operations of the graph do not read it. Otherwise
            # insert new operations, for which ONNX needs a newer opset.
            if constant and self._is_read_only_by(constant, all_multiplications):
                dtype = constant.array().dtype
                self.replace(constant, np.full(constant.shape, factor, dtype))
            else:
                self._multiply_rotation(rotation, multiplication, factor)

    def _is_read_only_by(self, constant: Constant, operations: list[Operation]) -> bool:
        """Return whether nothing else reads a constant, and its type is wide enough to change."""
        if constant.dtype not in ("float32", "float64"):  # float16 would round the new factor
            return False
        # a constant has several names where it is converted to other types
        for name, each in self.constants.items():
            if each is not constant:
                continue
            for reader in self.readers.get(name, ()):
                if not any(reader is operation for operation in operations):
                    return False
        return True


def _factor_or_one(constant: Constant | None) -> float:
    """Return the factor in a constant; 1 without one."""
    return float(constant.array().ravel()[0]) if constant else 1.0


class OnnxGraph(Graph):
    """An ONNX model.

    Files with its weights are mapped where a constant is read, and never written.
    """

    def __init__(self, path: Path) -> None:
        """Read a graph from an ONNX file, without its weights.

        Raises:
            BadSource: It is not an ONNX model, or too large.
        """
        require("onnx", path.name)
        import onnx
        from google.protobuf.message import DecodeError

        super().__init__(path, "ONNX")
        self._used_names = set[str]()
        if path.stat().st_size > MOST_ONNX_BYTES:
            raise BadSource(f"{path} is {TOO_LARGE_FOR_ONNX}")
        try:
            self.model = onnx.load(str(path), format="protobuf", load_external_data=False)
            for scope in (self.model.graph, *self.model.functions):
                self._read_graph(scope, outer_names={})
        except (DecodeError, ValueError, TypeError, LookupError):
            is_readable = False
        else:
            # protobuf decodes an empty file, and some others, to a model without operations
            is_readable = bool(self.model.graph.node)
        if not is_readable:
            raise BadSource(f"{path} is not an ONNX model, or it is damaged; export it again")

        # the version of the standard operations, whose names are "" and "ai.onnx"
        versions = []
        for imported in self.model.opset_import:
            if imported.domain in ("", "ai.onnx"):
                versions.append(imported.version)
        self.opset = max(versions, default=0)
        self.described = f"ONNX, opset {self.opset}"

        # Inputs are [batch, length] or [batch, length, width]. A dynamic axis has a name instead of
        # a number. A length of 1 limits nothing: such a graph generates token by token.
        for value in self.model.graph.input:
            dims = value.type.tensor_type.shape.dim
            if len(dims) in (2, 3) and dims[1].dim_value > 1:
                self.fixed_lengths[value.name] = dims[1].dim_value

    def _read_graph(self, scope: Any, outer_names: Mapping[str, str]) -> None:
        """Read the operations and constants of a graph in the file, and of the graphs inside it.

        Two branches of an If may both have a value "cos". So each value gets a unique name here,
        such as "cos" and "cos_17".

        Args:
            scope: A GraphProto or a FunctionProto of ONNX.
            outer_names: The values of the enclosing graphs, which operations of this graph can
                read: the unique name of each, by its name in the file.
        """
        names = dict(outer_names)  # the values of this graph are added below

        # constants; a FunctionProto has none
        for tensor in getattr(scope, "initializer", ()):
            unique_name = self._add_unique_name(names, tensor.name)
            self._add_constant(unique_name, tensor.name, tensor)

        for node in scope.node:
            # the branches of If and the bodies of Loop and Scan are attributes
            for attribute in node.attribute:
                inner_graphs = list(attribute.graphs)
                if attribute.HasField("g"):
                    inner_graphs.insert(0, attribute.g)
                for inner in inner_graphs:
                    self._read_graph(inner, names)

            inputs = tuple(names.get(name, name) for name in node.input)
            outputs = tuple(self._add_unique_name(names, name) for name in node.output)
            # `handle` is for `_multiply_rotation`, which inserts nodes beside this one in its graph
            self._add(
                Operation(kind=node.op_type, inputs=inputs, outputs=outputs, handle=(scope, node))
            )

            # some exporters write a constant as an operation with the tensor as its attribute
            if node.op_type == "Constant":
                attribute = node.attribute[0]
                if attribute.name == "value":
                    self._add_constant(outputs[0], node.output[0], attribute.t)

    def _add_unique_name(self, names: dict[str, str], name: Any) -> str:
        """Return a name that no other value of the model has, such as "cos_17" for a second "cos".

        Args:
            names: The unique names in a graph, by the names in the file. The new one is added.
            name: The name in the file.

        Raises:
            ValueError: The name is not text.
        """
        if not isinstance(name, str):
            raise ValueError(name)
        unique_name = name
        number = len(self._used_names)
        while unique_name in self._used_names:
            unique_name = f"{name}_{number}"
            number += 1
        self._used_names.add(unique_name)
        names[name] = unique_name
        return unique_name

    def _add_constant(self, value: str, name: str, tensor: Any) -> None:
        """Add a constant of floating point numbers or booleans; others are not needed.

        Args:
            value: The unique name of its value.
            name: Its name in the file.
            tensor: The TensorProto.
        """
        from onnx import TensorProto, helper
        from onnx.external_data_helper import uses_external_data

        if any(size < 0 for size in tensor.dims):
            raise BadSource(
                f"{name} of {self.path} has the shape {shown(list(tensor.dims))}; export it again"
            )

        # a protobuf file has at most 2 GiB, so weights are in a file beside it, whose name is noted
        # for constants of every type
        if uses_external_data(tensor):
            location = self._stored_outside(tensor).location
            if location not in self.data_files:
                self.data_files += (location,)

        known_types = (
            TensorProto.FLOAT,
            TensorProto.FLOAT16,
            TensorProto.BFLOAT16,
            TensorProto.DOUBLE,
            TensorProto.BOOL,
        )
        if tensor.data_type not in known_types:
            return
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type))
        self.constants[value] = Constant(
            name=name,
            dtype=dtype.name,
            shape=tuple(tensor.dims),
            array=partial(self._array, tensor, dtype),  # read when needed, since weights are large
            handle=tensor,
        )

    def _stored_outside(self, tensor: Any) -> StoredOutside:
        """Return where another file has the numbers of a tensor.

        Raises:
            BadSource: For entries that are not numbers of bytes.
        """
        # ONNX has the offset and the length as text: [("location", "model.onnx_data"), ("offset",
        # "4096"), ("length", "256")]
        entries = {entry.key: entry.value for entry in tensor.external_data}
        numbers = dict[str, int]()
        for key in ("offset", "length"):
            text = entries.get(key)
            if text is None:
                continue
            if not BYTE_COUNT.fullmatch(text):
                raise BadSource(
                    f"{tensor.name} of {self.path} has {key} = {shown(text)}, which is not a number"
                    " of bytes; export it again"
                )
            numbers[key] = int(text)

        return StoredOutside(
            location=str(entries.get("location", "")),
            offset=numbers.get("offset", 0),
            length=numbers.get("length"),
        )

    def _array(self, tensor: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return the numbers of a constant, mapped where they are in a file of their own."""
        from onnx.external_data_helper import uses_external_data
        from onnx.numpy_helper import to_array

        try:
            if uses_external_data(tensor):
                return self._map_file(tensor, dtype)
            return np.asarray(to_array(tensor))
        except (OSError, ValueError, TypeError, OverflowError) as problem:
            raise BadSource(
                f"{tensor.name} of {self.path} cannot be read ({problem}); export it again"
            ) from None

    def _map_file(self, tensor: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Map a tensor from the file beside the graph. Raises ValueError where it is not there."""
        place = self._stored_outside(tensor)
        path = FolderSource(self.path.parent).path(place.location)
        needed = math.prod(tensor.dims) * dtype.itemsize
        if place.length not in (None, needed):
            raise ValueError(f"its length is {place.length:,} and its shape needs {needed:,} bytes")
        end = place.offset + needed
        size = path.stat().st_size
        if end > size:
            raise ValueError(f"it ends at byte {end:,}, and {place.location} has {size:,}")
        return np.memmap(path, dtype, "r", place.offset, tuple(tensor.dims))

    def replace(self, constant: Constant, array: NDArray[Any]) -> None:
        from onnx.numpy_helper import from_array

        constant.handle.CopyFrom(from_array(array, constant.handle.name))

    def _multiply_rotation(
        self, rotation: Operation, scaling: Operation | None, factor: float
    ) -> None:
        """Insert operations into the graph that multiply the result of a Cos or Sin.

        Before: `c = Cos(angles)`. After: `c_unscaled = Cos(angles)` and `c = Mul(c_unscaled,
        factor)`. So the operations that read `c` need not change. If a Mul follows the Cos already,
        it gets the new factor as an input, and the Cos keeps its name.

        Args:
            rotation: The Cos or Sin.
            scaling: The Mul that follows already and multiplies by a constant; None without one.
            factor: The attention factor.
        """
        from onnx.helper import make_node
        from onnx.numpy_helper import from_array

        if self.opset < LEAST_OPSET:
            raise BadSource(
                f"{self.path} has opset {self.opset}, and a factor on cos and sin needs opset"
                f" {LEAST_OPSET}; export it again with that opset or a newer one"
            )

        # names of values: the result of the Cos or Sin, the factor, the factor in the same type
        graph, rotation_node = rotation.handle
        cosine = rotation_node.output[0]
        float32_factor = self._add_unique_name({}, f"{cosine}_attention_factor")
        cast_factor = self._add_unique_name({}, f"{cosine}_attention_factor_like")
        if scaling:
            unscaled = cosine
        else:
            unscaled = self._add_unique_name({}, f"{cosine}_unscaled")

        # ONNX requires that an operation comes after those whose outputs it reads
        indices = [index for index, node in enumerate(graph.node) if cosine in node.output]
        after_rotation = indices[0] + 1

        number = from_array(np.array(factor, np.float32))
        new_nodes = [
            make_node("Constant", [], [float32_factor], value=number),
            make_node("CastLike", [float32_factor, unscaled], [cast_factor]),
        ]
        if scaling:
            # the Mul has two inputs: the cosine, and the old factor, which is replaced
            _, multiply_node = scaling.handle
            index_of_cosine = scaling.inputs.index(rotation.outputs[0])  # 0 or 1
            index_of_factor = 1 - index_of_cosine
            multiply_node.input[index_of_factor] = cast_factor
        else:
            rotation_node.output[0] = unscaled
            new_nodes.append(make_node("Mul", [unscaled, cast_factor], [cosine]))

        for offset, node in enumerate(new_nodes):
            graph.node.insert(after_rotation + offset, node)

    def save(self, target: Path) -> None:
        try:
            target.write_bytes(self.model.SerializeToString())
        except ValueError:
            raise BadSource(f"{self.path} would be {TOO_LARGE_FOR_ONNX}") from None


OPENVINO_TYPES = {"f16": "float16", "f32": "float32", "f64": "float64", "boolean": "bool"}
"""Types of constants as numpy names them."""


class OpenVinoGraph(Graph):
    """A model in OpenVINO's IR: an .xml file, and its weights in a .bin file of the same name."""

    saves_data = True

    def __init__(self, path: Path) -> None:
        """Read a graph from an OpenVINO file, with the .bin file beside it.

        Raises:
            BadSource: OpenVINO cannot read it.
        """
        require("openvino", path.name)
        import openvino

        super().__init__(path, "OpenVINO")
        weights = path.with_suffix(".bin")
        self.data_files = (weights.name,)
        try:
            self.model = openvino.Core().read_model(path, weights)
        except (RuntimeError, UnicodeDecodeError):
            # openvino decodes its own message, which quotes the file (openvino/_ov_api.py)
            raise BadSource(
                f"{path} is not a model that OpenVINO can read, with its .bin file; export it again"
            ) from None

        for node in self.model.get_ordered_ops():
            inputs = tuple(self._name(value) for value in node.input_values())
            outputs = tuple(self._name(value) for value in node.outputs())
            kind = node.get_type_name()
            self._add(Operation(kind=kind, inputs=inputs, outputs=outputs, handle=node))
            if kind == "Constant":
                self._add_constant(outputs[0], node)

        # inputs of a fixed length, [batch, length] or [batch, length, width]; a length of 1 limits
        # nothing, since such a graph generates token by token
        for value in self.model.inputs:
            shape = value.get_partial_shape()
            if not shape.rank.is_static or len(shape) not in (2, 3):
                continue
            length = shape[1]
            if length.is_static and length.get_length() > 1:
                self.fixed_lengths[value.get_any_name()] = length.get_length()

    def _add_constant(self, value: str, node: Any) -> None:
        """Add a constant of floating point numbers or booleans; others are not needed."""
        dtype = OPENVINO_TYPES.get(node.get_output_element_type(0).get_type_name())
        if not dtype:
            return
        self.constants[value] = Constant(
            name=node.get_friendly_name(),
            dtype=dtype,
            shape=tuple(node.get_output_shape(0)),
            array=partial(getattr, node, "data"),  # read when needed, since weights are large
            handle=node,
        )

    @staticmethod
    def _name(value: Any) -> str:
        return f"{value.get_node().get_name()}:{value.get_index()}"

    def replace(self, constant: Constant, array: NDArray[Any]) -> None:
        from openvino import opset13

        number = opset13.constant(array)
        number.set_friendly_name(constant.name)
        for target in constant.handle.output(0).get_target_inputs():
            target.replace_source_output(number.output(0))

    def _multiply_rotation(
        self, rotation: Operation, scaling: Operation | None, factor: float
    ) -> None:
        """Insert an operation into the graph that multiplies the result of a Cos or Sin.

        Args:
            rotation: The Cos or Sin.
            scaling: The multiplication that follows already; it gets the new factor. None without
                one.
            factor: The attention factor.
        """
        from openvino import opset13

        cosine = rotation.handle.output(0)  # or the sine
        number = opset13.constant(factor, dtype=cosine.get_element_type())
        if scaling:
            # the multiplication has two inputs: the cosine, and the old factor, which is replaced
            index_of_cosine = scaling.inputs.index(rotation.outputs[0])  # 0 or 1
            index_of_factor = 1 - index_of_cosine
            scaling.handle.input(index_of_factor).replace_source_output(number.output(0))
            return

        # the operations that read the cosine get the product instead
        readers = cosine.get_target_inputs()
        product = opset13.multiply(cosine, number)
        for reader in readers:
            reader.replace_source_output(product.output(0))

    def save(self, target: Path) -> None:
        import openvino

        self.model.validate_nodes_and_infer_types()
        openvino.serialize(self.model, str(target), str(target.with_suffix(".bin")))


class GraphSource(FolderSource):
    """Compiled graphs with the files beside them.

    All files of a folder, or one graph with those that belong to it.

    Args:
        path: The path of the folder, or of a graph, whose config.json may also be one folder above,
            as that of onnx/model.onnx.

    Attributes:
        graphs: The names of the graphs, relative to `root`.
    """

    kind = "graph"

    def __init__(self, path: Path) -> None:
        """Open a folder with all its graphs, or one graph with the folder that it is in.

        Args:
            path: The folder, or the file of a graph.
        """
        self.is_whole_folder = path.is_dir()
        root = path
        if not self.is_whole_folder:
            root = path.parent
            # Optimum writes onnx/model.onnx, and config.json one folder above
            has_config = (root / CONFIG).is_file()
            if not has_config and (root.parent / CONFIG).is_file():
                root = root.parent
        super().__init__(root, reference=str(path))

        if self.is_whole_folder:
            self.graphs = tuple(graph_names(path))
        else:
            self.name = path.stem  # instead of the name of the folder
            self.graphs = (path.relative_to(root).as_posix(),)

    @cached_property
    def opened(self) -> dict[str, Graph]:
        """The graphs, each read from its file, by the name of the file.

        Raises:
            BadSource: A graph is damaged, or a file with its weights is missing.
            RopeconvError: The library that reads such graphs is not installed.
        """
        graphs: dict[str, Graph] = {}
        for name in self.graphs:
            path = self.path(name)
            check_regular(path.stat().st_mode, path)
            graph = _open_file(path)
            graphs[name] = graph
            # a graph names its files with weights relative to its own folder
            for data_file in graph.data_files:
                in_source = (Path(name).parent / data_file).as_posix()
                if not self.path(in_source).is_file():
                    raise BadSource(
                        f"{path} needs {data_file}, which is missing; give the folder of the export"
                    )
        return graphs

    def data_of(self, graph: str) -> list[str]:
        """Return the names of the files with the weights of a graph, relative to `root`."""
        return [(Path(graph).parent / name).as_posix() for name in self.opened[graph].data_files]

    def text(self, name: str) -> str | None:
        """Return a text as `Source.text` does, without the receipt of an extended graph.

        Callers ask for the receipt of the checkpoint.
        """
        text = super().text(name)
        if name == RECEIPT and text is not None and "companion" in parse(text, name):
            return None
        return text

    @property
    def has_config(self) -> bool:
        """Whether there is a config.json."""
        return (self.root / CONFIG).is_file()

    def _names(self) -> Iterator[str]:
        """Yield the names of the files that belong to the model, without hidden ones.

        For a folder these are all files in it. A single graph may be in ~/Downloads, among files of
        other things: there they are the graph, its weights, and the small files of a checkpoint
        beside it, such as config.json.
        """
        if self.is_whole_folder:
            yield from super()._names()
            return
        yield from self.graphs
        for graph in self.graphs:
            yield from self.data_of(graph)

        # without a config.json, text files in the folder need not belong to a model
        if not self.has_config:
            return
        for folder in {self.root, (self.root / self.graphs[0]).parent}:
            for path in folder.iterdir():
                is_companion = path.suffix in COMPANIONS and not path.name.startswith(".")
                if is_companion and path.is_file():
                    yield path.relative_to(self.root).as_posix()


def _open_file(path: Path) -> Graph:
    """Return a graph by its first bytes; by its name where they are damaged, for the message."""
    kind = kind_of(path)
    if kind == "onnx" or (kind != "openvino" and path.suffix == ".onnx"):
        return OnnxGraph(path)
    return OpenVinoGraph(path)


def open_graph(reference: str) -> GraphSource:
    """Open the graphs that a path names: a graph, or a folder with graphs.

    Raises:
        BadSource: There is nothing, or a format in which frequencies cannot be replaced, such as
            LiteRT.
    """
    path = expand_home(reference)
    frozen = frozen_words(path)
    if frozen:
        raise BadSource(
            f"{reference} is {frozen}, whose tables of cos and sin were compiled at export and"
            " cannot be replaced; run `ropeconv apply` on the checkpoint, and export its output"
        )

    if not path.exists():
        raise BadSource(
            f"{reference} does not exist; give the path of a graph, or of the folder of an export"
        )
    return GraphSource(path)
