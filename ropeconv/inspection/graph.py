"""The RoPE in a compiled graph: frequencies from its constants, the method that gives them, and
comparisons.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import product
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import BadSource
from ..formats.jsontext import JsonObject
from ..models.graph import Constant, Graph, GraphSource
from ..rope.errors import RopeconvError, counted
from ..rope.forms import InterpolatedForm, Plain, Vector, base_inv_freq
from ..rope.methods.method import REGISTRY, ScaledMethod
from ..rope.spec import WIDEST_HEAD, RopeSpec, recognise
from ..rope.summary import Summary, SummaryTable
from ..runtimes.verdict import TOLERANCE, describe, frequencies
from .inspection import Inspection, inspect_source
from .side_by_side import compare_frequencies

Repeat = Literal["", "half", "interleaved"]
PRECISION = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""By what a number may be rounded, relatively, in each type of a constant."""
SMALLEST = {"float16": 2.0**-24}
"""The smallest number above 0 of types in which a frequency may be one of the smallest."""
LEAST_FACTOR = 1.01
"""The smallest scale factor that is taken for one: a smaller change may be rounding."""
TRAINED = tuple(1 << power for power in range(9, 21))
"""Trained lengths in tokens that are tried for methods that depend on them."""


def single(values: NDArray[Any]) -> tuple[NDArray[Any], Repeat]:
    """One column per pair of an array with one or two equal ones, and how they are repeated."""
    width = values.shape[-1]
    if width % 2 == 0 and np.array_equal(values[..., : width // 2], values[..., width // 2 :]):
        return values[..., : width // 2], "half"
    if width % 2 == 0 and np.array_equal(values[..., ::2], values[..., 1::2]):
        return values[..., ::2], "interleaved"
    return values, ""


def repeated(values: NDArray[Any], repeat: Repeat) -> NDArray[Any]:
    """The inverse of `single`."""
    if repeat == "half":
        return np.concatenate([values, values], axis=-1)
    return np.repeat(values, 2, axis=-1) if repeat else values


@dataclass(frozen=True, eq=False)
class ModelRope:
    """A RoPE of a model. name: empty for that of the layers that an extension changes.

    inv_freq: radians per token, float64 [rotary_dim / 2]. attention_factor: multiplies cos and sin.
    formula: that gives the frequencies, empty where it is not known. changes: whether an extension
    changes it.
    """

    name: str
    inv_freq: Vector
    attention_factor: float
    formula: str = ""
    changes: bool = True

    @property
    def words(self) -> str:
        """The result of a comparison in which it is the same."""
        return f"the same, {self.name}" if self.name else "the same"


def parts_of(spec: RopeSpec) -> list[ModelRope]:
    """Every RoPE of a model: first that of the layers that an extension changes, then other lists
    and layers.
    """
    current = spec.current()
    formula = describe(spec.form)
    parts = [ModelRope("", current.inv_freq, current.attention_factor, formula)]
    if current.short_inv_freq is not None:
        parts.append(
            ModelRope(
                "as its short list", current.short_inv_freq, current.attention_factor, formula
            )
        )
    if spec.local_inv_freq is not None:
        parts.append(
            ModelRope(
                "in window layers",
                spec.local_inv_freq,
                1.0,
                describe(spec.local_form),
                changes=False,
            )
        )
    return parts


@dataclass(frozen=True, eq=False)
class GraphRope(ModelRope):
    """A RoPE in a graph. name: of its constants.

    file: name of the graph. values: names in the graph, of a vector of frequencies or a table of
    cosines and one of sines. repeat: of the columns. error: by what each frequency may be off,
    since the graph rounds. positions: rows of a table, None where they are computed.
    """

    file: str = field(kw_only=True)
    graph: Graph = field(kw_only=True, repr=False)
    values: tuple[str, ...] = field(kw_only=True)
    repeat: Repeat = field(kw_only=True)
    error: Vector = field(kw_only=True)
    positions: int | None = field(default=None, kw_only=True)

    @property
    def constants(self) -> tuple[Constant, ...]:
        """Its constants."""
        return tuple(self.graph.constants[value] for value in self.values)

    @property
    def layout(self) -> str:
        """The type and shape of its constants: `float32 [4096, 64]`."""
        return f"{self.constants[0].dtype} {list(self.constants[0].shape)}"

    def holds(self, inv_freq: Vector) -> bool:
        """Whether it has these frequencies, to within what the graph rounds."""
        return inv_freq.shape == self.inv_freq.shape and bool(
            np.all(np.abs(inv_freq - self.inv_freq) <= self.error)
        )

    def matches(self, part: ModelRope) -> bool:
        """Whether it computes the same, to within what the graph rounds."""
        precision = max(
            4 * PRECISION[self.constants[0].dtype] if self.positions else 0.0, TOLERANCE
        )
        off = abs(part.attention_factor - self.attention_factor)
        return self.holds(part.inv_freq) and off <= precision * self.attention_factor

    def recognised(self, thetas: Iterable[float] = (), lengths: Iterable[int] = ()) -> str:
        """The formula that gives these frequencies, or "custom inv_freq" where no method does.

        thetas, lengths: bases and trained lengths that are tried before those that the vector
        itself suggests.
        """
        vector = self.inv_freq
        known = tuple(thetas)
        slowest = int(np.flatnonzero(vector).max())
        for theta in (*known, *_bases(vector, slowest)):
            base = base_inv_freq(theta, 2 * len(vector))
            proportional = recognise(vector, theta)
            if proportional or self.holds(base):
                return describe(proportional or Plain(theta))
            for factor in rounded(1 / vector[0]):
                if factor > LEAST_FACTOR and self.holds(base / factor):
                    return describe(InterpolatedForm(theta, factor))
            if theta in known or np.all(np.abs(base[:2] - vector[:2]) <= self.error[:2]):
                formula = self._scaled(
                    theta, rounded(base[slowest] / vector[slowest]), (*lengths, *TRAINED)
                )
                if formula:
                    return formula
        return "custom inv_freq"

    def _scaled(self, theta: float, factors: Iterable[float], lengths: Iterable[int]) -> str:
        """The formula of a method with a factor, over a base; empty where none gives these
        frequencies.
        """
        kinds = [kind for kind in REGISTRY.values() if issubclass(kind, ScaledMethod)]
        larger = [factor for factor in factors if factor > LEAST_FACTOR]
        for length, kind, factor in product(dict.fromkeys(lengths), kinds, larger):
            spec = RopeSpec(
                2 * len(self.inv_freq), 2 * len(self.inv_freq), Plain(theta), length, length
            )
            with suppress(RopeconvError, ArithmeticError, ValueError):
                schedule = kind(factor).schedule(spec)
                if self.holds(schedule.inv_freq):
                    words = f"{kind.name}, theta {theta:.12g}, factor {factor:.12g}"
                    return frequencies(schedule) if schedule.form else words
        return ""

    def to_dict(self) -> JsonObject:
        """The fields as JSON-ready data."""
        return {
            "file": self.file,
            "format": self.graph.described,
            "constants": [c.name for c in self.constants],
            "dtype": self.constants[0].dtype,
            "shape": list(self.constants[0].shape),
            "positions": self.positions,
            "attention_factor": self.attention_factor,
            "inv_freq": self.inv_freq.tolist(),
            "error": self.error.tolist(),
        }


def _bases(vector: Vector, slowest: int) -> Iterator[float]:
    """Bases that a vector suggests by its slowest pair and by its second one, the roundest
    first.
    """
    for index in (slowest, 1):
        if 0 < index <= slowest and vector[index] < vector[0]:
            with suppress(OverflowError):
                yield from rounded(float(vector[0] / vector[index]) ** (len(vector) / index))


def rounded(value: float) -> list[float]:
    """A number with 1 to 8 digits and with all of them, the roundest first; nothing for one that is
    not finite.
    """
    if not math.isfinite(value):
        return []
    return list(
        dict.fromkeys([*(float(f"{value:.{digits}g}") for digits in range(1, 9)), float(value)])
    )


def ropes_of(graph: Graph, file: str) -> list[GraphRope]:
    """Every RoPE in a graph: vectors that reach a Cos and a Sin, and pairs of tables."""
    ropes = list[GraphRope]()
    cosines = list[str]()
    sines = list[str]()
    first_values = {id(constant): value for value, constant in reversed(graph.constants.items())}
    for value in reversed(first_values.values()):  # the others are conversions to another type
        constant = graph.constants[value]
        sizes = [size for size in constant.shape if size != 1]
        if (
            constant.dtype == "bool"
            or not all(constant.shape)
            or not sizes
            or sizes[-1] > WIDEST_HEAD
        ):
            continue
        if len(sizes) == 1 and sizes[0] > 1:
            ropes += _of_vector(graph, file, value)
        elif len(sizes) == 2 and sizes[0] > 2:
            function = _function_of(constant)
            sines += [value] if function == "sin" else []
            cosines += [value] if function == "cos" else []
    for cosine in cosines:
        same = [
            sine for sine in sines if graph.constants[sine][1:3] == graph.constants[cosine][1:3]
        ]
        for sine in sorted(same, key=lambda sine: sine != cosine.replace("cos", "sin"))[:1]:
            sines.remove(sine)
            ropes += _of_tables(graph, file, cosine, sine)
    return ropes


def _function_of(constant: Constant) -> str:
    """Return cos or sin, by the first rows of a table of positions and pairs; empty for another
    one.
    """
    first, second = _rows(constant, (0, 1))
    if not first.any():
        return "sin" if second.any() else ""
    is_cosine = (
        first[0] > 0
        and (first == first[0]).all()
        and (second <= first).all()
        and (second != first).any()
    )
    return "cos" if is_cosine else ""


def _rows(constant: Constant, rows: Iterable[int]) -> Vector:
    table = constant.array().reshape(-1, constant.shape[-1])
    return np.asarray(table[list(rows)], dtype=np.float64)


def _of_vector(graph: Graph, file: str, value: str) -> Iterator[GraphRope]:
    if not graph.rotations(value):
        return
    constant = graph.constants[value]
    vector, repeat = single(np.asarray(constant.array(), dtype=np.float64).ravel())
    if np.isfinite(vector).all() and (vector >= 0).all() and vector[0] > 0:
        error = max(TOLERANCE, 2 * PRECISION[constant.dtype]) * vector + SMALLEST.get(
            constant.dtype, 0.0
        )
        yield GraphRope(
            constant.name,
            vector,
            graph.attention_factor(value),
            file=file,
            graph=graph,
            values=(value,),
            repeat=repeat,
            error=error,
        )


def _of_tables(graph: Graph, file: str, cosine: str, sine: str) -> Iterator[GraphRope]:
    """The RoPE of two tables, whose row p has A cos(p w) and A sin(p w); nothing where they are
    something else.

    The frequency w is the angle of row 1. Rows 2, 4, 8 and so on up to the last make it more
    accurate: the angle there is known up to whole turns, and the present w tells how many.
    """
    table = graph.constants[cosine]
    positions = math.prod(table.shape[:-1])
    rows = [
        *(1 << power for power in range(positions.bit_length()) if 1 << power < positions - 1),
        positions - 1,
    ]
    (cos, repeat), (sin, _) = single(_rows(table, rows)), single(_rows(graph.constants[sine], rows))
    if cos.shape != sin.shape:
        return
    factor = float(_rows(table, [0])[0, 0])
    precision = PRECISION[table.dtype]
    angles = np.arctan2(sin, cos)
    inv_freq = np.zeros(cos.shape[1])
    for row, angle in zip(rows, angles, strict=True):
        inv_freq = (
            inv_freq + (np.remainder(angle - row * inv_freq + math.pi, math.tau) - math.pi) / row
        )
    phases = np.outer(rows, inv_freq)
    off = np.maximum(np.abs(cos - factor * np.cos(phases)), np.abs(sin - factor * np.sin(phases)))
    if np.all(off <= factor * (8 * precision + 4 * PRECISION["float32"] * np.abs(phases))):
        error = TOLERANCE * np.abs(inv_freq) + 4 * precision / rows[-1]
        names = f"{table.name} and {graph.constants[sine].name}"
        yield GraphRope(
            names,
            np.maximum(inv_freq, 0.0),
            factor,
            file=file,
            graph=graph,
            values=(cosine, sine),
            repeat=repeat,
            error=error,
            positions=positions,
        )


@dataclass(frozen=True)
class GraphInspection(Summary):
    """The RoPE in compiled graphs. spec: of the config.json beside them, None without one, for the
    reason in `note`.
    """

    source: GraphSource
    ropes: tuple[GraphRope, ...]
    spec: RopeSpec | None
    note: str = ""

    @property
    def sentence(self) -> str:
        """How many RoPEs the graphs hold, and whether config.json has the same."""
        found = f"{counted(len(self.ropes), 'RoPE')} found"
        if self.spec is None:
            return f"{found}; not compared with config.json: {self.note}."
        others = [rope.name for rope in self.ropes if self.part(rope) is None]
        if others:
            return f"{found}; config.json has another RoPE than {', '.join(others)}."
        return f"{found}; config.json has the same."

    def summary(self) -> dict[str, str]:
        """Return what is shown, by name."""
        return {"sentence": self.sentence, "source": self.source.reference, "note": self.note}

    def shown_tables(self) -> list[SummaryTable]:
        """Return a table with a row for each RoPE."""
        rows = []
        for rope, formula in zip(self.ropes, self.formulas, strict=True):
            factor = f"{rope.attention_factor:.6g}"
            positions = f"{rope.positions:,}" if rope.positions else "any"
            part = self.part(rope)
            words = (part.words if part else "another RoPE") if self.spec else "-"
            dimensions = f"{2 * len(rope.inv_freq)}"
            rows.append((rope.file, rope.name, formula, factor, dimensions, positions, words))
        columns = (
            "file",
            "constants",
            "RoPE",
            "attention factor",
            "rotates",
            "positions",
            "config.json",
        )
        return [SummaryTable("ropes", columns, rows)]

    @cached_property
    def parts(self) -> list[ModelRope]:
        """The RoPE in config.json; empty without one."""
        return parts_of(self.spec) if self.spec else []

    def part(self, rope: GraphRope) -> ModelRope | None:
        """The part of the RoPE in config.json that a graph holds; None where it holds another
        RoPE.
        """
        return next((part for part in self.parts if rope.matches(part)), None)

    @cached_property
    def formulas(self) -> tuple[str, ...]:
        """The formula of each RoPE, by config.json where it is the one there."""
        known = ((self.spec.rope_theta,), (self.spec.original_context,)) if self.spec else ((), ())
        parts = (
            next((part for part in self.parts if rope.holds(part.inv_freq)), None)
            for rope in self.ropes
        )
        return tuple(
            part.formula if part else rope.recognised(*known)
            for rope, part in zip(self.ropes, parts, strict=True)
        )

    def to_dict(self) -> JsonObject:
        """Return the inspection as JSON-ready data; keys stay within a schema."""
        ropes = [
            rope.to_dict()
            | {
                "formula": formula,
                "config": part.words if (part := self.part(rope)) else None,
            }
            for rope, formula in zip(self.ropes, self.formulas, strict=True)
        ]
        return {
            "source": self.source.to_dict(),
            "graphs": list(self.source.graphs),
            "ropes": ropes,
            "note": self.note,
        }


def inspect_graph(source: GraphSource) -> GraphInspection:
    """Inspect compiled graphs. Raises BadSource for a damaged graph, and where none holds a
    RoPE.
    """
    ropes = [rope for name, graph in source.opened.items() for rope in ropes_of(graph, name)]
    if not ropes:
        raise BadSource(
            f"{source.reference} has no constants from which cos and sin are made; export the"
            " checkpoint again, or name the graph of the decoder"
        )
    if not source.has_config:
        return GraphInspection(
            source, tuple(ropes), None, "there is no config.json beside the graph"
        )
    try:
        return GraphInspection(source, tuple(ropes), inspect_source(source).spec)
    except BadSource as problem:
        return GraphInspection(source, tuple(ropes), None, str(problem))


@dataclass(frozen=True)
class GraphComparison(Summary):
    """A graph and another model. rows: each RoPE of the graph, and what the other one has for it,
    in words.
    """

    graph: str
    other: str
    rows: tuple[tuple[str, str], ...]
    problems: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether the other model computes every RoPE of the graph, and the graph reaches its
        context.
        """
        return not self.problems

    @property
    def sentence(self) -> str:
        """The conclusion in words."""
        if self.problems:
            return f"They differ: {'; '.join(self.problems)}."
        return "They have the same RoPE."

    def summary(self) -> dict[str, str]:
        """Return what is shown, by name."""
        return {"sentence": self.sentence, "graph": self.graph, "other": self.other}

    def shown_tables(self) -> list[SummaryTable]:
        """Return a table with a row for each RoPE of the graph."""
        return [SummaryTable("rows", (self.graph, self.other), self.rows)]

    def to_dict(self) -> JsonObject:
        """Return the comparison as JSON-ready data; keys stay within a schema."""
        return {"same": self.same, **asdict(self)}


def compare_graph(graph: GraphInspection, other: GraphInspection | Inspection) -> GraphComparison:
    """Compare compiled graphs with a checkpoint, a GGUF file or other graphs."""
    parts = (
        list[ModelRope](other.ropes) if isinstance(other, GraphInspection) else parts_of(other.spec)
    )
    context = 0 if isinstance(other, GraphInspection) else other.spec.context
    rows = list[tuple[str, str]]()
    problems = list[str]()
    for rope in graph.ropes:
        reverse = (
            each for each in parts if isinstance(each, GraphRope) and each.matches(rope)
        )  # it may round more
        part = next((each for each in parts if rope.matches(each)), next(reverse, None))
        rows.append((rope.name, part.words if part else _differs(rope, parts[0])))
        problems += [f"{rope.name} has {rows[-1][1]}"] if part is None else []
        if rope.positions is not None and rope.positions < context:
            problems.append(
                f"{rope.name} have {rope.positions:,} rows, and the context is {context:,}"
            )
    if not (problems or any(row[1] == parts[0].words for row in rows)):
        problems.append("the graph has only the RoPE of other layers")
    return GraphComparison(
        graph.source.reference, other.source.reference, tuple(rows), tuple(problems)
    )


def _differs(rope: GraphRope, part: ModelRope) -> str:
    vectors = compare_frequencies(rope.inv_freq, part.inv_freq)
    if vectors is None:
        return f"{2 * len(rope.inv_freq)} dimensions, not {2 * len(part.inv_freq)}"
    if rope.holds(part.inv_freq):
        return f"the attention factor {rope.attention_factor:.6g}, not {part.attention_factor:.6g}"
    times = f", by up to {vectors.largest_ratio:.4g} times" if vectors.largest_ratio else ""
    return f"other frequencies ({vectors.differing} of {vectors.pairs} pairs{times})"
