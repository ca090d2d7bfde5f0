"""Plans for compiled graphs: their constants are replaced, and config.json changes with them.

`graph_plan` is the function to read first. It plans the checkpoint that config.json describes, and
a `GraphEdit` for each graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropeconv.bake.checkpoint import CheckpointPlan, checkpoint_plan
from ropeconv.bake.plan import FilePlan, PlannedFile, source_record
from ropeconv.convert.encoding import ENCODINGS
from ropeconv.convert.target import Target
from ropeconv.errors import BadSource, Disagreement, UnsupportedBake, UsageError
from ropeconv.formats.disk import Advance
from ropeconv.formats.jsontext import JsonObject
from ropeconv.inspection.inspection import inspect_source
from ropeconv.inspection.receipts.companion import CompanionReceipt
from ropeconv.rope.methods.vectors import AsIs
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.schedule import Schedule
from ropeconv.runtimes.verdict import describe, difference
from ropeconv.version import __version__

from .inspection import (
    PRECISION,
    GraphInspection,
    GraphRope,
    ModelRope,
    inspect_graph,
    ropes_of,
    table_rows,
    with_repeat,
)
from .model import Constant, Graph, GraphSource

ROWS_PER_BLOCK = 1 << 14
"""Rows of a table that are computed at a time."""
EXPORT_AGAIN = "run `ropeconv apply` on the checkpoint, and export its output"


@dataclass(frozen=True)
class GraphPlan(FilePlan):
    """The files of an extended graph."""

    source: GraphSource

    checkpoint: CheckpointPlan
    """The plan of the config.json beside the graphs."""

    edits: dict[str, GraphEdit]
    """The changes of the graphs, by their names."""

    @property
    def resume_key(self) -> str:
        return self.checkpoint.resume_key

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences for the user."""
        # The rounding of a stored frequency is multiplied by the position. Tables of cos and sin,
        # which have positions, are rounded only after they were computed in float64.
        types = set()
        for edit in self.edits.values():
            for rope in edit.ropes:
                if rope.positions is None:
                    types.add(rope.constants[0].dtype)

        context = self.checkpoint.schedule.context
        warnings = list(self.checkpoint.warnings)
        for dtype in sorted(types & {"float16", "bfloat16"}):
            error = context * PRECISION[dtype]
            warnings.append(
                f"the graph stores its frequencies in {dtype}, which rounds angles at position"
                f" {context:,} by up to {error:,.3g} radians; export the checkpoint with these"
                " constants in float32"
            )
        return tuple(warnings)

    def to_dict(self) -> JsonObject:
        """Return the plan as JSON-ready data, as `--json` prints it; keys stay within a schema."""
        ropes = []
        for edit in self.edits.values():
            ropes += [rope.to_dict() for rope in edit.ropes]
        return super().to_dict() | {
            "recipe": self.recipe.to_dict(),
            "schedule": self.checkpoint.schedule.to_dict(),
            "ropes": ropes,
            "warnings": list(self.warnings),
        }

    @property
    def recipe(self) -> Recipe:
        """The method and its modifiers."""
        return self.checkpoint.recipe

    @property
    def context(self) -> int:
        """The context of the output in tokens."""
        return self.checkpoint.context

    def summary(self) -> dict[str, str]:
        """Return what is shown, by name."""
        planned = self.checkpoint.summary()
        return super().summary() | {
            "recipe": planned["recipe"],
            "context": planned["context"],
            "warnings": "\n".join(self.warnings),
        }

    def companion(self) -> CompanionReceipt:
        schedule = self.checkpoint.schedule
        return CompanionReceipt(
            ropeconv=__version__,
            companion="graph",
            source=source_record(self.source),
            recipe=self.recipe.to_dict(),
            schedule=schedule.digest,
            context=schedule.context,
        )

    def check(self, folder: Path) -> None:
        """Read the graphs and the config.json that were written again.

        Args:
            folder: The folder with the graphs.

        Raises:
            Disagreement: A graph or config.json does not hold the schedule.
        """
        for name, edit in self.edits.items():
            written = GraphSource(folder / name).opened[name]
            wrong = edit.find_difference(written, name)
            if wrong:
                raise Disagreement(f"{name} does not hold the schedule: {wrong}; nothing was kept")

        # runtimes take the length from config.json, and `inspect` compares the graph with it
        first_name = next(iter(self.edits))
        spec = inspect_source(GraphSource(folder / first_name)).spec
        schedule = self.checkpoint.schedule
        wrong = difference(schedule, self.checkpoint.before, spec)
        if spec.context != schedule.context:
            wrong = f"it declares {spec.context:,} tokens, not {schedule.context:,}"
        if wrong:
            raise Disagreement(f"config.json does not hold the schedule: {wrong}; nothing was kept")


@dataclass(frozen=True, eq=False)
class GraphEdit:
    """The change of one graph."""

    graph: Graph

    ropes: tuple[GraphRope, ...]
    """The RoPEs of the graph that get the schedule."""

    schedule: Schedule

    @cached_property
    def changed(self) -> Graph:
        """The graph with the new constants."""
        for rope in self.ropes:
            if rope.positions is None:
                self._replace_vector(rope)
            else:
                self._replace_tables(rope, rope.positions)
        return self.graph

    def _replace_vector(self, rope: GraphRope) -> None:
        """Replace a vector of frequencies, and the factor on its cos and sin."""
        (constant,) = rope.constants
        vector = with_repeat(self.schedule.inv_freq, rope.repeat)
        vector = vector.reshape(constant.shape).astype(constant.array().dtype)
        self.graph.set_attention_factor(rope.values[0], self.schedule.attention_factor)
        self.graph.replace(constant, vector)

    def _replace_tables(self, rope: GraphRope, positions: int) -> None:
        """Replace a table of cosines and one of sines, which have the factor in their numbers."""
        cosines, sines = rope.constants
        self.graph.replace(cosines, self._table(rope, positions, cosines, np.cos))
        self.graph.replace(sines, self._table(rope, positions, sines, np.sin))

    def _table(
        self, rope: GraphRope, positions: int, present: Constant, cos_or_sin: np.ufunc
    ) -> NDArray[Any]:
        """Compute a table of cos or sin for the new context, with a row for each position.

        It has no fewer rows than the present one.

        Args:
            rope: The RoPE that the table belongs to.
            positions: The rows of the present table.
            present: The present table, whose shape is such as [1, 1, positions, columns].
            cos_or_sin: np.cos or np.sin.
        """
        rows = max(positions, self.schedule.context)
        columns = present.shape[-1]
        table = np.empty((rows, columns), present.array().dtype)
        # in blocks, since the float64 angles take much memory
        for start in range(0, rows, ROWS_PER_BLOCK):
            end = min(start + ROWS_PER_BLOCK, rows)
            angles = np.outer(np.arange(start, end), self.schedule.inv_freq)
            numbers = self.schedule.attention_factor * cos_or_sin(angles)
            # each column once, or twice as in the present table: for both dimensions of a pair
            table[start:end] = with_repeat(numbers, rope.repeat)

        # the shape of the present table, with the new number of rows on the axis of positions
        new_shape = []
        for size in present.shape[:-1]:
            is_axis_of_positions = size == positions  # the others have size 1
            new_shape.append(rows if is_axis_of_positions else size)
        return table.reshape([*new_shape, columns])

    def find_difference(self, written: Graph, name: str) -> str:
        """Return how a graph that was written differs from the schedule; empty where it does not.

        A graph has its RoPE as a vector of frequencies, or as two tables of cos and sin with a row
        for each position. Either is a constant with a name, which stays when its numbers are
        replaced.

        Args:
            written: The graph, read again from the disk.
            name: The name of its file.
        """
        # the RoPEs whose numbers were replaced; the graph may have others, as of window layers
        replaced_names = {rope.name for rope in self.ropes}
        ropes = [rope for rope in ropes_of(written, name) if rope.name in replaced_names]
        # `ropes_of` finds a constant only if its numbers are those of a RoPE
        if len(ropes) < len(self.ropes):
            return "not all of its constants are those of a rotation"

        schedule = self.schedule
        expected = ModelRope(
            name="", inv_freq=schedule.inv_freq, attention_factor=schedule.attention_factor
        )
        for rope in ropes:
            if not rope.matches(expected):
                return f"{rope.name} has other frequencies or another attention factor"

            # A vector of frequencies has no rows. A table must have a row for each position of the
            # context, with the right numbers.
            rows = rope.positions
            if rows is None:
                continue
            if rows < schedule.context:
                return f"{rope.name} has {rows:,} rows for {schedule.context:,} tokens"
            wrong_row = self._find_wrong_row(rope)
            if wrong_row is not None:
                return f"row {wrong_row:,} of {rope.name} is not that of the position"
        return ""

    def _find_wrong_row(self, rope: GraphRope) -> int | None:
        """Return the first wrong row of the tables of cos and sin in a written graph.

        Row p of the tables has A cos(p w) and A sin(p w), for the attention factor A and each
        frequency w: the real and the imaginary part of A exp(i p w). Each row is compared with
        these numbers, which are computed here in another way than for writing.

        Args:
            rope: The RoPE in the written graph.

        Returns:
            The index of the row; None if all rows are right, or if the graph has no tables but a
            vector of frequencies.
        """
        if rope.positions is None:  # no tables
            return None
        inv_freq = self.schedule.inv_freq
        factor = self.schedule.attention_factor
        cosines, sines = rope.constants
        allowed = 4 * PRECISION[rope.dtype] * factor

        # Block by block: row `start + p` is A exp(i (start + p) w) = A exp(i p w) exp(i start w).
        # So each block is the first block times exp(i start w).
        first_block = factor * _powers(inv_freq, min(ROWS_PER_BLOCK, rope.positions))
        for start in range(0, rope.positions, ROWS_PER_BLOCK):
            rows = range(start, min(start + ROWS_PER_BLOCK, rope.positions))
            expected = first_block[: len(rows)] * np.exp(1j * start * inv_freq)
            for constant, numbers in ((cosines, expected.real), (sines, expected.imag)):
                # many tables have each column twice, for the two dimensions that rotate together
                expected_rows = with_repeat(numbers, rope.repeat)
                error = np.abs(table_rows(constant, rows) - expected_rows)
                wrong_rows = np.flatnonzero((error > allowed).any(axis=1))
                if len(wrong_rows):
                    return start + int(wrong_rows[0])
        return None

    def write(self, target: Path, advance: Advance) -> None:
        """Write one of the files of the graph: that with the ending of `target`."""
        with TemporaryDirectory(dir=target.parent) as folder:
            path = Path(folder, f"graph{self.graph.path.suffix}")
            self.changed.save(path)
            path.with_suffix(target.suffix).replace(target)
        advance(target.stat().st_size)


def _powers(inv_freq: NDArray[np.float64], count: int) -> NDArray[np.complex128]:
    """Return exp(i p w) for the positions p = 0, 1, ..., [positions, pairs].

    Each step doubles the rows. With the n rows of the positions 0 to n - 1, those of the positions
    n to 2n - 1 are exp(i (n + p) w) = exp(i n w) exp(i p w): the same rows, turned by n positions.

    Args:
        inv_freq: The frequencies w, in radians per token.
        count: The least number of positions; there are up to twice as many.
    """
    rows = np.ones((1, len(inv_freq)), np.complex128)
    turn_by_rows = np.exp(1j * inv_freq)  # exp(i n w), where n is the number of rows
    while len(rows) < count:
        rows = np.concatenate([rows, rows * turn_by_rows])
        turn_by_rows = turn_by_rows * turn_by_rows
    return rows


def graph_plan(source: GraphSource, recipe: Recipe, target: Target) -> GraphPlan:
    """Plan the extension of compiled graphs. Nothing is written.

    Args:
        source: The graphs.
        recipe: The method and its modifiers.
        target: The output; only its fields `out` and `replace` are used.

    Raises:
        UsageError: The target is named like a file.
        BadSource: A graph has no config.json, or its RoPE is not that of config.json.
        UnsupportedBake: The constants cannot express the schedule.
        RopeconvError: As `checkpoint_plan` does.
    """
    if target.out is not None and target.out.suffix in (".onnx", ".xml", ".gguf"):
        raise UsageError(
            f"-o {target.out} is not a name for a folder, which is written; choose another name"
        )
    if not source.has_config:
        raise BadSource(
            f"{source.reference} has no config.json beside it, which says how long the model was"
            " trained; copy that of the checkpoint there"
        )
    if recipe.log_n is not None:
        raise UnsupportedBake(
            "log-n",
            source.reference,
            "its operations do not scale queries by position",
            EXPORT_AGAIN,
        )

    # The folder is planned like a checkpoint, with its config.json and its other files.
    inspection = inspect_graph(source)
    checkpoint = checkpoint_plan(source, recipe, target)
    _check_expressible(checkpoint, source)

    # Then the graphs, which that plan would copy, are written with the new constants instead.
    ropes = _ropes_to_replace(inspection, checkpoint)
    files = {file.name: file for file in checkpoint.files}
    edits = dict[str, GraphEdit]()
    for name, graph in source.opened.items():
        graph_ropes = tuple(rope for rope in ropes if rope.file == name)
        if not graph_ropes:
            continue
        edit = GraphEdit(graph, graph_ropes, checkpoint.schedule)
        edits[name] = edit

        # the new constants are in the file of the graph, and for OpenVINO in its .bin file:
        # `edit.write` writes whichever it is asked for
        changed_files = [name]
        if graph.saves_data:
            changed_files += source.data_of(name)
        for file in changed_files:
            old_size = files[file].size  # the new file is about as large
            files[file] = PlannedFile("convert", file, old_size, make=edit.write, estimated=True)
    return GraphPlan(
        source=source,
        out=checkpoint.out,
        files=tuple(files.values()),
        skipped=checkpoint.skipped,
        checkpoint=checkpoint,
        edits=edits,
    )


def _check_expressible(plan: CheckpointPlan, source: GraphSource) -> None:
    """Check that a compiled graph can compute the schedule of a plan.

    Its constants, such as frequencies or tables of cos and sin, can be replaced, and not its
    operations.

    Raises:
        UnsupportedBake: The graph cannot. The message is "PART cannot be baked for MODEL: REASON",
            and advises to export the output of `apply` instead.
    """

    def unsupported(part: str, reason: str) -> UnsupportedBake:
        return UnsupportedBake(part, source.reference, reason, EXPORT_AGAIN)

    schedule = plan.schedule
    if schedule.short_inv_freq is not None:
        raise unsupported("a pair of lists", "its operations do not choose between them")
    if schedule.softmax_scale != plan.source_spec.softmax_scale:
        raise unsupported("another softmax scale", "it is in other operations")
    encoding = plan.result.encoding
    if not ENCODINGS[encoding].config_only:
        reason = f"its config.json needs the encoding {encoding}, which changes weights"
        raise unsupported("this schedule", reason)

    # an input or a mask of a fixed length may end before the new context does
    new_context = f"a context of {schedule.context:,} tokens"
    for graph in source.opened.values():
        for name, length in graph.fixed_lengths.items():
            if length < schedule.context:
                reason = f"its input {name} has {length:,} tokens, without dynamic axes"
                raise unsupported(new_context, reason)
        for constant in graph.constants.values():
            length = _mask_length(constant)  # 0 for a constant that is not a mask
            if 0 < length < schedule.context:
                reason = f"its constant {constant.name} is an attention mask of {length:,} tokens"
                raise unsupported(new_context, reason)


def _mask_length(constant: Constant) -> int:
    """Return the tokens of a causal mask, which exporters keep as a square constant; else 0.

    The shape of a mask is [length, length], or [1, 1, length, length].
    """
    if len(constant.shape) < 2:
        return 0
    *outer_sizes, rows, columns = constant.shape
    is_square = rows == columns and all(size == 1 for size in outer_sizes)
    if not is_square or rows <= 1:
        return 0
    # numbers of another shape may be weights
    is_mask = constant.dtype == "bool" or len(constant.shape) == 4
    return rows if is_mask else 0


def _ropes_to_replace(inspection: GraphInspection, plan: CheckpointPlan) -> list[GraphRope]:
    """Return the RoPEs in graphs (sets of frequencies) that an extension replaces.

    Args:
        inspection: The graphs, with the RoPEs that they hold.
        plan: The plan for the config.json of the graphs.

    Raises:
        BadSource: A graph was exported with another config.json, or has no RoPE to change.
    """
    to_replace = list[GraphRope]()
    spec = plan.source_spec
    unscaled_inv_freq = spec.unscaled().current().inv_freq
    unscaled = ModelRope(name="", inv_freq=unscaled_inv_freq, attention_factor=1.0)
    for rope, formula in zip(inspection.ropes, inspection.formulas, strict=True):
        # config.json has the same RoPE: it is replaced, but not in layers with a sliding window,
        # which an extension does not change
        same_rope_in_config = inspection.part(rope)  # None if config.json does not have it
        if same_rope_in_config is not None:
            if same_rope_in_config.changes:
                to_replace.append(rope)
            continue

        # config.json has the same RoPE with a scaling, which was added after the export: --as-is
        # writes the scaling into the graph
        if rope.matches(unscaled):
            if not isinstance(plan.recipe.method, AsIs):
                raise BadSource(
                    f"{rope.file} was exported without the scaling of config.json"
                    f" ({describe(spec.form)}); pass --as-is to write that into the graph"
                )
            to_replace.append(rope)
            continue

        # A RoPE of the model's width must be in config.json. A RoPE of another width stays
        # unchanged, as in a vision tower.
        rotary_dim = 2 * len(rope.inv_freq)
        if rotary_dim == spec.rotary_dim:
            raise BadSource(
                f"{rope.name} in {rope.file} has {formula}, attention factor"
                f" {rope.attention_factor:.6g}, and config.json has {describe(spec.form)},"
                f" attention factor {spec.attention_factor:.6g}; put the config.json there that the"
                " graph was exported with"
            )

    if not to_replace:
        raise BadSource(
            f"{inspection.source.reference} holds no RoPE of {spec.rotary_dim} dimensions; name the"
            " decoder's graph"
        )
    return to_replace
