"""ServerRunner: running servers, each with one model, which is one row."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ...engines.engine import Engine, Output
from ...engines.servers import connect
from ...engines.servers.protocol import ServedModel, Server
from ...engines.transformers.load import folder_of
from ...errors import BadSource, UsageError
from ...inspection.inspection import Inspection, inspect_source
from ...inspection.receipts.reader import has_receipt
from ...models.gguf import GgufSource
from ...models.open import open_source
from ...rope.errors import RopeconvError
from ..row import Row
from ..texts import CheckpointTokenizer, ServerTokenizer, Tokenizer, gguf_tokenizer
from .runner import Runner, RunnerRequest

SAMPLE = "The 3 words naïve, façade and 北京 cost $12.50, and then `x += 1`."
"""A text whose tokens tell vocabularies apart."""


class ServerRunner(Runner):
    """Models on running servers.

    servers: by the name of the row. tokenizer: of all of them. trained: the trained context in tokens. source: identity
    of the tokenizer and the trained context.
    """

    def __init__(self, servers: Mapping[str, Server], tokenizer: Tokenizer, trained: int, source: str) -> None:
        self.servers, self.tokenizer, self.trained, self.source = servers, tokenizer, trained, source
        self.runtime = ", ".join(sorted({server.runtime for server in servers.values()}))
        self.device, self.dtype = "server", "as the servers run"

    def digest(self, row: Row) -> str:
        """The server as it describes itself: one that is started again otherwise needs another name, or --fresh."""
        served = self.servers[row.name].served
        return f"{row.url} {served.model} {served.runtime} {served.path} {served.length}"

    def lacks(self, row: Row, output: Output | None) -> str:
        server = self.servers[row.name]
        if output is None:
            return f"{server.runtime} is a server, and this runs models in transformers; leave it out"
        return "" if output in server.gives else server.without(output)

    @contextmanager
    def engine(self, row: Row) -> Iterator[Engine]:
        yield self.servers[row.name]


@contextmanager
def open_servers(asked: RunnerRequest) -> Iterator[tuple[Runner, list[Row]]]:
    """The runner of servers, and a row for each.

    Raises RopeconvError where no server answers at a URL, and where one runs another model than the first, or than
    `asked.model`.
    """
    servers, rows = dict[str, Server](), list[Row]()
    for given in asked.servers:
        name, url = _split(given)
        server = connect(url, prefer=name)
        name = name or server.served.model
        if name in servers:
            raise UsageError(f"two servers have the name {name}; name each, as in --server long={url}")
        servers[name] = server
        rows.append(Row(name, path=_output(asked.model, server.served), url=url))
    with ExitStack() as stack:
        tokenizer, seen = _local(asked, stack)
        first = next(iter(servers.values()))
        known = tokenizer or ServerTokenizer(first)
        for server in servers.values():
            _refuse_other(server, known, asked.model or first.served.model)
        trained = seen.spec.unscaled().original_context if seen else first.served.length
        if not trained:
            raise UsageError("the server does not say how many tokens it accepts; name the checkpoint that it runs too")
        identity = hashlib.sha256(repr((known.encode(SAMPLE), known.prefix, trained)).encode()).hexdigest()
        yield ServerRunner(servers, known, trained, identity), rows


def _output(model: str, served: ServedModel) -> Path | None:
    """The output of ropeconv that a server says it runs, for its receipt; None for another model."""
    path = Path(model)
    named = model and path.resolve().name in (Path(served.path).name, Path(served.model).name)
    return path if named and has_receipt(path) else None


def _split(given: str) -> tuple[str, str]:
    """Name and URL of a --server: `NAME=URL`, or a URL alone."""
    name, equals, url = given.partition("=")
    return (name, url) if equals and "://" not in name else ("", given)


def _local(asked: RunnerRequest, stack: ExitStack) -> tuple[Tokenizer | None, Inspection | None]:
    """Tokenizer and inspection of the checkpoint that a user named; None without one."""
    if not asked.model:
        return None, None
    source = open_source(asked.model, asked.family)
    if isinstance(source, GgufSource):
        return stack.enter_context(gguf_tokenizer(source.file.path)), inspect_source(source)
    folder = stack.enter_context(folder_of(source, weights=False))
    return CheckpointTokenizer(folder, asked.trust_remote_code), inspect_source(source)


def _refuse_other(server: Server, tokenizer: Tokenizer, name: str) -> None:
    """Raises BadSource where a server runs a model with another vocabulary."""
    try:
        found = server.encode(SAMPLE)
    except RopeconvError:
        return
    if found != tokenizer.encode(SAMPLE):
        raise BadSource(
            f"the server at {server.client.base_url} runs {server.served.model}, whose tokenizer is not that of {name};"
            " start it with an output of that model, or name the checkpoint that it runs"
        )
