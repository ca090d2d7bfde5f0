"""The path of the main job: from a model and a recipe to an output that is written and checked.

`plan_output` decides everything and writes nothing. `write_output` writes what was planned, checks
it, and validates it. The command line, the pages, `run` and Python all go through these two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ..bake.apply import AppliedPlan, apply, make_plan
from ..bake.companions import paired
from ..bake.execution import ApplyOptions
from ..bake.gguf import ExportPlan
from ..bake.next_steps import NextSteps, check_command, run_commands
from ..bake.output import Output
from ..bake.plan import Plan
from ..bake.projector import projector_command, write_projector
from ..bake.quality import quality
from ..bake.warnings import planned_modelfile, write_modelfile
from ..convert.target import Target
from ..engines.probe import Probe
from ..errors import Interruption, UsageError
from ..formats.gguf.inplace import recover
from ..hub.card import with_card
from ..inspection.memory.fit import check_machine
from ..models.gguf import GgufSource
from ..models.source import Source
from ..options import MachineOptions
from ..reporting import Reporter
from ..rope.errors import RopeconvError, command_line
from ..rope.features import find_hook
from ..rope.lengths import format_tokens
from ..rope.recipe import Recipe
from .validation import ValidationChoice, validate_written


@dataclass(frozen=True)
class Writing(ApplyOptions):
    """How an output is written, checked and noted."""

    check: bool = True
    """Ask the installed transformers, or llama.cpp, about the output before it gets its name."""

    remember: bool = True
    """Note on this machine where the source is."""

    modelfile: bool = False
    """Write a Modelfile for Ollama beside a GGUF file."""


def plan_output(
    source: Source | GgufSource,
    recipe: Recipe,
    target: Target,
    by_length: bool = False,
    with_draft: bool = False,
    card: bool = True,
    machine: MachineOptions | None = None,
    ollama: bool = False,
    place: Callable[[Plan], Plan] = lambda plan: plan,
) -> Plan:
    """Plan an output: its schedule, encoding, verdicts and files.

    Args:
        source: From `open_source`.
        recipe: The method and its modifiers.
        target: Format, encoding, runtimes and place.
        by_length: Whether --context chose the method, which then must not be known to need
            training.
        with_draft: Whether its draft model is extended too, which its receipt names.
        card: Whether a folder gets a model card.
        machine: The machine that the output is to fit, by default this one.
        ollama: Whether Ollama runs a GGUF file, from a Modelfile.
        place: Returns the plan with another place of the output, such as a folder of several.

    Raises:
        UsageError: For options that do not go together, and a method that needs training.
        RopeconvError: As `make_plan` does, and for a package that is missing.
    """
    if machine is not None:
        check_machine(machine)
    plan = place(make_plan(source, recipe, target))
    if machine is not None:
        with_ollama = ollama and not plan.is_folder
        plan = replace(plan, asked=machine, with_ollama=with_ollama)
        _ = plan.fit  # computed now, since it raises UsageError for sizes that cannot be
    if with_draft:
        plan = paired(plan)  # its receipt names the draft
    if by_length:
        refuse_untrained(plan, source.reference)
    if card:
        plan = with_card(plan)
    plan.check_packages()
    return plan


def write_output(
    plan: Plan,
    writing: Writing,
    validation: ValidationChoice,
    reporter: Reporter,
    probe: Probe | None = None,
    title: str = "Writing",
    draft: Plan | None = None,
) -> Output:
    """Write the output of a plan, check it, and validate it.

    Args:
        plan: From `plan_output`.
        writing: How it is written.
        validation: From `choose_validation`.
        reporter: Receives what happens.
        probe: A process with the installed transformers, in which the output is checked; None
            starts one where it is needed.
        title: The title of the progress.
        draft: The plan of its draft model, for the commands that run both.

    Raises:
        Disagreement: Where the output is not what was planned; nothing is kept.
        Interruption: At Ctrl-C; the same command continues.
        RopeconvError: Where it cannot be written; nothing is kept.
    """
    # two options are for folders only; a Modelfile is for a GGUF file
    link = writing.link and plan.is_folder
    checksum = writing.checksum and plan.is_folder
    modelfile = None
    if writing.modelfile and not plan.is_folder:
        modelfile = planned_modelfile(plan)
    try:
        with reporter.progress(title, plan.bytes) as advance:
            done = apply(
                plan,
                link=link,
                force=writing.force,
                checksum=checksum,
                staged=writing.staged,  # without the files that are copied unchanged
                fsync=writing.fsync,
                check=writing.check,
                advance=advance,
                probe=probe,
                remember=writing.remember,  # where the source is, on this machine
                beside=modelfile,  # both get their names together
            )
    except KeyboardInterrupt:
        raise _interruption(plan) from None
    return finish_output(plan, done, writing.modelfile, validation, reporter, draft)


def finish_output(
    plan: Plan,
    done: AppliedPlan,
    modelfile: bool,
    validation: ValidationChoice,
    reporter: Reporter,
    draft: Plan | None = None,
) -> Output:
    """Validate an output that is in its place, and return it with the commands that follow.

    The Modelfile of a new output got its name together with the output, and is written here only
    where it is missing or differs.

    Args:
        plan: From `plan_output`.
        done: The output, of this run or of an earlier one.
        modelfile: Whether a Modelfile for Ollama is written beside a GGUF file.
        validation: From `choose_validation`.
        reporter: Receives what happens.
        draft: The plan of its draft model, for the commands that run both.
    """
    # Validate it on a device, if one was chosen. Where the installed transformers does not compute
    # the schedule of the output (`uncomputed`), it cannot agree, and the output is not validated.
    result = None
    has_device = validation.device != ""
    if has_device and not done.uncomputed:
        result = validate_written(plan, done.path, validation, reporter)

    # files beside it: for Ollama, and for the images of a multimodal model
    modelfile_path = None
    if modelfile and not plan.is_folder:
        modelfile_path = write_modelfile(plan)
    try:
        write_projector(plan)
    except RopeconvError as problem:
        # the language model is complete, and is kept
        reporter.note(f"The projector is not written: {problem}")

    output = Output(
        path=done.path,
        plan=plan,
        check=done.check,
        reason=done.reason,  # why the check was left out, if it was
        uncomputed=done.uncomputed,
        against=plan.source.reference,
        validation=result,
        modelfile=modelfile_path,
        was_complete=done.was_complete,
    )
    return replace(output, steps=steps_after(output, draft))


def steps_after(output: Output, draft: Plan | None = None, against: str = "") -> NextSteps:
    """Return the commands that follow an output that was written.

    Args:
        output: The output.
        draft: The plan of its draft model, None without one.
        against: Its source, where that is not the one of its plan.
    """
    plan = output.plan
    assert isinstance(plan, Plan)
    path = output.path
    if path is None:
        return NextSteps()

    # `ropeconv train-config OUT --for axolotl`; the feature with the trainers may not be installed
    train = ""
    if not plan.fine_tuning.may_work_untuned:
        training_step = find_hook("training_step")
        if training_step:
            train = training_step(plan, path)

    # `vllm serve OUT ...`, and `ropeconv validate OUT`
    run = run_commands(plan, path, output.modelfile, draft)
    check = ""
    if not output.validation:
        is_computed_here = not output.uncomputed  # by the installed transformers
        check = check_command(plan, path, is_computed_here, against)

    # the command that converts the vision part of a multimodal model (mmproj-*.gguf)
    images = ""
    if isinstance(plan, ExportPlan):
        images = projector_command(plan)
    return NextSteps(
        fits=plan.fit.sentence if plan.fit else "",
        quality=quality(plan),
        train=train,
        run=tuple(run),
        check=check,
        images=images,
    )


def recover_file(source: str, reporter: Reporter) -> None:
    """Undo an interrupted change of a GGUF file in place, and note it."""
    if recover(Path(source)):
        reporter.note(f"An interrupted change of {source} was undone first.")


def refuse_untrained(plan: Plan, source: str) -> None:
    """Refuse the method that --context chose where it is known to need training.

    Args:
        plan: The plan of the output.
        source: The model, as the user named it.

    Raises:
        UsageError: It needs training; the message has the command that names the method, and the
            one that compares methods.
    """
    fine_tuning = plan.fine_tuning
    if fine_tuning.may_work_untuned:
        return

    # The length that the user wanted. It is computed again, since the plan may declare a longer
    # one: some model classes derive their attention factor from two declared lengths.
    recipe = plan.recipe
    rope_of_source = recipe.start(plan.before)
    wanted_schedule = recipe.schedule(rope_of_source)
    length = format_tokens(wanted_schedule.context)

    # such as "--context 1M is 32 times ..., where yarn needs fine-tuning"
    compare = command_line("advise", source, "--context", length)
    raise UsageError(
        f"--context {length} is {fine_tuning.times}, where {recipe.method.name}"
        f" {fine_tuning.need}, and"
        " --context chooses only what may work without training; to train the model, pass"
        f" {_named_method(plan, length)}, or compare methods with `{compare}`"
    )


def _named_method(plan: Plan, length: str) -> str:
    """Return the options that name the method of a plan which --context chose: `--yarn 1M`.

    With --context only, ropeconv chooses the method, and refuses a method that needs training. With
    these options in place of --context, ropeconv plans the same output and does not refuse it.

    Args:
        plan: The plan, with the chosen recipe.
        length: The length to reach, such as "1M".
    """
    # --context chooses YaRN. For a model that was trained with a scaling, it makes that scaling
    # wider instead (`on_top`): YaRN, or the scaling of Llama 3.1.
    recipe = plan.recipe
    if recipe.on_top:
        method = "llama3" if plan.before.form.kind == "llama3" else "yarn"
        options = [f"--{method} {length}", "--on-top"]
    else:
        options = [f"--yarn {length}"]
    if plan.target.replace:
        options.append("--replace")
    if recipe.attention_factor is not None and not recipe.on_top:
        options.append(f"--attention-factor {recipe.attention_factor:.9g}")
    return " ".join(options)


def _interruption(plan: Plan) -> Interruption:
    """Return the error for Ctrl-C while an output was written."""
    if plan.target.in_place:
        return Interruption(
            f"interrupted in a change of {plan.out}; the same command undoes it first, and then"
            " starts again"
        )
    state = "is as it was before" if plan.out.exists() else "does not exist yet"
    return Interruption(
        f"interrupted; {plan.out} {state}, and finished files are in a hidden folder beside it: the"
        " same command continues with them"
    )
