"""A bake: its plan, its output on the disk, and its publication."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from ...bake import CheckpointPlan, Plan, apply, make_plan
from ...bake.running import run_commands
from ...bake.writing.hidden import Hidden, discard
from ...errors import RopeconvError, UsageError
from ...formats.copying import human
from ...formats.scratch import scratch
from ...hub.publish_options import PublishOptions, repository
from ...hub.upload_set import UploadSet, from_gguf, planned
from ...views.outcome import Outcome, show_outcome
from ...views.plan import show_plan
from ...views.publication import show_publication
from ..baking import command_of, place_of, recipe_of, target_of
from ..desk import Desk
from ..forms import BakeForm
from ..messages import Progress
from ..opening import opened
from ..sheet import HtmlSheet

WEIGHTS = (".safetensors", ".gguf", ".bin", ".pth", ".pt")
CONFIG = "config.json"


def plan(form: BakeForm, desk: Desk, sheet: HtmlSheet) -> None:
    """Shows a plan as `ropeconv apply --dry-run` does, its config.json, and what a publication would do."""
    made = _planned(form, desk)
    show_plan(made, sheet)
    config = next((file.text for file in made.files if file.name == CONFIG), None)
    if config:
        sheet.file(CONFIG, config)
    if form.repo_id:
        from ...hub.preview import preview

        found = preview(planned(made), _publication(form, desk))
        sheet.note(found.note)
        show_publication(found, sheet)
    _same(made, form, bool(form.repo_id), sheet)


def write(form: BakeForm, desk: Desk, sheet: HtmlSheet) -> None:
    """Writes and checks an output. Where that is stopped, or fails, nothing is kept that was not there before."""
    if desk.rules.public:
        raise UsageError("nothing is written to the disk of this page; publish it, or run the command on your machine")
    made = _planned(form, desk)
    earlier = Hidden.beside(made.out).root.exists()  # of a run that goes on from it
    try:
        with desk.progress(f"Writing {made.out}", made.bytes) as advance:
            done = apply(made, advance=advance)
        desk.finish()
    except BaseException:
        with suppress(RopeconvError):  # another run has it
            if not earlier:
                discard(made.out)
        raise
    sheet.note(done.reason and f"Not checked: {done.reason}.")
    sheet.good(f"Wrote {done.path}.")
    show_outcome(made, Outcome(done.path, done.check, run=run_commands(made, done.path)), sheet)
    _same(made, form, False, sheet)


def publish(form: BakeForm, desk: Desk, sheet: HtmlSheet) -> None:
    """Publishes an output. Nothing of it stays on this disk."""
    how = _publication(form, desk)
    if desk.rules.public and not desk.token:
        raise UsageError("nobody is signed in; sign in with Hugging Face first, so that it is published as yours")
    made = _planned(form, desk)
    _refuse_weights(made, desk)
    from ...hub.staged import staged

    if isinstance(made, CheckpointPlan):
        with staged(made, writing=desk.progress("Writing", made.bytes)) as (done, what):
            url = _sent(what, how, desk, sheet)
    else:
        with scratch() as folder:
            out = folder / made.out.name
            with desk.progress("Writing", made.bytes) as advance:
                done = apply(replace(made, out=out, target=replace(made.target, out=out)), fsync=False, advance=advance)
            url = _sent(from_gguf(done.path), how, desk, sheet)
    sheet.note(done.reason and f"Not checked: {done.reason}.")
    sheet.link(url, f"Published: {url}")
    show_outcome(made, Outcome(check=done.check), sheet)
    _same(made, form, True, sheet)


def _same(made: Plan, form: BakeForm, publishing: bool, sheet: HtmlSheet) -> None:
    sheet.title("The same in a terminal")
    sheet.copyable(command_of(made, form, publishing))


def _planned(form: BakeForm, desk: Desk) -> Plan:
    out = None if desk.rules.public else place_of(form)  # no place of a machine of others
    recipe, target = recipe_of(form), target_of(form, out)
    if recipe.method.slow_note:
        desk.tell(Progress(recipe.method.slow_note))
    source = opened(form, desk.rules)
    target.check(recipe, source.kind == "gguf")
    return make_plan(source, recipe, target)


def _publication(form: BakeForm, desk: Desk) -> PublishOptions:
    if not form.repo_id:
        raise UsageError("no repository is named; write owner/name of the one that it is published in")
    return PublishOptions(
        private=True if form.private else None, exist_ok=form.exist_ok, token=desk.token or None,
        through_here=desk.rules.weights, repo_id=repository(form.repo_id),
    )  # fmt: skip


def _refuse_weights(made: Plan, desk: Desk) -> None:
    """Raises RopeconvError where weights would go through a page that moves none."""
    if desk.rules.weights:
        return
    on_hub = made.source.kind == "hub"
    moved = [file for file in made.files if file.name.endswith(WEIGHTS) and not (file.action == "copy" and on_hub)]
    if moved:
        size = human(sum(file.size for file in moved))
        raise RopeconvError(
            f"{size} of weights would go through this page, which moves none; choose an encoding that changes the "
            "config alone, or run the command of the plan on your machine"
        )


def _sent(what: UploadSet, how: PublishOptions, desk: Desk, sheet: HtmlSheet) -> str:
    from ...hub.publish import publish as publish_on_hub

    with desk.progress(f"Publishing {how.repo_id}"):
        url = publish_on_hub(what, how, sheet.note)
    desk.finish()
    return url
