"""The schema of `data/*.toml`, what one range of versions of one runtime does with each model family."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import msgspec

from ..formats.typed import described, package_data, package_files
from .rules import FamilyStatement, KeyStatement, RuleSet
from .versions import VersionRange, version_key

LLAMA_CPP = "llama-cpp"
GENERIC = "generic"


class Runtime(VersionRange, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One row of the table of runtimes: a range of versions that behave alike.

    rules: rule sets by name; `generic` is the reader that most model files share.
    families: what is stated about families, the last statement on one counts.
    keys: what is stated about config keys that its attention reads beside those of the rules.
    quantization: the quantisation methods (`quant_method`) whose checkpoints it loads, and on what that depends; None
    where nobody looked.
    custom_code: what becomes of checkpoints with a modelling file of their own, "exact" (it is run), "refused" or
    "unknown", and custom_code_reason why.
    """

    rules: dict[str, RuleSet]
    families: tuple[FamilyStatement, ...] = ()
    keys: tuple[KeyStatement, ...] = ()
    quantization: dict[str, str] | None = None
    custom_code: Literal["exact", "refused", "unknown"] = "unknown"
    custom_code_reason: str = ""

    def statement(self, family: str, model_type: str = "") -> FamilyStatement | None:
        """What is stated about a family; None where nobody looked.

        model_type: of the config as a whole; without it, statements on some model types alone do not count.
        """
        for stated in reversed(self.families):
            if family in stated.names and (not stated.model_types or model_type in stated.model_types):
                return stated
        return None

    def rule_set(self, family: str, model_type: str = "") -> RuleSet:
        """The rules that a family is read by: those of its statement, else the generic reader."""
        stated = self.statement(family, model_type)
        return self.rules[stated.rules if stated and stated.rules else GENERIC]


@cache
def runtimes() -> tuple[Runtime, ...]:
    """All runtimes of the package, by name and version. A file with `inherits` starts from the file that it names."""
    entries = {entry.name.removesuffix(".toml"): entry for entry in package_files("ropeconv.runtimes", "data", ".toml")}
    raw = {name: package_data(entry, dict[str, Any]) for name, entry in entries.items()}
    rows = []
    for name, entry in entries.items():
        with described(entry):
            rows.append(row_from(_inherit(name, raw)))
    return tuple(sorted(rows, key=lambda row: (row.name != "transformers", row.name, version_key(row.version))))


def row_from(data: dict[str, Any]) -> Runtime:
    """A row from the content of its file. Raises ValueError for data of another form, KeyError for an unknown set.

    data: with rule sets that may name, in `inherits`, the one that they start from.
    """
    row = msgspec.convert({**data, "rules": {name: _rules(name, data["rules"]) for name in data["rules"]}}, Runtime)
    for stated in row.families:
        if sum(map(bool, (stated.rules, stated.unsupported, stated.unknown))) != 1:
            raise ValueError(f"{row.key}: a statement on families has one of rules, unsupported and unknown")
        if stated.rules:
            row.rules[stated.rules]
    return row


def _rules(name: str, rules: dict[str, Any]) -> dict[str, Any]:
    own = dict(rules[name])
    parent = own.pop("inherits", None)
    return own if parent is None else _merged(_rules(parent, rules), own)


def _merged(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """A rule set over another one: its rope types replace those of the same name, its other keys theirs."""
    return {**base, **own, "types": {**base.get("types", {}), **own.get("types", {})}}


def _inherit(name: str, raw: dict[str, dict[str, Any]]) -> dict[str, Any]:
    own = dict(raw[name])
    parent = own.pop("inherits", None)
    if parent is None:
        return own
    base = _inherit(parent, raw)
    rules = dict(base["rules"])
    for set_name, values in own.pop("rules", {}).items():
        rules[set_name] = _merged(rules[set_name], values) if set_name in rules else values
    families = [*base.get("families", []), *own.pop("families", [])]
    base.pop("through", None)
    return {**base, **own, "rules": rules, "families": families}
