"""The RoPE in a compiled graph: its frequencies, the method that gives them, and comparisons.

`inspect_graph` finds the constants, and `compare_graph` compares them with another model.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import product
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ropeconv.errors import BadSource
from ropeconv.formats.jsontext import JsonObject
from ropeconv.inspection.frequencies import compare_frequencies
from ropeconv.inspection.inspection import Inspection, inspect_source
from ropeconv.rope.errors import RopeconvError, counted
from ropeconv.rope.forms import InterpolatedForm, Plain, Vector, base_inv_freq
from ropeconv.rope.methods.method import REGISTRY, ScaledMethod
from ropeconv.rope.spec import WIDEST_HEAD, RopeSpec, recognise
from ropeconv.rope.summary import Summary, SummaryTable
from ropeconv.runtimes.verdict import TOLERANCE, describe, frequencies

from .model import Constant, Graph, GraphSource

Repeat = Literal["", "half", "interleaved"]
PRECISION = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""The largest relative rounding error of a number in each type of a constant."""
SMALLEST_NUMBERS = {"float16": 2.0**-24}
"""The smallest number above 0 of types in which a frequency may be one of the smallest."""
SMALLEST_FACTOR = 1.01
"""The smallest scale factor that is taken for one: a smaller change may be rounding."""
USUAL_TRAINED_LENGTHS = tuple(1 << power for power in range(9, 21))
"""Trained lengths in tokens that are tried for methods that depend on them."""


def without_repeat(values: NDArray[Any]) -> tuple[NDArray[Any], Repeat]:
    """Return one column per pair of dimensions, and how an array repeats them.

    Args:
        values: [..., pairs], or [..., 2 pairs] where both dimensions of a pair have the same value.
    """
    width = values.shape[-1]
    if width % 2:
        return values, ""
    first_half = values[..., : width // 2]
    if np.array_equal(first_half, values[..., width // 2 :]):  # a b c a b c
        return first_half, "half"
    even = values[..., ::2]
    if np.array_equal(even, values[..., 1::2]):  # a a b b c c
        return even, "interleaved"
    return values, ""


def with_repeat(values: NDArray[Any], repeat: Repeat) -> NDArray[Any]:
    """Return the columns of an array repeated, the inverse of `without_repeat`."""
    if repeat == "half":
        return np.concatenate([values, values], axis=-1)
    if repeat == "interleaved":
        return np.repeat(values, 2, axis=-1)
    return values


@dataclass(frozen=True, eq=False)
class ModelRope:
    """A RoPE of a model."""

    name: str
    """Empty for that of the layers that an extension changes; else where it is."""

    inv_freq: Vector
    """Radians per token, float64 [rotary_dim / 2]."""

    attention_factor: float
    """The factor on cos and sin."""

    formula: str = ""
    """The formula that gives the frequencies; empty where it is not known."""

    changes: bool = True
    """Whether an extension changes it."""

    @property
    def words(self) -> str:
        """The result of a comparison in which it is the same."""
        return f"the same, {self.name}" if self.name else "the same"


def ropes_of_spec(spec: RopeSpec) -> list[ModelRope]:
    """Return every set of frequencies of a model, first that of the layers that are extended.

    Others are the short list of LongRoPE, and those of layers with a sliding window.
    """
    current = spec.current()
    factor = current.attention_factor
    formula = describe(spec.form)
    main = ModelRope(name="", inv_freq=current.inv_freq, attention_factor=factor, formula=formula)
    parts = [main]

    # LongRoPE within the trained context; an export of short inputs has these frequencies
    if current.short_inv_freq is not None:
        short = ModelRope(
            name="as its short list",
            inv_freq=current.short_inv_freq,
            attention_factor=factor,
            formula=formula,
        )
        parts.append(short)

    # layers with a sliding window, which rotate otherwise in Gemma 3
    if spec.local_inv_freq is not None:
        local = ModelRope(
            name="in window layers",
            inv_freq=spec.local_inv_freq,
            attention_factor=1.0,
            formula=describe(spec.local_form),
            changes=False,  # an extension does not change these layers
        )
        parts.append(local)
    return parts


@dataclass(frozen=True, eq=False)
class GraphRope(ModelRope):
    """A RoPE in a graph; its name is that of its constants."""

    file: str = field(kw_only=True)
    """The name of the graph."""

    graph: Graph = field(kw_only=True, repr=False)

    values: tuple[str, ...] = field(kw_only=True)
    """Names in the graph: of a vector of frequencies, or of a table of cosines and one of sines."""

    repeat: Repeat = field(kw_only=True)
    """How the columns are repeated for the two dimensions of a pair."""

    error: Vector = field(kw_only=True)
    """By what each frequency may be off, since the graph rounds."""

    positions: int | None = field(default=None, kw_only=True)
    """Rows of a table; None where the angles are computed."""

    @property
    def constants(self) -> tuple[Constant, ...]:
        """Its constants."""
        return tuple(self.graph.constants[value] for value in self.values)

    @property
    def dtype(self) -> str:
        """The type of its constants."""
        return self.constants[0].dtype

    @property
    def layout(self) -> str:
        """The type and shape of its constants: `float32 [4096, 64]`."""
        return f"{self.dtype} {list(self.constants[0].shape)}"

    def holds(self, inv_freq: Vector) -> bool:
        """Return whether it has these frequencies, to within what the graph rounds."""
        if inv_freq.shape != self.inv_freq.shape:
            return False
        return bool(np.all(np.abs(inv_freq - self.inv_freq) <= self.error))

    def matches(self, part: ModelRope) -> bool:
        """Return whether it computes the same, to within what the graph rounds."""
        if not self.holds(part.inv_freq):
            return False
        precision = TOLERANCE
        if self.positions:  # the attention factor is in the numbers of the tables
            precision = max(4 * PRECISION[self.dtype], TOLERANCE)
        difference = abs(part.attention_factor - self.attention_factor)
        return difference <= precision * self.attention_factor

    def formula_of(self, thetas: Iterable[float] = (), lengths: Iterable[int] = ()) -> str:
        """Return the formula that gives these frequencies, such as "yarn, theta 1e6, factor 4".

        A graph stores only numbers, so the method is found by trying: for each likely base, the
        frequencies of each formula are compared with the stored frequencies (`holds`), which are
        rounded.

        Args:
            thetas: Bases to try first, such as `rope_theta` of the config.json.
            lengths: Trained lengths in tokens to try before powers of two.

        Returns:
            The formula in words; "custom inv_freq" if no method gives the frequencies.
        """
        vector = self.inv_freq
        slowest = int(np.flatnonzero(vector).max())  # the index of the last pair that rotates
        thetas_of_caller = tuple(thetas)
        all_lengths = (*lengths, *USUAL_TRAINED_LENGTHS)

        # For each base the simplest explanation is tried first: NTK with some factor has the
        # frequencies of a plain larger base.
        for theta in (*thetas_of_caller, *_guess_bases(vector, slowest)):
            # in some models only the first pairs rotate, and the others have frequency 0 (p-RoPE)
            partly_rotating = recognise(vector, theta)
            if partly_rotating:
                return describe(partly_rotating)

            # no scaling
            unscaled = base_inv_freq(theta, 2 * len(vector))
            if self.holds(unscaled):
                return describe(Plain(theta))

            # Position interpolation divides all frequencies by one factor. The first frequency is 1
            # before, so it gives the factor: `round_values` of 3.9999 tries 4 first.
            first_divisor = 1 / vector[0]
            for factor in round_values(first_divisor):
                if factor > SMALLEST_FACTOR and self.holds(unscaled / factor):
                    return describe(InterpolatedForm(theta, factor))

            # All other methods are tried, which takes a while. Most of them keep the two highest
            # frequencies, so a guessed base is skipped if it does not give these two.
            keeps_highest = np.all(np.abs(unscaled[:2] - vector[:2]) <= self.error[:2])
            if theta in thetas_of_caller or keeps_highest:
                last_divisor = unscaled[slowest] / vector[slowest]
                formula = self._scaled_formula(theta, round_values(last_divisor), all_lengths)
                if formula:
                    return formula
        return "custom inv_freq"

    def _scaled_formula(
        self, theta: float, factors: Iterable[float], lengths: Iterable[int]
    ) -> str:
        """Return the method that gives the frequencies in the graph: "yarn, theta 1e6, factor 4".

        Args:
            theta: The base.
            factors: Scale factors to try.
            lengths: Trained lengths in tokens to try, since YaRN and Llama 3 depend on them.

        Returns:
            The method in words; empty if no method with these values gives the frequencies.
        """
        methods = [method for method in REGISTRY.values() if issubclass(method, ScaledMethod)]
        larger_factors = [factor for factor in factors if factor > SMALLEST_FACTOR]
        for length in dict.fromkeys(lengths):  # each length once
            unscaled_rope = self._unscaled_spec(theta, length)
            for method, factor in product(methods, larger_factors):
                try:
                    schedule = method(factor).schedule(unscaled_rope)
                except (RopeconvError, ArithmeticError, ValueError):
                    continue  # the method refuses the factor, or overflows: 1e300, say
                gives_frequencies_of_graph = self.holds(schedule.inv_freq)  # equal after rounding
                if not gives_frequencies_of_graph:
                    continue
                if schedule.form:
                    return frequencies(schedule)  # in words: "yarn, theta 1e6, factor 4"
                return f"{method.name}, theta {theta:.12g}, factor {factor:.12g}"
        return ""

    def _unscaled_spec(self, theta: float, trained_length: int) -> RopeSpec:
        """Return a model with as many rotated dimensions, and with the base and nothing else."""
        rotary_dim = 2 * len(self.inv_freq)
        return RopeSpec(
            head_dim=rotary_dim,
            rotary_dim=rotary_dim,
            form=Plain(theta),
            original_context=trained_length,
            context=trained_length,
        )

    def to_dict(self) -> JsonObject:
        """Return the fields as JSON-ready data."""
        return {
            "file": self.file,
            "format": self.graph.described,
            "constants": [constant.name for constant in self.constants],
            "dtype": self.dtype,
            "shape": list(self.constants[0].shape),
            "positions": self.positions,
            "attention_factor": self.attention_factor,
            "inv_freq": self.inv_freq.tolist(),
            "error": self.error.tolist(),
        }


def _guess_bases(vector: Vector, slowest: int) -> list[float]:
    """Return the bases theta (`rope_theta`) that a vector of frequencies suggests, to be tried.

    The frequencies of n = d/2 pairs are w_i = theta^(-i/n), so each pair i > 0 gives a base:
    theta = (w_0 / w_i)^(n / i). Two pairs are used. Without scaling, the slowest pair gives the
    base most accurately. With scaling, the pair i = 1 gives the base of the unscaled model, since
    most methods do not change it.

    Args:
        vector: Radians per token, [pairs].
        slowest: The index of the last pair that rotates.

    Returns:
        The bases rounded to 1 to 8 digits, the roundest first, and those of the slowest pair first.
    """
    pairs = len(vector)
    bases = list[float]()
    for index in (slowest, 1):
        rotates = 0 < index <= slowest
        is_slower_than_first = rotates and vector[index] < vector[0]
        if not is_slower_than_first:  # the formula needs w_0 > w_i > 0
            continue
        ratio = float(vector[0] / vector[index])
        try:
            base = ratio ** (pairs / index)
        except OverflowError:  # not a base of any model
            continue
        bases += round_values(base)
    return bases


def round_values(value: float) -> list[float]:
    """Return a number with 1 to 8 digits and with all of them, the roundest first.

    There are none of a number that is not finite.
    """
    if not math.isfinite(value):
        return []
    values = [float(f"{value:.{digits}g}") for digits in range(1, 9)]
    return list(dict.fromkeys([*values, float(value)]))


def ropes_of(graph: Graph, file: str) -> list[GraphRope]:
    """Return every RoPE in a graph.

    An export has one of two forms: a vector of frequencies, from which operations compute cos and
    sin, or a table of cosines and one of sines with a row for each position.

    Args:
        graph: The graph.
        file: Its name.
    """
    ropes = list[GraphRope]()
    cosines = list[str]()
    sines = list[str]()
    for value in _stored_values(graph):
        constant = graph.constants[value]
        is_empty = 0 in constant.shape
        if constant.dtype == "bool" or is_empty:  # bool: a mask
            continue
        # exporters add axes of size 1 around those of the numbers
        sizes = [size for size in constant.shape if size != 1]
        if not sizes or sizes[-1] > WIDEST_HEAD:
            continue

        # one axis: perhaps inv_freq [pairs]
        if len(sizes) == 1 and sizes[0] > 1:
            rope = _rope_of_vector(graph, file, value)
            if rope is not None:
                ropes.append(rope)

        # two: perhaps a table of cos or sin [positions, pairs]
        if len(sizes) == 2 and sizes[0] > 2:
            function = _recognise_function(constant)
            if function == "sin":
                sines.append(value)
            elif function == "cos":
                cosines.append(value)

    # each table of cosines with the table of sines of the same angles
    for cosine in cosines:
        sine = _sine_for(graph, cosine, sines)
        if not sine:
            continue
        sines.remove(sine)
        rope = _rope_of_tables(graph, file, cosine, sine)
        if rope is not None:
            ropes.append(rope)
    return ropes


def _stored_values(graph: Graph) -> list[str]:
    """Return a name for each constant of a graph.

    `graph.constants` can have a constant several times: under its own name, and then under those
    of its conversions to other types. The first name is returned, in the place of the last.
    """
    first_names: dict[int, str] = {}
    for name, constant in graph.constants.items():
        # taken out and put back, a constant moves to the end
        first_name = first_names.pop(id(constant), name)
        first_names[id(constant)] = first_name
    return list(first_names.values())


def _sine_for(graph: Graph, cosine: str, sines: Iterable[str]) -> str:
    """Find the table of sines that goes with a table of cosines: one of its type and shape.

    Args:
        graph: The graph.
        cosine: The name of the table of cosines.
        sines: The names of tables of sines. One that is named alike comes first: `sin_cached` for
            `cos_cached`.

    Returns:
        The name of the table; empty where none fits.
    """
    table = graph.constants[cosine]
    fitting = []
    for sine in sines:
        other = graph.constants[sine]
        if other.shape == table.shape and other.dtype == table.dtype:
            fitting.append(sine)
    named_alike = cosine.replace("cos", "sin")
    if named_alike in fitting:
        return named_alike
    return fitting[0] if fitting else ""


def _recognise_function(constant: Constant) -> str:
    """Return "cos" or "sin" for a table [positions, pairs], by its first rows; else empty."""
    at_zero, at_one = table_rows(constant, (0, 1))
    if not at_zero.any():  # sin(0) is 0 in each pair
        return "sin" if at_one.any() else ""
    # cos(0) is 1 in each pair, times the attention factor where the table includes it
    factor = at_zero[0]
    starts_at_factor = factor > 0 and (at_zero == factor).all()
    falls = (at_one <= at_zero).all() and (at_one != at_zero).any()
    if starts_at_factor and falls:
        return "cos"
    return ""


def table_rows(constant: Constant, rows: Iterable[int]) -> Vector:
    """Return some rows of a table, float64 [rows, columns]."""
    table = constant.array().reshape(-1, constant.shape[-1])
    return np.asarray(table[list(rows)], dtype=np.float64)


def _rope_of_vector(graph: Graph, file: str, value: str) -> GraphRope | None:
    """Return the RoPE of a vector of frequencies (inv_freq) in a graph; None for another vector.

    Args:
        graph: The graph.
        file: The name of the graph.
        value: The name of the vector in the graph.
    """
    # inv_freq is a vector from which a Cos and a Sin are computed
    if not graph.rotations(value):
        return None
    constant = graph.constants[value]
    numbers = np.asarray(constant.array(), dtype=np.float64)
    # some exports have each frequency twice, for both dimensions of a pair
    vector, repeat = without_repeat(numbers.ravel())

    # frequencies are not negative; pairs that do not rotate have 0, and the first one rotates
    is_finite = np.isfinite(vector).all()
    is_negative = (vector < 0).any()
    first_rotates = vector[0] > 0
    if not is_finite or is_negative or not first_rotates:
        return None

    # the exporter rounds the frequencies twice: when it computes them, and to the stored type. In
    # float16 the slowest are so small that their rounding is not relative to them
    relative = max(TOLERANCE, 2 * PRECISION[constant.dtype])
    smallest = SMALLEST_NUMBERS.get(constant.dtype, 0.0)
    return GraphRope(
        name=constant.name,
        inv_freq=vector,
        attention_factor=graph.attention_factor(value),
        file=file,
        graph=graph,
        values=(value,),
        repeat=repeat,
        error=relative * vector + smallest,
    )


def _rope_of_tables(graph: Graph, file: str, cosine: str, sine: str) -> GraphRope | None:
    """Return the RoPE of two tables, whose row p has A cos(p w) and A sin(p w).

    A is the attention factor and w the frequency of a pair in radians per token.

    Args:
        graph: The graph.
        file: The name of the graph.
        cosine: The name of the table of cosines in the graph.
        sine: The name of the table of sines.

    Returns:
        The RoPE, or None where the tables are something else.
    """
    cos_table = graph.constants[cosine]
    sin_table = graph.constants[sine]
    *outer_sizes, _ = cos_table.shape
    positions = math.prod(outer_sizes)
    last = positions - 1

    # the frequencies from the rows 1, 2, 4, 8, ..., last
    rows = []
    row = 1
    while row < last:
        rows.append(row)
        row *= 2
    rows.append(last)
    # most tables have each column twice, for both dimensions of a pair; one column is compared
    cos, repeat = without_repeat(table_rows(cos_table, rows))
    sin, _ = without_repeat(table_rows(sin_table, rows))
    if cos.shape != sin.shape:
        return None
    inv_freq = _frequencies_from_angles(rows, np.arctan2(sin, cos))

    # Row 0 has A cos(0) = A, the attention factor. Then compare all rows with these frequencies:
    # other tables of two axes are no rotations.
    factor = float(table_rows(cos_table, [0])[0, 0])
    angles = np.outer(rows, inv_freq)
    cos_error = np.abs(cos - factor * np.cos(angles))
    sin_error = np.abs(sin - factor * np.sin(angles))
    # Two errors are allowed: the rounding of the stored numbers, and the rounding of the angles,
    # which the exporter computed in float32. Both have some space.
    precision = PRECISION[cos_table.dtype]
    angle_rounding = PRECISION["float32"] * np.abs(angles)
    allowed = factor * (8 * precision + 4 * angle_rounding)
    if not np.all(np.maximum(cos_error, sin_error) <= allowed):
        return None

    # An angle p w is known to the rounding of the table. So the last row p gives w most accurately.
    rounding_of_frequency = 4 * precision / last
    return GraphRope(
        name=f"{cos_table.name} and {sin_table.name}",
        inv_freq=np.maximum(inv_freq, 0.0),
        attention_factor=factor,
        file=file,
        graph=graph,
        values=(cosine, sine),
        repeat=repeat,
        error=TOLERANCE * np.abs(inv_freq) + rounding_of_frequency,
        positions=positions,
    )


def _frequencies_from_angles(rows: Sequence[int], angles: NDArray[Any]) -> Vector:
    """Return the frequencies of tables of cos and sin, in radians per token [pairs].

    Row p has the angle p w, up to whole turns. So row 1 gives w, with the error of one rounding. A
    later row has the angle of p w within half a turn: the difference to p times the present w,
    wrapped into [-pi, pi), is the error of p w. Divided by p it corrects w, which becomes p times
    as accurate.

    Args:
        rows: Rows of the tables: 1, 2, 4, and so on.
        angles: The angles of these rows within half a turn, in radians [rows, pairs].
    """
    inv_freq = np.zeros(angles.shape[1])
    for row, angle in zip(rows, angles, strict=True):
        rest = angle - row * inv_freq
        within_half_a_turn = np.remainder(rest + math.pi, math.tau) - math.pi
        inv_freq = inv_freq + within_half_a_turn / row
    return inv_freq


@dataclass(frozen=True)
class GraphInspection(Summary):
    """The RoPE in compiled graphs."""

    source: GraphSource
    ropes: tuple[GraphRope, ...]

    spec: RopeSpec | None
    """The RoPE of the config.json beside them; None without one."""

    note: str = ""
    """Why there is no spec."""

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
        """Return a table with a row for each set of frequencies (RoPE) in the graphs."""
        columns = (
            "file",
            "constants",
            "RoPE",
            "attention factor",
            "rotates",
            "positions",
            "config.json",
        )
        rows = []
        for rope, formula in zip(self.ropes, self.formulas, strict=True):
            in_config = "-"  # there is none to compare with
            if self.spec:
                part = self.part(rope)
                in_config = part.words if part else "another RoPE"
            positions = "any"
            if rope.positions:
                positions = f"{rope.positions:,}"
            rows.append(
                (
                    rope.file,
                    rope.name,
                    formula,
                    f"{rope.attention_factor:.6g}",
                    f"{2 * len(rope.inv_freq)}",  # dimensions
                    positions,
                    in_config,
                )
            )
        return [SummaryTable("ropes", columns, rows)]

    @cached_property
    def parts(self) -> list[ModelRope]:
        """The RoPE in config.json; empty without one."""
        return ropes_of_spec(self.spec) if self.spec else []

    def part(self, rope: GraphRope) -> ModelRope | None:
        """Return the part of the RoPE in config.json that a graph holds; None for another one."""
        for part in self.parts:
            if rope.matches(part):
                return part
        return None

    @cached_property
    def formulas(self) -> tuple[str, ...]:
        """The formula of each RoPE, by config.json where it is the one there."""
        return tuple(self._formula_of(rope) for rope in self.ropes)

    def _formula_of(self, rope: GraphRope) -> str:
        for part in self.parts:
            if rope.holds(part.inv_freq):
                return part.formula
        if self.spec is None:
            return rope.formula_of()
        return rope.formula_of((self.spec.rope_theta,), (self.spec.original_context,))

    def to_dict(self) -> JsonObject:
        """Return the inspection as JSON-ready data; keys stay within a schema."""
        ropes = []
        for rope, formula in zip(self.ropes, self.formulas, strict=True):
            part = self.part(rope)
            in_config = part.words if part else None
            ropes.append(rope.to_dict() | {"formula": formula, "config": in_config})
        return {
            "source": self.source.to_dict(),
            "graphs": list(self.source.graphs),
            "ropes": ropes,
            "note": self.note,
        }


def inspect_graph(source: GraphSource) -> GraphInspection:
    """Inspect compiled graphs.

    Raises:
        BadSource: A graph is damaged, or none holds a RoPE.
    """
    ropes = list[GraphRope]()
    for name, graph in source.opened.items():
        ropes += ropes_of(graph, name)
    if not ropes:
        raise BadSource(
            f"{source.reference} has no constants from which cos and sin are made; export the"
            " checkpoint again, or name the graph of the decoder"
        )

    # the config.json is compared where it can be; a graph without one has a RoPE to show too
    if not source.has_config:
        note = "there is no config.json beside the graph"
        return GraphInspection(source=source, ropes=tuple(ropes), spec=None, note=note)
    try:
        spec = inspect_source(source).spec
    except BadSource as problem:
        return GraphInspection(source=source, ropes=tuple(ropes), spec=None, note=str(problem))
    return GraphInspection(source=source, ropes=tuple(ropes), spec=spec)


@dataclass(frozen=True)
class GraphComparison(Summary):
    """A graph and another model."""

    graph: str
    other: str

    rows: tuple[tuple[str, str], ...]
    """Each RoPE of the graph, and what the other model has for it, in words."""

    problems: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether the other model computes every RoPE of the graph, over its whole context."""
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
    """Compare the frequencies in compiled graphs with those of another model.

    Args:
        graph: The graphs, inspected.
        other: A checkpoint, a GGUF file or other graphs, inspected.

    Returns:
        A row for each RoPE of the graphs, and the differences in words.
    """
    # A model may have several RoPEs. The first is the main RoPE, of the layers with full attention.
    # Layers with a sliding window may have another RoPE (Gemma 3).
    if isinstance(other, GraphInspection):
        other_ropes = list[ModelRope](other.ropes)
        context = 0  # a graph does not say how long its context is
    else:
        other_ropes = ropes_of_spec(other.spec)
        context = other.spec.context
    main_rope = other_ropes[0]

    # each RoPE of the graph must be a RoPE of the other model
    rows = list[tuple[str, str]]()
    problems = list[str]()
    has_main_rope = False
    for rope in graph.ropes:
        same_rope = _find_same(rope, other_ropes)
        if same_rope is None:
            difference = _difference(rope, main_rope)
            rows.append((rope.name, difference))
            problems.append(f"{rope.name} has {difference}")
        else:
            rows.append((rope.name, same_rope.words))  # "the same", or "the same, in window layers"
            if same_rope.words == main_rope.words:
                has_main_rope = True

        # a table of cosines has a row for each position
        if rope.positions is not None and rope.positions < context:
            problems.append(
                f"{rope.name} have {rope.positions:,} rows, and the context is {context:,}"
            )

    # a graph with only the RoPE of window layers shows nothing about the main RoPE
    if not problems and not has_main_rope:
        problems.append("the graph has only the RoPE of other layers")
    return GraphComparison(
        graph=graph.source.reference,
        other=other.source.reference,
        rows=tuple(rows),
        problems=tuple(problems),
    )


def _find_same(rope: GraphRope, others: Sequence[ModelRope]) -> ModelRope | None:
    """Return the RoPE of another model that computes the same as one in a graph, or None."""
    for other in others:
        if rope.matches(other):  # up to the rounding of the graph
            return other
    # the other model may be a graph too, which may round more
    for other in others:
        if isinstance(other, GraphRope) and other.matches(rope):
            return other
    return None


def _difference(rope: GraphRope, part: ModelRope) -> str:
    """Return how the RoPE of a graph differs from that of another model, in words.

    An example is "other frequencies (48 of 64 pairs, by up to 4 times)".

    Args:
        rope: The RoPE in the graph.
        part: The RoPE of the other model, such as a config.json, which is known to differ.
    """
    vectors = compare_frequencies(rope.inv_freq, part.inv_freq)
    if vectors is None:  # they have another number of pairs
        return f"{2 * len(rope.inv_freq)} dimensions, not {2 * len(part.inv_freq)}"

    # with the same frequencies, it is the attention factor that differs
    has_same_frequencies = rope.holds(part.inv_freq)
    if has_same_frequencies:
        return f"the attention factor {rope.attention_factor:.6g}, not {part.attention_factor:.6g}"

    ratio = ""
    if vectors.largest_ratio:
        ratio = f", by up to {vectors.largest_ratio:.4g} times"
    return f"other frequencies ({vectors.differing} of {vectors.pairs} pairs{ratio})"
