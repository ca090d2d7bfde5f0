"""What a model is, what is wrong with its settings, and who reads it right."""

from __future__ import annotations

from ...bake.repairs import repairs_of
from ...inspection import inspect_source
from ...pictures.of_model import pictures_of
from ...views.inspection import show_inspection
from ..desk import Desk
from ..forms import CompareForm, InspectForm
from ..links import to_page
from ..opening import opened
from ..sheet import HtmlSheet


def inspect(form: InspectForm, desk: Desk, sheet: HtmlSheet) -> None:
    """Shows a model as `ropeconv inspect` does, and draws its frequencies."""
    source = opened(form, desk.rules)
    seen = inspect_source(source)
    sheet.note(seen.assumption)
    show_inspection(seen, sheet, repairs_of(source, seen))
    if form.source:
        sheet.ways("Next", [("compare methods for it", to_page("compare", CompareForm(source=form.source)))])
    spec = seen.spec
    curves = {"as it is": spec.current().inv_freq} if spec.scaled else {}
    sheet.pictures(pictures_of(spec, curves, spec.context))
