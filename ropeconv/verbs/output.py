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
from ..bake.modelfile import planned_modelfile, write_modelfile
from ..bake.next_steps import NextSteps, check_command, run_commands
from ..bake.output import Output
from ..bake.plan import Plan
from ..bake.projector import projector_command, write_projector
from ..bake.quality import quality
from ..bake.start import complete_recipe, keeps_every_frequency, ways_to_lengthen
from ..convert.target import Target
from ..engines.probe import Probe
from ..errors import Interruption, UsageError
from ..formats.gguf.inplace import recover
from ..hub.card import with_card
from ..inspection.inspection import inspect_source
from ..inspection.memory.fit import check_machine
from ..models.gguf import GgufSource
from ..models.source import Source
from ..options import MachineOptions
from ..reporting import Reporter
from ..rope.errors import RopeconvError, command_line
from ..rope.features import find_hook
from ..rope.lengths import format_tokens
from ..rope.recipe import Recipe
from ..validate.validation import Validation
from .validation import ValidationChoice, validate_written


@dataclass(frozen=True)
class Writing(ApplyOptions):
    """How an output is written, checked and noted."""

    check: bool = True
    """Ask the installed transformers, or llama.cpp, about the output before it gets its name."""

    remember: bool = True
    """Note on this machine where the source is."""

    modelfile: bool = False
    """Write a Modelfile for Ollama beside a GGUF file. `--runtime ollama` has one without this."""


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
    """Plan an output: its frequencies, its encoding and its files. Nothing is written.

    Args:
        source: The model, from `open_source`.
        recipe: The method and its modifiers.
        target: The format, the encoding, the runtimes and the path of the output.
        by_length: Whether the user named only a length (--context), and ropeconv the method.
        with_draft: Whether a draft model is extended with the model.
        card: Whether a folder gets a model card.
        machine: The memory of the machine that will run the output; None to leave that out.
        ollama: Whether a GGUF file gets a Modelfile for Ollama.
        place: A function that changes the path of the output in a plan, and returns the new plan.

    Raises:
        UsageError: Options do not go together, or the method that ropeconv chose needs training or
            changes nothing.
        RopeconvError: The source cannot be planned, or a package is missing.
    """
    if machine is not None:
        check_machine(machine)
    if by_length:
        refuse_useless(source, recipe)
    plan = make_plan(source, recipe, target)
    plan = place(plan)
    if machine is not None:
        plan = replace(plan, asked=machine, with_ollama=ollama and not plan.is_folder)
        _ = plan.fit  # computed now: raises UsageError for an impossible size of the memory
    if with_draft:
        plan = paired(plan)  # the receipt of the model will name the draft model
    if by_length:
        refuse_untrained(plan, source.reference)
    if card:
        plan = with_card(plan)
    plan.check_packages()
    return plan


def gets_modelfile(plan: Plan, asked: bool) -> bool:
    """Return whether a Modelfile for Ollama is written beside an output.

    A GGUF file gets one with --ollama, and with --runtime ollama.

    Args:
        plan: The plan of the output.
        asked: Whether the user passed --ollama.
    """
    return not plan.is_folder and (asked or plan.is_for_ollama)


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
        plan: The plan, from `plan_output`.
        writing: The options of writing, such as `force`.
        validation: Whether and where the output is validated, from `choose_validation`.
        reporter: Receives notes and progress for the user.
        probe: A process that has imported transformers, to check the output; None to start a
            process if one is needed.
        title: The title of the progress bar.
        draft: The plan of the draft model; None without a draft model.

    Raises:
        Disagreement: The written files differ from the plan. They are removed.
        Interruption: The user pressed Ctrl-C. The same command continues.
        RopeconvError: The output cannot be written. Nothing is kept.
    """
    # hard links and hashes are for the files of a folder
    link = writing.link and plan.is_folder
    checksum = writing.checksum and plan.is_folder

    modelfile = None
    if gets_modelfile(plan, writing.modelfile):
        modelfile = planned_modelfile(plan)

    try:
        with reporter.progress(title, plan.bytes) as advance:
            written = apply(
                plan,
                link=link,
                force=writing.force,
                checksum=checksum,
                staged=writing.staged,  # leave out files that would be copied unchanged
                fsync=writing.fsync,
                check=writing.check,
                advance=advance,
                probe=probe,
                remember=writing.remember,  # note the path of the source on this machine
                beside=modelfile,  # a second file, written together with the output
            )
    except KeyboardInterrupt:
        raise _interruption(plan) from None
    return finish_output(plan, written, writing.modelfile, validation, reporter, draft)


def finish_output(
    plan: Plan,
    done: AppliedPlan,
    modelfile: bool,
    validation: ValidationChoice,
    reporter: Reporter,
    draft: Plan | None = None,
) -> Output:
    """Validate an output that is written, and write the files beside it.

    Args:
        plan: The plan of the output.
        done: The output, written in this run or in an earlier run.
        modelfile: Whether the user asked for a Modelfile for Ollama with --ollama.
        validation: Whether and where the output is validated, from `choose_validation`.
        reporter: Receives notes and progress for the user.
        draft: The plan of the draft model; None without a draft model.

    Returns:
        The output, with the commands that the user may run next.
    """
    result = None
    has_device = validation.device != ""
    if has_device and done.can_be_compared:
        result = validate_written(plan, done.path, validation, reporter)

    # the vision part of a multimodal model (mmproj-*.gguf)
    try:
        write_projector(plan)
    except RopeconvError as problem:
        # the language model is complete, and is kept
        reporter.note(f"The projector is not written: {problem}")

    # the Modelfile, which names the projector; a file with the right contents is left unchanged
    modelfile_path = None
    if gets_modelfile(plan, modelfile):
        modelfile_path = write_modelfile(plan)

    return make_output(plan, done, result, modelfile_path, draft)


def make_output(
    plan: Plan,
    done: AppliedPlan,
    validation: Validation | None = None,
    modelfile: Path | None = None,
    draft: Plan | None = None,
    against: str = "",
    published: str = "",
) -> Output:
    """Return an output with all that is known of it, and the commands that the user may run next.

    Args:
        plan: The plan of the output.
        done: The place of the output, and the result of its check.
        validation: The comparison of its logits; None without one.
        modelfile: Its Modelfile for Ollama; None without one.
        draft: The plan of the draft model; None without a draft model.
        against: The source to validate the output with; empty for the source in its plan.
        published: The URL of an output that is kept on the Hub only; empty for others.
    """
    output = Output(
        path=None if published else done.path,
        plan=plan,
        check=done.check,
        reason=done.reason,  # why the check was left out; empty if it was made
        uncomputed=done.uncomputed,
        source_problem=done.source_problem,
        against=against or plan.source.reference,
        validation=validation,
        published=published,
        modelfile=modelfile,
        was_complete=done.was_complete,
    )
    next_commands = steps_after(output, draft, against)
    return replace(output, steps=next_commands)


def steps_after(output: Output, draft: Plan | None = None, against: str = "") -> NextSteps:
    """Return the commands that the user may run next with an output.

    Args:
        output: The written output.
        draft: The plan of the draft model; None without a draft model.
        against: The source to validate the output with; empty for the source in its plan.

    Returns:
        The commands. A command that does not apply to this output is empty.
    """
    plan = output.plan
    assert isinstance(plan, Plan)
    path = output.path
    if path is None:  # the output was only published
        return NextSteps()

    # ropeconv train-config OUT --for axolotl; the feature that writes such configs is optional
    training_command = ""
    if not plan.fine_tuning.may_work_untuned:
        training_step = find_hook("training_step")
        if training_step:
            training_command = training_step(plan, path)

    # vllm serve OUT ...
    serving_commands = run_commands(plan, path, output.modelfile, draft)

    # ropeconv validate OUT, if the output was not validated yet, and its source can be run
    validation_command = ""
    if not output.validation and not output.source_problem:
        is_computed_here = not output.uncomputed  # by the installed transformers
        validation_command = check_command(plan, path, is_computed_here, against)

    # the command that converts the vision part of a multimodal model (mmproj-*.gguf)
    projector = ""
    if isinstance(plan, ExportPlan):
        projector = projector_command(plan)

    return NextSteps(
        fits=plan.fit.sentence if plan.fit else "",
        quality=quality(plan),
        train=training_command,
        run=tuple(serving_commands),
        check=validation_command,
        images=projector,
    )


def recover_file(source: str, reporter: Reporter) -> None:
    """Undo an interrupted change of a GGUF file in place, and note it."""
    if recover(Path(source)):
        reporter.note(f"An interrupted change of {source} was undone first.")


def refuse_useless(source: Source | GgufSource, recipe: Recipe) -> None:
    """Refuse the method that ropeconv chose, if it changes no frequency of the model.

    All pairs of Gemma 4 26B rotate so often within its trained context that YaRN keeps them. It
    would change only the attention factor, which the model was not trained with.

    Args:
        source: The model.
        recipe: The method that ropeconv chose for the length of the user.

    Raises:
        UsageError: It changes none.
    """
    inspection = inspect_source(source)
    completed = complete_recipe(recipe, inspection)
    spec = completed.start(inspection.basis(completed))
    schedule = inspection.schedule_of(completed)
    if not schedule.keeps_frequencies(spec.current()):
        return
    raise UsageError(
        f"--context {format_tokens(schedule.context)} without a method is YaRN:"
        f" {keeps_every_frequency(recipe.method, spec)};"
        f" {ways_to_lengthen(schedule.context, inspection.spec)}"
    )


def refuse_untrained(plan: Plan, source: str) -> None:
    """Refuse a plan whose method needs training, if the user did not name the method.

    `ropeconv apply MODEL --context 1M` lets ropeconv choose a method that works without training.

    Args:
        plan: The plan of the output, with the method that ropeconv chose.
        source: The path or Hub id of the model, for the commands in the message.

    Raises:
        UsageError: The method is known to need training for this length.
    """
    fine_tuning = plan.fine_tuning
    if fine_tuning.may_work_untuned:
        return

    # The length that the user asked for, such as "1M". It is not taken from the plan, which may
    # declare a longer context: some model classes derive their attention factor from it.
    recipe = plan.recipe
    rope_of_source = recipe.start(plan.before)
    wanted_schedule = recipe.schedule(rope_of_source)
    length = format_tokens(wanted_schedule.context)

    # "--context 1M is 32 times the trained 32,768 tokens, where yarn needs fine-tuning, and ..."
    times_trained = fine_tuning.times
    needs_training = fine_tuning.need
    method_options = _options_of_method(plan, length)
    advise_command = command_line("advise", source, "--context", length)
    raise UsageError(
        f"--context {length} is {times_trained}, where {recipe.method.name} {needs_training}, and"
        " --context chooses only what may work without training; to train the model, pass"
        f" {method_options}, or compare methods with `{advise_command}`"
    )


def _options_of_method(plan: Plan, length: str) -> str:
    """Return options of `ropeconv apply` that name the method of a plan, such as `--yarn 1M`.

    Args:
        plan: A plan for which the user named only a length (--context), and ropeconv the method.
        length: The length, such as "1M".
    """
    recipe = plan.recipe

    # Llama 3.1, gpt-oss: the model was trained with a scaling, which is extended (`on_top`).
    if recipe.on_top:
        method = "llama3" if plan.before.form.kind == "llama3" else "yarn"
        options = [f"--{method} {length}", "--on-top"]
    # All other models: ropeconv chooses YaRN.
    else:
        options = [f"--yarn {length}"]

    # other options of the user, which stay
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
