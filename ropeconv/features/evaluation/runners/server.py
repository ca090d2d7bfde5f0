"""Running servers, each with one model, which is a row."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from ropeconv.bake.evidence import trained_context
from ropeconv.engines.engine import Engine, Output
from ropeconv.engines.transformers.load import folder_of
from ropeconv.errors import BadSource, UsageError
from ropeconv.inspection.inspection import Inspection, inspect_source
from ropeconv.inspection.receipts.receipt import Receipt
from ropeconv.inspection.receipts.storage import has_receipt, read_receipt
from ropeconv.models.gguf import GgufSource
from ropeconv.models.open import open_source
from ropeconv.rope.errors import RopeconvError
from ropeconv.rope.features import hook
from ropeconv.verbs.rows import Row

from ..cases import SERVER
from ..texts import CheckpointTokenizer, Tokenizer, gguf_tokenizer
from .runner import Runner, RunnerRequest

if TYPE_CHECKING:
    from ropeconv.features.servers.protocol import Server

SAMPLE_TEXT = "The 3 words naïve, façade and 北京 cost $12.50, and then `x += 1`."
"""A text whose tokens tell vocabularies apart."""


class ServerRunner(Runner):
    """Models on running servers."""

    may_change = True  # a server can be started again with other settings

    def __init__(
        self, servers: Mapping[str, Server], tokenizer: Tokenizer, trained: int, source: str
    ) -> None:
        """Name the servers, which are running already.

        Args:
            servers: The servers by the name of the row.
            tokenizer: The tokenizer of their models.
            trained: The trained context in tokens.
            source: A digest of the tokenizer and the trained context, by which the journal tells
                one evaluation from another.
        """
        self.servers = servers
        self.tokenizer = tokenizer
        self.trained = trained
        self.source = source
        self.runtime = ", ".join(sorted({server.runtime for server in servers.values()}))
        self.device = SERVER
        self.dtype = "as the servers run"

    def digest(self, row: Row) -> str:
        """Return the server as it describes itself, without most of its settings."""
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
    """Connect to running servers for an evaluation, and give each a row of the table.

    Args:
        request: The options of the user. `servers` has URLs, which may have a name for the row:
            ["long=http://localhost:8000", "http://localhost:8001"].

    Yields:
        The runner of all servers, and the rows in the order of the URLs.

    Raises:
        RopeconvError: A server does not answer, or its tokenizer differs from the tokenizer of the
            first server or of `request.model`.
    """
    # the function ropeconv.features.servers.connection.connect, which another feature provides
    connect_server = hook("connect_server")
    servers: dict[str, Server] = {}
    rows = list[Row]()
    for text in request.servers:
        # Of several models on a server, the one with the given name is preferred. Without a given
        # name, the row is called like the model that the server runs.
        given_name, url = _name_and_url(text)
        server: Server = connect_server(url, prefer=given_name)
        name = given_name or server.model
        if name in servers:
            raise UsageError(
                f"two servers have the name {name}; name each, as in --server long={url}"
            )
        servers[name] = server
        # a server may run the output that MODEL names, whose receipt then gets the result
        receipt = _receipt_of_output(server, request.model)
        output = Path(request.model) if receipt is not None else None
        rows.append(Row(name, path=output, receipt=receipt, url=url))

    with ExitStack() as stack:
        # Losses of different tokens cannot be compared, so all servers must have one tokenizer:
        # that of the checkpoint that the user named, or else that of the first server.
        local_tokenizer, inspection = _open_local(request, stack)
        first = next(iter(servers.values()))
        tokenizer = local_tokenizer or first
        for server in servers.values():
            _refuse_other_tokenizer(
                server, tokenizer, name_of_tokenizer=request.model or first.model
            )

        trained = _choose_trained_context(first, inspection)
        digest = _digest_tokenizer(tokenizer, trained)
        runner = ServerRunner(servers, tokenizer, trained, digest)
        if inspection is not None:
            runner.original_context = inspection.first_spec.original_context
        yield runner, rows


def _choose_trained_context(server: Server, inspection: Inspection | None) -> int:
    """Return the trained context of a model on a server, in tokens.

    A server does not know how long its model was trained, only how long its context is. So the
    checkpoint decides, where the user named it too. Otherwise it is the longest prompt: one token
    less than the context, since servers generate a token after the prompt.

    Raises:
        UsageError: Neither is known.
    """
    if inspection is not None:
        trained = trained_context(inspection)
    else:
        trained = server.length - 1
    if trained < 1:
        raise UsageError(
            "the server does not say how many tokens it accepts; name the checkpoint that it"
            " runs too"
        )
    return trained


def _digest_tokenizer(tokenizer: Tokenizer, trained: int) -> str:
    """Return the identity of a model on a server, for the journal.

    There is no file to make a digest of. The tokens of a sample tell tokenizers apart.
    """
    identity = repr((tokenizer.encode(SAMPLE_TEXT), tokenizer.prefix, trained))
    return hashlib.sha256(identity.encode()).hexdigest()


def _name_and_url(text: str) -> tuple[str, str]:
    """The parts of NAME=URL; the name is empty where only a URL is given, which can have a =."""
    name, equals, url = text.partition("=")
    if equals and "://" not in name:
        return name, url
    return "", text


def _receipt_of_output(server: Server, model: str) -> Receipt | None:
    """Return the receipt of a model, where it is an output of ropeconv and the server runs it.

    Args:
        server: The server.
        model: The model that the user named; empty for none.
    """
    if not model or not has_receipt(model):
        return None
    output = Path(model)
    receipt = read_receipt(output)
    runs_it = server.runs(output, receipt)
    if runs_it is None:  # only the name is known of what the server has loaded
        names = (Path(server.path).name, Path(server.model).name)
        runs_it = output.resolve().name in names
    return receipt if runs_it else None


def _open_local(
    request: RunnerRequest, stack: ExitStack
) -> tuple[Tokenizer | None, Inspection | None]:
    """Return the tokenizer and the inspection of the checkpoint that the user named.

    Both are None where only servers are named.

    Args:
        request: The options of the user, with the checkpoint as `model`.
        stack: Ends what the tokenizer needs, such as a process of llama.cpp.
    """
    if not request.model:
        return None, None
    source = open_source(request.model, request.family)
    if isinstance(source, GgufSource):
        gguf = stack.enter_context(gguf_tokenizer(source.file.path))
        return gguf, inspect_source(source)
    folder = stack.enter_context(folder_of(source, weights=False))
    return CheckpointTokenizer(folder, request.trust_remote_code), inspect_source(source)


def _refuse_other_tokenizer(server: Server, tokenizer: Tokenizer, name_of_tokenizer: str) -> None:
    """Refuse a server whose model makes other tokens of a sample text than a tokenizer.

    Args:
        server: The server.
        tokenizer: The tokenizer that its model should have.
        name_of_tokenizer: The model that the tokenizer belongs to, for the message.

    Raises:
        BadSource: The model of the server has another tokenizer.
    """
    try:
        tokens = server.encode(SAMPLE_TEXT)
    except RopeconvError:  # not every server has an address that encodes a text
        return
    if tokens != tokenizer.encode(SAMPLE_TEXT):
        raise BadSource(
            f"the server at {server.client.base_url} runs {server.model}, whose tokenizer is not"
            f" that of {name_of_tokenizer}; start it with an output of that model, or name the"
            " checkpoint that it runs"
        )
