"""check_gguf: reads a GGUF output back before it gets its final name, and compares it with its
plan.

The frequencies follow from the bytes of the written file by llama.cpp's rules, and not from the
edit that was planned.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec

from ..engines.llamacpp import runtime
from ..engines.probe import Probe
from ..engines.transformers.load import folder_of
from ..errors import BadSource, Disagreement
from ..formats.gguf.edit import RESERVED, Edit, RewrittenHeader, rewrite
from ..formats.gguf.file import GgufFile
from ..formats.gguf.header import GgufValue
from ..formats.jsontext import JsonObject
from ..inspection.receipts.receipt import GgufCheckRecord, LayersRecord, ScheduleRecord
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from ..runtimes.llamacpp.archs import assumed_keys
from ..runtimes.llamacpp.purpose import gives_no_logits
from ..runtimes.llamacpp.read_header import arch_of, read_file
from ..runtimes.verdict import difference
from ..validate.checks import ulp_distance
from ..validate.converted_layers import (
    ConversionQuestion,
    choose_tokens,
    compare_converted_layers,
)
from ..validate.gguf_layers import compare_gguf_layers
from ..validate.layers import CheckpointFiles
from .gguf import SPLIT_KEYS, ExportPlan, GgufPlan
from .plan import GgufOutput

END_SIZE = 4096
"""Bytes at the beginning and at the end of a tensor that are compared with the source."""
KEYS_OF_QUANTISER = ("general.file_type", "general.quantization_version")
"""Keys that llama.cpp's quantiser writes."""


def check_gguf(plan: GgufOutput, path: Path, *, in_place: bool = False) -> GgufCheckRecord:
    """Read a written GGUF file back, and return what was compared with its plan.

    Args:
        plan: The plan of the output.
        path: The file that was written, or the first of its shards.
        in_place: The file is the source itself, so that its tensors have nothing to be compared
            with.

    Raises:
        Disagreement: Where the file is damaged, has other keys or tensors than were planned, or
            gives other frequencies by llama.cpp's rules.
    """
    with assumed_keys(plan.target.assume_arch_keys):
        file, spec = _read_back(path)

    # the first difference: of what llama.cpp computes from the file, then of its keys and tensors
    schedule = _expected_schedule(plan)
    wrong = _schedule_difference(schedule, plan.result.kept, spec)
    if not wrong:
        wrong = next(_unlike_plan(plan, file), "")
    if wrong:
        raise _disagreement(wrong)

    compared = 0
    if isinstance(plan, GgufPlan) and not in_place:
        compared = _compare_tensors(plan.source.file, plan.edit, file)
    return _record(schedule, spec, file, compared)


def run_first_layers(plan: GgufOutput, path: Path) -> LayersRecord:
    """Run the first layers of a written file in llama.cpp, and compare them with the method.

    The layers of the source are run too, where llama.cpp can load the source.

    Args:
        plan: The plan of the output.
        path: The file that was written, or the first of its shards.
    """
    # llama.cpp cannot load a checkpoint; and after a change in place, the source file is gone
    source_file = None
    if isinstance(plan, GgufPlan) and not plan.target.in_place:
        source_file = plan.source.file
    # with --assume-arch-keys, an unknown architecture has the keys that all architectures have
    with assumed_keys(plan.target.assume_arch_keys):
        written_file = GgufFile.open(path)
        source_spec = plan.before  # the RoPE before the method
        schedule = _expected_schedule(plan)
        return compare_gguf_layers(written_file, source_file, source_spec, schedule)


def run_converted_layers(plan: ExportPlan, path: Path, probe: Probe) -> LayersRecord:
    """Compare the first layers of a conversion with those of its checkpoint in transformers.

    Args:
        plan: The plan of the output.
        path: The file that was written.
        probe: The process that runs the checkpoint.
    """
    # only for weights that transformers can load from this disk
    source = plan.source
    weights = source.weights()
    if source.generated_files():
        return LayersRecord(reason="its checkpoint is converted first")
    if any(source.local(name) is None for name in weights):
        return LayersRecord(reason="the weights of its checkpoint are not on this disk")

    # what llama.cpp should compute from the file: frequencies and attention factor
    file = GgufFile.open(path)
    schedule = _expected_schedule(plan)
    family = source.family
    source_spec = plan.before  # the RoPE of the checkpoint
    _, vocabulary = file.tensors["token_embd.weight"].shape  # GGUF has the columns first

    # A model_type that transformers does not know is loaded as a model_type with the same layers,
    # such as "llama", which the user names with --family (`assumed`).
    loaded_as = family.text_type if family.assumed else ""

    with folder_of(source, weights=False) as config:
        # what transformers needs to run the checkpoint with the frequencies of the method
        question = ConversionQuestion(
            source=CheckpointFiles(
                config=str(config.absolute()),
                weights=tuple(str(source.path(name).absolute()) for name in weights),
                loaded_as=loaded_as,
            ),
            numbers=ScheduleRecord(**schedule.to_dict()),
            ids=choose_tokens(vocabulary, schedule.original_context),
            layers=source_spec.first_of_each_kind,  # such as layer 0 with a window, 5 without
            queries=family.weights.queries,  # the module that outputs queries, such as "q_proj"
            mla=source_spec.mla,  # whether it has multi-head latent attention, as DeepSeek V3
            states=gives_no_logits(file, arch_of(file)),  # whether to compare hidden states
        )

        ask_probe = partial(_call_in_probe, probe)
        # with --assume-arch-keys, an unknown architecture has the keys that all architectures have
        with assumed_keys(plan.target.assume_arch_keys):
            return compare_converted_layers(file, question, schedule, ask_probe)


def _call_in_probe(probe: Probe, function: str, given: JsonObject) -> JsonObject:
    """Call a function of validate/converted_layers.py in the process of a probe.

    Where transformers fails there, it returns {"reason": "transformers could not run it (...)"}.
    """
    answer = probe.call(f"ropeconv.validate.converted_layers:{function}", given)
    if "error" in answer:
        return {"reason": f"transformers could not run it ({answer['error']})"}
    return answer


def join_layers(first: LayersRecord, second: LayersRecord) -> LayersRecord:
    """Return two comparisons of one output as one; that of which nothing ran is left out."""
    if second.reason:
        return first
    if first.reason:
        return second
    return msgspec.structs.replace(first, layers=(*first.layers, *second.layers))


def refuse_wrong_layers(layers: LayersRecord) -> None:
    """Raise Disagreement where llama.cpp computes something else than the method."""
    worst = layers.differing
    if worst is not None:
        raise Disagreement(
            f"{runtime()} computes something else from this file than the method: the result after"
            f" layer {worst.layer} differ by {worst.error:.2g} up to position {worst.last:,}, where"
            f" {worst.allowed:.2g} is allowed; report it; nothing was kept"
        )


def _expected_schedule(plan: GgufOutput) -> Schedule:
    """The frequencies that llama.cpp should compute from a file: those of the method.

    For some models, llama.cpp computes YaRN with another ramp between low and high frequencies than
    the model has. The plan of such an output has that ramp.
    """
    if plan.result.ramp is None:
        return plan.schedule
    return plan.result.ramp.apply_to(plan.schedule)


def check_split(source: GgufFile, path: Path) -> GgufCheckRecord:
    """Compare a GGUF model that was split into other shards with its source.

    Args:
        source: The model before it was split.
        path: The first of the new shards.

    Raises:
        Disagreement: The shards are damaged, or their RoPE or a tensor differs from the source.
    """
    # the RoPE that llama.cpp computes from the source, and from the new shards
    source_spec = read_file(source).spec
    schedule = source_spec.current()
    split_file, split_spec = _read_back(path)
    difference_of_rope = _schedule_difference(schedule, source_spec, split_spec)
    if difference_of_rope:
        raise _disagreement(difference_of_rope)

    # the tensors
    if split_file.tensors.keys() != source.tensors.keys():
        raise _disagreement(
            f"the written files have {len(split_file.tensors)} tensors, and the source has"
            f" {len(source.tensors)}"
        )
    no_edit = Edit()
    compared = _compare_tensors(source, no_edit, split_file)
    return _record(schedule, split_spec, split_file, compared)


def _read_back(path: Path) -> tuple[GgufFile, RopeSpec]:
    """A written file, and the RoPE that llama.cpp computes from it."""
    try:
        file = GgufFile.open(path)
        return file, read_file(file).spec
    except BadSource as problem:
        raise _disagreement(f"the written file cannot be read back ({problem})") from None


def _record(schedule: Schedule, spec: RopeSpec, file: GgufFile, compared: int) -> GgufCheckRecord:
    """Return the record of a check: how far frequencies differ, and how much was compared."""
    computed = spec.form.inv_freq(spec.rotary_dim)
    distance = ulp_distance(computed, schedule.inv_freq)
    return GgufCheckRecord(
        max_ulp=distance,
        attention_factor=spec.attention_factor,
        tensors=len(file.tensors),
        compared=compared,
    )


def _disagreement(clause: str) -> Disagreement:
    """Return the error for a written file that is not as planned."""
    return Disagreement(
        f"{clause}; check the disk, and report it if that is sound; nothing was kept"
    )


def _schedule_difference(
    schedule: Schedule, source_spec: RopeSpec | None, written_spec: RopeSpec
) -> str:
    """Return how the RoPE that llama.cpp computes from a file differs from the plan.

    Args:
        schedule: The frequencies, attention factor and context that were written.
        source_spec: The RoPE of the source, which layers with a sliding window must still have,
            since methods do not change these layers. None if these layers are not compared.
        written_spec: The RoPE that llama.cpp computes from the written file.

    Returns:
        The difference in words; empty without a difference.
    """
    if written_spec.context != schedule.context:
        return (
            f"the written header declares {written_spec.context:,} tokens, not {schedule.context:,}"
        )
    # `difference` always compares layers with a window, so they are compared with themselves
    spec_of_windows = written_spec if source_spec is None else source_spec
    reason = difference(schedule, spec_of_windows, written_spec)
    if reason:
        return f"llama.cpp would not compute the schedule from the written header: {reason}"
    return ""


def _unlike_plan(plan: GgufOutput, file: GgufFile) -> Iterator[str]:
    """Yield how a written file differs from its plan, by its keys and tensors, as clauses.

    The caller stops at the first clause.
    """
    planned_header = rewrite(plan.start.header, plan.edit)
    yield from _unlike_keys(plan, planned_header, file)
    yield from _unlike_tensors(plan, planned_header, file)

    # a file that was cut off
    for shard, header in zip(file.shards, file.headers, strict=True):
        if header.data_start + header.data_size > header.size:
            yield f"{shard.name} ends before its last tensor does"


def _unlike_keys(
    plan: GgufOutput, planned_header: RewrittenHeader, file: GgufFile
) -> Iterator[str]:
    """Yield the keys of a written header that differ from the planned header, as clauses."""
    # not compared: the space that ropeconv reserves, the keys of a split conversion about its
    # files, and the two keys that llama.cpp's quantiser sets
    ignored = {RESERVED}
    set_by_quantiser: dict[str, GgufValue] = {}
    if isinstance(plan, ExportPlan):
        ignored.update(SPLIT_KEYS)
        if plan.quantisation is not None:
            ignored.update(KEYS_OF_QUANTISER)
            set_by_quantiser = dict(plan.quantisation.values)

    planned = _keys(planned_header.values, ignored) | set_by_quantiser
    written = _keys(file.header.values, ignored)
    for key in dict.fromkeys((*planned, *written)):
        if written.get(key) != planned.get(key):
            yield f"the written header has another {key} than was planned"


def _unlike_tensors(
    plan: GgufOutput, planned_header: RewrittenHeader, file: GgufFile
) -> Iterator[str]:
    """Yield how the tensors of a written file differ from the planned tensors, as clauses.

    Args:
        plan: The plan of the output.
        planned_header: The planned header of the first shard.
        file: The written file, with all its shards.
    """
    # the planned tensors of all shards; an edit of a GGUF file changes the first shard only
    planned = dict(planned_header.tensors)
    if isinstance(plan, GgufPlan):
        for later_header in plan.source.file.headers[1:]:
            planned |= later_header.tensors
    if file.tensors.keys() != planned.keys():
        yield f"the written file has {len(file.tensors)} tensors, and {len(planned)} were planned"
        return

    for name, info in planned.items():
        written = file.tensors[name]
        planned_type = info.type
        if isinstance(plan, ExportPlan) and plan.quantisation is not None:
            # The quantiser of llama.cpp chooses the type of each tensor, which the plan has only if
            # llama.cpp was installed when the plan was made. Otherwise any type is accepted.
            planned_type = plan.planned_types.get(name, written.type)
        if info.shape != written.shape or written.type != planned_type:
            yield f"the written tensor {name} has another shape or type than was planned"


def _keys(values: dict[str, GgufValue], ignored: set[str]) -> dict[str, GgufValue]:
    """Return the keys of a header with their values, without the ignored keys."""
    return {key: value for key, value in values.items() if key not in ignored}


def _compare_tensors(source: GgufFile, edit: Edit, file: GgufFile) -> int:
    """Compare the first and last bytes of each kept tensor, and return how many were compared.

    These bytes show a file that is cut off or shifted, without reading all of it again. Where the
    edit changes a tensor, such as the order of its rows, the bytes of the source are changed in the
    same way first.

    Args:
        source: The file before the edit.
        edit: The edit from the source to the file.
        file: The written file.

    Raises:
        Disagreement: For the first tensor that differs.
    """
    compared = 0
    for name, info in source.tensors.items():
        if name in edit.removed or name not in file.tensors:
            continue
        # the bytes that are compared at each end; for a changed tensor, the smallest part that the
        # change can be applied to, such as the rows of a head
        change = edit.changes.get(name)
        end_size = change.unit if change is not None else min(END_SIZE, info.size)
        first_place = 0
        last_place = info.size - end_size
        for place in {first_place, last_place}:  # the same place for a small tensor
            expected = source.read(name, place, end_size)
            if change is not None:
                expected = change.apply(expected)
            if file.read(name, place, end_size) != expected:
                raise _disagreement(f"the written tensor {name} is not that of the source")
        compared += 1
    return compared
