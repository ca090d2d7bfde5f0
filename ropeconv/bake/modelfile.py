"""The Modelfile of an output, with which Ollama runs it.

Begin with `modelfile_of`. A Modelfile is planned before the output is written, gets its name
together with it, and is written again when the projector of the output is there.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from functools import partial
from pathlib import Path

from ..errors import BadSource, UsageError
from ..formats.drafts import write_file
from ..formats.gguf.file import SHARD, GgufFile
from ..formats.package_data import render
from ..models.length_limits import limits_in, raise_limits
from ..models.modelfile import WITH_FILE, Instruction, parse_modelfile, quote_path, replace_paths
from ..models.projector import projector_beside
from ..rope.errors import RopeconvError, shown
from .hidden import SideFile
from .plan import GgufOutput, Plan
from .projector import find_projector, projector_path

ARCH = "general.architecture"
WITHOUT_OLLAMA = "leave --ollama and --runtime ollama out"
"""The repair in messages: an output without a Modelfile."""


def modelfile_of(plan: Plan) -> Path:
    """Return the path of the Modelfile with which Ollama runs an output.

    Raises:
        UsageError: The output is a folder, or one of several GGUF files of a model, or the source
            has an adapter that llama.cpp does not load with the output.
        RopeconvError: The path has a Modelfile that ropeconv did not write for this output, or the
            Modelfile of the source cannot be one for the output.
    """
    if plan.is_folder:
        raise UsageError("Ollama runs GGUF files, and the output is a folder; add --to gguf")

    # a Modelfile names one file of a model: https://github.com/ollama/ollama/issues/5245
    if SHARD.fullmatch(plan.out.name):
        raise UsageError(
            f"Ollama loads a model from one GGUF file, and {plan.out.name} is one of several; leave"
            " --split-max-size out, merge SOURCE with llama-gguf-split --merge first, or"
            f" {WITHOUT_OLLAMA}"
        )

    _refuse_other_architecture(plan)
    _modelfile_text(plan, find_projector(plan))  # raises for one that cannot be written

    path = plan.out.with_name(f"{plan.out.stem}.Modelfile")
    # a Modelfile that is there now, and not one that was moved away while the output is written
    _refuse_other_modelfile(plan, path_for_user=path, existing=path)
    return path


def _refuse_other_modelfile(plan: Plan, path_for_user: Path, existing: Path) -> None:
    """Raise RopeconvError for a Modelfile that ropeconv did not write for such an output.

    Args:
        plan: The plan of the output.
        path_for_user: The path of the Modelfile, which the message names.
        existing: The file that is checked. While an output is written, an earlier Modelfile has
            been moved into a hidden folder; else this is the same path.
    """
    if not os.path.lexists(existing):
        return
    if existing.is_file() and not existing.is_symlink():
        # The Modelfile of an earlier output may have another context. It may name a projector that
        # is no longer there, or have been written before the projector was.
        context = re.compile(r"num_ctx[ \t]+\"?\d+", re.IGNORECASE)
        existing_text = context.sub("", existing.read_bytes().decode(errors="replace"))
        for projector in (None, projector_path(plan), projector_beside(plan.source)):
            if existing_text == context.sub("", _modelfile_text(plan, projector)):
                return
    raise RopeconvError(
        f"{path_for_user} exists and has other contents; move it away, or {WITHOUT_OLLAMA}"
    )


def planned_modelfile(plan: Plan) -> SideFile:
    """Return the Modelfile that gets its name in one set with an output.

    Raises as `modelfile_of`.
    """
    path = modelfile_of(plan)
    return SideFile(
        path.name,
        _modelfile_text(plan, find_projector(plan)),
        partial(_refuse_other_modelfile, plan, path),
    )


def write_modelfile(plan: Plan) -> Path:
    """Write the Modelfile of an output beside it, unless it is there, and return its path.

    Raises as `modelfile_of`.
    """
    path = modelfile_of(plan)
    text = _modelfile_text(plan, find_projector(plan))
    if not path.exists() or path.read_bytes() != text.encode():
        write_file(path, text)
    return path


def _refuse_other_architecture(plan: Plan) -> None:
    """Raise UsageError for an adapter of the source that llama.cpp refuses with the output.

    An adapter in GGUF names the architecture of its model, and a file that a carrier writes has
    another one. llama.cpp does not load the two together ("model arch and LoRA arch mismatch").
    """
    modelfile = plan.source.modelfile
    if modelfile is None or not isinstance(plan, GgufOutput):
        return
    for command in parse_modelfile(modelfile.text).of("ADAPTER"):
        adapter = Path(modelfile.name).parent / command.value
        # an adapter in another format is converted for the architecture of the source
        arch = _arch_of_adapter(adapter) or plan.start.get(ARCH)
        if arch != plan.result.arch:
            raise UsageError(
                f"{modelfile.name} has an ADAPTER for the architecture {shown(arch)}, and the"
                f" output has {plan.result.arch}, with which llama.cpp refuses it; merge the"
                " adapter into the model first, choose a method that keeps the architecture, or"
                f" {WITHOUT_OLLAMA}"
            )


def _arch_of_adapter(path: Path) -> str:
    """Return the architecture that an adapter in GGUF names; empty for other files."""
    with suppress(BadSource, OSError):
        return str(GgufFile.open(path).get(ARCH) or "")
    return ""


def _modelfile_text(plan: Plan, projector: Path | None) -> str:
    """Return the text of the Modelfile of an output, with which Ollama runs it.

    It is the Modelfile of the source with the new context, or a new text if the source has no
    Modelfile.

    Args:
        plan: The plan of the output.
        projector: The file with the vision part of a multimodal model; None without one.

    Raises:
        RopeconvError: A Modelfile cannot hold the name of the output, such as one with a line
            break, or Ollama does not read the Modelfile of the source.
    """
    folder = plan.out.parent
    model = f"./{plan.out.name}"
    _refuse_lines(model)  # raises for a line break
    context = plan.schedule.context

    projector_place = ""
    if projector is not None:
        projector_place = _relative_path(projector, folder)
    if plan.source.modelfile is None:
        text = render(
            "Modelfile.jinja",
            path=quote_path(model),
            context=context,
            projector=quote_path(projector_place),
        )
        _refuse_other_model(text, model, plan.out.name)
        return text

    # The Modelfile of the source, with three changes.
    # 1. Raise low limits of the context, such as `num_ctx 4096`. A limit has its offset in the
    # text, so this comes before other changes.
    content = plan.source.modelfile.text.encode()
    limits = limits_in("Modelfile", (content,))
    low_limits = [limit for limit in limits if limit.tokens < context]
    if low_limits:
        content = raise_limits(low_limits, context, content)

    # 2. Replace the path of the model, and write other paths as seen from the new folder.
    source_folder = Path(plan.source.modelfile.name).parent
    text = _move_text(content.decode(), source_folder, folder, model)

    # 3. Add missing lines: a second FROM for the projector, and num_ctx.
    models = parse_modelfile(text).of("FROM")
    if projector_place and len(models) == 1:
        end = models[0].stop
        text = f"{text[:end]}\nFROM {quote_path(projector_place)}{text[end:]}"
    if not limits:
        text = f"{text.rstrip()}\nPARAMETER num_ctx {context}\n"
    _refuse_other_model(text, model, plan.source.modelfile.name)
    return text


def _move_text(text: str, old_folder: Path, new_folder: Path, model: str) -> str:
    """Return the text of a Modelfile for another folder and another model.

    A Modelfile names files in lines such as `FROM ./model.gguf` and `ADAPTER ./lora.gguf`. The
    paths are relative to the folder of the Modelfile.

    Args:
        text: The text of the old Modelfile.
        old_folder: The folder of the old Modelfile.
        new_folder: The folder of the new Modelfile.
        model: The path of the new model, for the first FROM.
    """
    parsed = parse_modelfile(text)
    new_paths = dict[Instruction, str]()
    for command in parsed.of(*WITH_FILE):
        # `FROM llama3` names a model of Ollama in place of a file, so it stays unchanged
        is_relative = command.value != "" and not os.path.isabs(command.value)
        file = old_folder / command.value
        if is_relative and file.exists():
            new_paths[command] = _relative_path(file, new_folder)
    for first_from in parsed.of("FROM")[:1]:
        new_paths[first_from] = model
    return replace_paths(text, new_paths)


def _refuse_other_model(text: str, model: str, name: str) -> None:
    """Raise RopeconvError for a Modelfile with which Ollama would not run the output.

    Args:
        text: The new Modelfile.
        model: The path of the output in it.
        name: The Modelfile of the source, or the output, for the message.
    """
    parsed = parse_modelfile(text)
    if parsed.fault:
        raise RopeconvError(
            f"{name} gives a Modelfile that Ollama does not read: {parsed.fault}; correct that, or"
            f" {WITHOUT_OLLAMA}"
        )
    named = [command.value for command in parsed.of("FROM")]
    if named[:1] != [model]:
        raise RopeconvError(
            f"Ollama would read FROM {shown(named[0] if named else '')} in the Modelfile of"
            f" {shown(model)}; choose another name with -o, or {WITHOUT_OLLAMA}"
        )


def _relative_path(path: Path, folder: Path) -> str:
    """A path as seen from a folder, such as "./model.gguf", for a Modelfile in that folder."""
    relative = os.path.relpath(path, folder)
    _refuse_lines(relative)
    return relative if relative.startswith("..") else f"./{relative}"


def _refuse_lines(path: str) -> None:
    """Raise RopeconvError for a path that would be several lines of a Modelfile."""
    if len(path.splitlines()) > 1:
        raise RopeconvError(
            f"a Modelfile cannot name {shown(path)}, which would be several lines of it; rename"
            " that, or choose another name with -o"
        )
