"""What runtimes do with two factor lists, of which the short one holds up to a length, in sentences for a plan."""

from __future__ import annotations

from collections.abc import Iterable

from ..families.family import Family
from .find import newest
from .runtime import runtimes
from .verdict import Verdict

SWITCHES = {
    "trained": "{names}: the short list in forward passes in which no sequence of the batch is longer than {length:,} "
    "tokens, else the long one for every sequence",
    "window": "{names}: the long list for every position where it is started with a window above {length:,} tokens, "
    "else the short one",
    "long": "{names}: the long list for every position, so short prompts see it too",
    "short": "{names}: the short list for every position, so nothing is extended",
    "mixed": "{names}: both lists inside one sequence, by position",
}
RECOMPUTED = {"phi3"}
"""Families for which transformers' generate computes the cache anew there: transformers#33129."""


def switching(family: Family, length: int, verdicts: Iterable[Verdict]) -> tuple[str, ...]:
    """Sentences on which list each current runtime takes, and on a cache that crosses the length.

    family: of the model. length: at which the lists change, in tokens. verdicts: on the config with these lists, by
    which runtimes that do not read them are left out.
    """
    read = [verdict for verdict in verdicts if verdict.status in ("exact", "rounded", "differs")]
    by_rule: dict[str, list[str]] = {}
    for name in dict.fromkeys(row.name for row in runtimes()):
        row = newest(name)
        stated = row.statement(family.name)
        if stated is None or not any(verdict.covers(row) for verdict in read):
            continue
        reading = row.rule_set(family.name)
        rules = reading.types.get("longrope")
        if rules is not None and not (reading.status or rules.status or rules.read_as):
            by_rule.setdefault(rules.lists, []).append(row.display_name)
    found = [
        words.format(names=", ".join(by_rule[rule]), length=length)
        for rule, words in SWITCHES.items()
        if rule in by_rule
    ]
    return (*found, crossing(length, family.name in RECOMPUTED))


def crossing(length: int, recomputed: bool = False) -> str:
    """The sentence on a cache that crosses the length at which lists change.

    length: in tokens. recomputed: whether transformers' generate computes the cache anew there.
    """
    fact = (
        f"a sequence that grows past {length:,} tokens keeps keys in its cache that were rotated with the short list, "
        "under queries of the long one, and what follows is wrong"
    )
    if recomputed:
        return f"{fact}; transformers computes the cache of this family anew there, servers do not"
    return f"{fact}: transformers' generate does not compute the cache anew, so give such a prompt whole"
