"""Selects how a schedule is written: a named encoding, or the first that the named runtimes read exactly."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ...errors import UnsupportedBake, UsageError
from ...families.config import text_part
from ...runtimes.rules import GOOD, RUNS, SILENT
from ..result import Considered, refuse_approximate, refuse_attention_factor
from .config_only import nothing_fits, tried
from .encoding import all_encodings
from .request import CheckpointResult, EncodeRequest


def select(request: EncodeRequest) -> CheckpointResult:
    """The result of the encoding that the target names.

    "auto" takes, of the encodings that are a config alone and that every named runtime reads exactly in its newest
    version, the one that most of its other current versions read exactly too; where there is none, the first of the
    others that fits. Raises UnsupportedBake when nothing fits, UsageError for a name that is not known.
    """
    part, family, target = text_part(request.config, request.family), request.family, request.target
    cancelled = family.weights.norm.endswith("after-rope") and part.get("use_qk_norm", True)
    if cancelled or family.no_attention_factor:
        refuse_attention_factor(request.schedule, family.name, family.no_attention_factor)
    if target.encoding == "auto":
        return _Search(request).run()
    known = all_encodings()
    if target.encoding not in known:
        from ..gguf import all_gguf_encodings

        if target.encoding in {*all_gguf_encodings(), "carrier"}:
            raise UsageError(f"--encoding {target.encoding} goes with GGUF; add --to gguf, or leave it out")
        *names, last = known
        raise UsageError(f"--encoding {target.encoding} is not known; choose auto, {', '.join(names)} or {last}")
    result = known[target.encoding].encode(request)
    if not target.allow_approximate:
        refuse_approximate(result, request.schedule, "use --encoding buffers")
    silent = any(result.status_of(row) in SILENT for row in request.runtimes)
    if silent or (target.runtimes and not result.suits(request.runtimes, RUNS)):
        raise nothing_fits([result], {}, request)
    return result


@dataclass
class _Search:
    """The search of "auto". found: results so far. refusals: errors of encodings that cannot hold it, by name."""

    request: EncodeRequest
    found: list[CheckpointResult] = field(default_factory=list)
    refusals: dict[str, UnsupportedBake] = field(default_factory=dict)

    def run(self) -> CheckpointResult:
        """The result of the first encoding that fits, with the reason for every encoding."""
        request = self.request
        self.found, self.refusals = tried(request)
        fitting = [result for result in self.found if result.suits(request.runtimes)]
        if fitting:
            rows = [row for versions in request.versions for row in versions]
            return self._selected(max(fitting, key=lambda one: sum(one.status_of(row) == "exact" for row in rows)))
        for name, encoding in all_encodings().items():
            if encoding.config_only:
                continue
            try:
                result = encoding.encode(request)
            except UnsupportedBake as refusal:
                self.refusals[name] = refusal
                continue
            self.found.append(result)
            if result.suits(request.runtimes, GOOD):
                return self._selected(result)
        near = [result for result in self.found if result.suits(request.runtimes, RUNS)]
        if not near:
            raise nothing_fits(self.found, self.refusals, request)
        if not request.target.allow_approximate:
            refuse_approximate(near[0], request.schedule, "name a runtime that takes --encoding buffers")
        return self._selected(near[0])

    def _selected(self, result: CheckpointResult) -> CheckpointResult:
        considered = tuple(
            Considered(name, name == result.encoding, self._why(name, result)) for name in all_encodings()
        )
        return replace(result, considered=considered)

    def _why(self, name: str, selected: CheckpointResult) -> str:
        """Why an encoding was selected or passed over."""
        if name in self.refusals:
            return self.refusals[name].reason
        result = next((one for one in self.found if one.encoding == name), None)
        if result is None:
            enough = all_encodings()[selected.encoding].config_only
            return "not needed, a config says it all" if enough else "not needed"
        asked = " and ".join(row.display_name for row in self.request.runtimes)
        if result is selected:
            statuses = dict.fromkeys(result.status_of(row) for row in self.request.runtimes)
            return f"{' and '.join(statuses)} in {asked}; {result.exact_share}"
        asked_for = (result.verdict_of(row) for row in self.request.runtimes)
        wrong = next((verdict for verdict in asked_for if verdict.status != "exact"), None)
        if wrong is not None:
            return f"{wrong.display_name}: {wrong.reason or wrong.status}"
        return f"not plainer, and no better in the versions of {asked}; {result.exact_share}"
