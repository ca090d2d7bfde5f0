"""Runs llama.cpp's converter in forks of one process, which has imported torch and its code once.

An import takes seconds, and a conversion of a tiny model tenths of them. As a program, it reads lines
with the arguments of `stock_program.py` and a file for the output, and answers with exit codes.
"""

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)] * (__name__ == "__main__")
from ropeconv.convert.to_gguf import stock_program  # noqa: E402
from ropeconv.convert.to_gguf.stock import LACKS_KEY, renames_layers  # noqa: E402
from ropeconv.rope.errors import RopeconvError  # noqa: E402

Convert = Callable[..., None]


def serve(tree: str) -> None:
    """Answer requests until the input ends, each in a fork of this process.

    A request is a line such as {"arguments": [...], "log": "converter.log"}. The answer is the
    status of the fork, 0 for a conversion.

    Args:
        tree: The sources of llama.cpp.
    """
    sys.path[:0] = [tree, f"{tree}/gguf-py"]
    import conversion  # type: ignore[import-not-found]

    conversion.load_all_models()
    del sys.path[:2]
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            _convert_and_exit(request["arguments"], request["log"])
        _, status = os.waitpid(child, 0)
        print(status, flush=True)


def _convert_and_exit(arguments: list[str], log: str) -> NoReturn:
    """Run the converter once and end the process with its exit code.

    Args:
        arguments: Those of `stock_program.py`.
        log: The file for what it prints.
    """
    code = 1
    try:
        log_file = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(log_file, 1)
        os.dup2(log_file, 2)
        sys.argv = [stock_program.__file__, *arguments]
        stock_program.main()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


@contextmanager
def converter_server(tree: Path) -> Iterator[Convert]:
    """Give a function that stands for `StockConverter.convert`, and runs in forks of a server."""
    command = [sys.executable, __file__, str(tree)]
    server = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert server.stdin is not None
    assert server.stdout is not None
    requests = server.stdin
    answers = server.stdout

    def ask(arguments: list[str], log: Path) -> tuple[str, str]:
        """Have the server convert, and return its status and the last line that it printed."""
        requests.write(json.dumps({"arguments": arguments, "log": str(log)}) + "\n")
        requests.flush()
        status = answers.readline().strip()
        lines = log.read_text(errors="replace").strip().splitlines() or [""]
        log.unlink()
        return status, lines[-1]

    def convert(
        self: Any,
        model: Path,
        target: Path,
        outtype: str,
        *,
        pre: str = "",
        dense: bool = False,
        projector: bool = False,
        predicts: bool = True,
        header_only: bool = False,
    ) -> None:
        options = ["--outtype", outtype, "--outfile", str(target.absolute())]
        if dense:
            options.append("--sentence-transformers-dense-modules")
        if projector:
            options.append("--mmproj")
        log = target.with_name("converter.log")
        settings = {"header_only": header_only, "pre": pre, "predicts": predicts}

        # as `StockConverter.convert`: again with the keys of config.json alone, where transformers
        # has turned one that the converter looks for into another
        reason = ""
        for plain_config in (True,) if renames_layers(model) else (False, True):
            text = json.dumps(settings | {"plain_config": plain_config})
            status, last_line = ask([str(self.script), text, str(model), *options], log)
            if status == "0" and target.exists():
                return
            reason = reason or last_line
            if not reason.startswith(LACKS_KEY):
                break
        raise RopeconvError(f"the converter stops: {reason}")

    try:
        yield convert
    finally:
        requests.close()
        server.wait()


if __name__ == "__main__":
    serve(sys.argv[1])
