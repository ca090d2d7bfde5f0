"""Running servers, each with one model, which is a row."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path

from ...engines.engine import Engine, Output
from ...engines.servers import connect
from ...engines.servers.protocol import Server
from ...engines.transformers.load import folder_of
from ...errors import BadSource, UsageError
from ...inspection.inspection import Inspection, inspect_source
from ...inspection.receipts.storage import has_receipt
from ...models.gguf import GgufSource
from ...models.open import open_source
from ...rope.errors import RopeconvError
from ..row import Row
from ..texts import CheckpointTokenizer, Tokenizer, gguf_tokenizer
from .runner import Runner, RunnerRequest

SAMPLE = "The 3 words naïve, façade and 北京 cost $12.50, and then `x += 1`."
"""A text whose tokens tell vocabularies apart."""


class ServerRunner(Runner):
    """Models on running servers. servers: by the name of the row. source: identity of tokenizer and
    trained context.
    """

    def __init__(
        self, servers: Mapping[str, Server], tokenizer: Tokenizer, trained: int, source: str
    ) -> None:
        self.servers = servers
        self.tokenizer = tokenizer
        self.trained = trained
        self.source = source
        self.runtime = ", ".join(sorted({server.runtime for server in servers.values()}))
        self.device, self.dtype = "server", "as the servers run"

    def digest(self, row: Row) -> str:
        """The server as it describes itself; one with other settings needs another name, or
        --fresh.
        """
        server = self.servers[row.name]
        return f"{row.url} {server.model} {server.runtime} {server.path} {server.length}"

    def lacks(self, row: Row, output: Output | None) -> str:
        server = self.servers[row.name]
        if output is None:
            return (
                f"{server.runtime} is a server, and this measure runs in transformers; leave it out"
            )
        return server.lacks(output)

    def engine(self, row: Row) -> AbstractContextManager[Engine]:
        return nullcontext(self.servers[row.name])


@contextmanager
def open_servers(request: RunnerRequest) -> Iterator[tuple[Runner, list[Row]]]:
    """The runner of servers, and a row for each.

    Raises RopeconvError where no server answers at a URL, and where one does not run
    `request.model`, or the model of the first.
    """
    servers = dict[str, Server]()
    rows = list[Row]()
    for text in request.servers:
        name, equals, url = text.partition("=")
        name, url = (name, url) if equals and "://" not in name else ("", text)
        server = connect(url, prefer=name)
        name = name or server.model
        if name in servers:
            raise UsageError(
                f"two servers have the name {name}; name each, as in --server long={url}"
            )
        servers[name], output = server, Path(request.model)
        runs = request.model and output.resolve().name in (
            Path(server.path).name,
            Path(server.model).name,
        )
        rows.append(Row(name, path=output if runs and has_receipt(output) else None, url=url))
    with ExitStack() as stack:
        local, inspection = _local(request, stack)
        first = next(iter(servers.values()))
        tokenizer = local or first
        for server in servers.values():
            _refuse_other(server, tokenizer, request.model or first.model)
        trained = inspection.spec.unscaled().original_context if inspection else first.length
        if not trained:
            raise UsageError(
                "the server does not say how many tokens it accepts; name the checkpoint that it"
                " runs too"
            )
        identity = hashlib.sha256(
            repr((tokenizer.encode(SAMPLE), tokenizer.prefix, trained)).encode()
        ).hexdigest()
        yield ServerRunner(servers, tokenizer, trained, identity), rows


def _local(request: RunnerRequest, stack: ExitStack) -> tuple[Tokenizer | None, Inspection | None]:
    """Tokenizer and inspection of the checkpoint of a request; None without one."""
    if not request.model:
        return None, None
    source = open_source(request.model, request.family)
    if isinstance(source, GgufSource):
        return stack.enter_context(gguf_tokenizer(source.file.path)), inspect_source(source)
    folder = stack.enter_context(folder_of(source, weights=False))
    return CheckpointTokenizer(folder, request.trust_remote_code), inspect_source(source)


def _refuse_other(server: Server, tokenizer: Tokenizer, name: str) -> None:
    """Raises BadSource where a server runs a model with another vocabulary."""
    try:
        tokens = server.encode(SAMPLE)
    except RopeconvError:
        return
    if tokens != tokenizer.encode(SAMPLE):
        raise BadSource(
            f"the server at {server.client.base_url} runs {server.model}, whose tokenizer is not"
            f" that of {name}; start it with an output of that model, or name the checkpoint that"
            " it runs"
        )
