"""The evidence on methods and models: studies, recommendations, and scalings that belong to a
training.

`evidence.toml` has the table. `fine_tuning.py` and `advice.py` draw conclusions from it.
"""

from functools import cache

import msgspec

from ..formats.package_data import package_data
from ..inspection.inspection import Inspection

ERRORS = 3
"""Standard errors from which on a difference between two methods counts."""


class Study(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Methods that were measured on the same model and text; `evidence.toml` explains the
    fields.
    """

    model: str
    factor: float
    unit: str
    n: str
    source: str
    fine_tuned: bool = False
    on_top: str = ""
    higher: bool = False
    error: float = 0.0
    beyond: dict[str, float] = {}
    inside: dict[str, float] = {}
    retrieval: dict[str, float] = {}

    def sign(self, name: str, other: str) -> float:
        """Return 1 where a method is better than another beyond the trained context, -1 where
        worse, else 0.
        """
        difference = self.beyond[name] - self.beyond[other]
        if abs(difference) <= ERRORS * self.error:
            return 0.0
        return 1.0 if (difference > 0) == self.higher else -1.0


class Recommendation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A method that the publisher of some families recommends, from a trained context up to a
    factor.
    """

    families: tuple[str, ...]
    original: int
    method: str
    factor: float
    source: str


class TrainedScaling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A scaling that belongs to the training of families. kind: of the form. families: all of them
    where empty.
    """

    kind: str
    source: str
    families: tuple[str, ...] = ()


class EvidenceTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `evidence.toml`."""

    studies: tuple[Study, ...]
    recommendations: tuple[Recommendation, ...]
    scalings: tuple[TrainedScaling, ...]


@cache
def evidence() -> EvidenceTable:
    """Return what is known about methods."""
    return package_data("bake/evidence.toml", EvidenceTable)


def studies_of(on_top: str) -> list[Study]:
    """The studies of unscaled models, or of models that were trained with a kind of scaling."""
    pool = [study for study in evidence().studies if bool(study.on_top) == bool(on_top)]
    return [study for study in pool if study.on_top == on_top] or pool


def recommendation_of(method: str, inspection: Inspection, trained: int, factor: float) -> str:
    """Return where the publisher of a model recommends a method; empty where nothing is known.

    trained: the context before any scaling, in tokens. factor: of the wanted length over it.
    """
    for recommendation in evidence().recommendations:
        of_model = (
            inspection.family_name in recommendation.families and trained == recommendation.original
        )
        if of_model and method == recommendation.method and factor <= recommendation.factor:
            return recommendation.source
    return ""


def trained_scaling(inspection: Inspection) -> str:
    """Return how it is known that a model was trained with its scaling; empty where it is not
    known.

    For an output of ropeconv, its first source counts: the scaling of the output is not a trained
    one.
    """
    first = inspection.first_spec
    if not first.scaled:
        return ""
    for scaling in evidence().scalings:
        of_family = not scaling.families or inspection.family_name in scaling.families
        if of_family and scaling.kind == first.form.kind:
            return scaling.source
    return ""
