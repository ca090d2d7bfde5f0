"""Ask transformers whether it reads the RoPE of a source as ropeconv does.

A plan starts from the frequencies that ropeconv reads from the config.json of its source. Where
that reading is wrong, every other check compares the output with the same wrong numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ..engines.probe import Probe, ProbeCache
from ..errors import Disagreement
from ..formats.drafts import write_file
from ..formats.files import scratch
from ..formats.jsontext import JsonObject
from ..inspection.inspection import inspect_config
from ..models.source import Source
from ..rope.spec import RopeSpec
from ..validate.checks import find_misreading, reads_source_alike
from .checkpoint import CheckpointPlan

NO_MODEL_TYPE = "LookupError: it has no model type"
"""The beginning of the error of a probe about a model type that transformers does not have."""


@dataclass(frozen=True)
class SourceCheck:
    """The comparison of a source, as transformers computes it, with what ropeconv reads."""

    source: Source

    spec: RopeSpec
    """The RoPE that ropeconv reads from the source."""

    probe: Probe
    """The process that is asked where the cache does not have the answer."""

    @classmethod
    def of(cls, plan: CheckpointPlan, probe: Probe) -> SourceCheck | None:
        """Return the check for the source of a plan; None where it is not compared.

        The source of a draft model is not, nor one that the installed transformers need not read
        as ropeconv does (`reads_source_alike`).

        Args:
            plan: The plan of the output.
            probe: A process with transformers.
        """
        if plan.draft is not None:
            return None
        inspection = inspect_config(plan.source)
        if not reads_source_alike(plan.source, inspection):
            return None
        return cls(plan.source, inspection.spec, probe)

    @cached_property
    def _loaded_as(self) -> str:
        """The model type that --family names, for one that transformers does not have."""
        family = self.source.family
        return family.text_type if family.assumed else ""

    @cached_property
    def _model_type(self) -> str:
        return self._loaded_as or str(self.source.config().get("model_type", ""))

    @property
    def is_cached(self) -> bool:
        """Whether the answer of transformers is known from an earlier run."""
        cache = ProbeCache()
        key = cache.key(self._text, self._model_type, self.spec.context, self._loaded_as)
        return cache.get(key) is not None

    @cached_property
    def _text(self) -> str:
        return self.source.text("config.json") or ""

    def __call__(self) -> str:
        """Compare both readings.

        Returns:
            Why transformers does not load the source, as a clause; empty where it does.

        Raises:
            Disagreement: transformers computes another RoPE than ropeconv reads.
        """
        answer = self._ask()
        error = str(answer.get("error", ""))
        installed = f"transformers {answer.get('transformers', '')}".strip()
        if error.startswith(NO_MODEL_TYPE):
            return ""
        if error:
            return f"{installed} does not load the source ({_first_words(error)})"

        misreading = find_misreading(answer, self.spec)
        if misreading:
            raise Disagreement(
                f"{installed} {misreading}; correct the config.json of {self.source.reference}"
                " where it is wrong, else report it; nothing was kept"
            )
        return ""

    def _ask(self) -> JsonObject:
        """Return what transformers computes from the config.json of the source."""
        with scratch() as folder:
            write_file(folder / "config.json", self._text)
            return ProbeCache().answer(
                folder,
                self._model_type,
                self.spec.context,
                loaded_as=self._loaded_as,
                probe=self.probe,
            )


def _first_words(error: str) -> str:
    """Return the message of an error of a probe, without its class and the folder that was read.

    "BadSource: transformers does not load the config of FOLDER (REASON); correct its files" becomes
    "REASON", and "KeyError: 'rope_type'" becomes "KeyError: 'rope_type'".
    """
    before, opening, rest = error.partition(" (")
    is_of_load_config = "does not load the config of" in before
    if not opening or not is_of_load_config:
        return error.partition("\n")[0]
    reason, _, _ = rest.rpartition("); ")
    return reason
