"""The command line: one file per command, which imports heavy modules when it runs.

`main` is where a run begins. `app.py` lists the commands, `command.py` turns the fields of
dataclasses into options, `screen.py` prints, and `process.py` has the streams and the exit code.
"""

import gc
import os
import sys

NOT_ON_WINDOWS = (
    "ropeconv: Windows is not supported; run ropeconv in WSL (`wsl --install`), or on Linux or"
    " macOS"
)


def main() -> None:
    """Run the command line and exit with its code."""
    if os.name == "nt":
        sys.exit(NOT_ON_WINDOWS)  # prints the message, and exits with 1
    # imported here, since the module needs what Windows does not have
    from .process import prepare, run

    # Python of a new process, as of a worker, finds no modules in the folder where it is started
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    prepare()  # streams and signals
    _silence_libraries()
    code = run(_start)  # calls it, prints its errors, and returns the exit code
    # At exit, Python looks for garbage among all objects that are not frozen: 0.19 of the 0.87 s of
    # CPU of `inspect`.
    gc.freeze()
    sys.exit(code)


def _start() -> None:
    """Run the app with its commands and those of features."""
    from .app import complete_app

    complete_app()()


def _silence_libraries() -> None:
    """Suppress warnings of libraries, unless ROPECONV_DEBUG or an option of Python asks for
    them.
    """
    import warnings

    if os.environ.get("ROPECONV_DEBUG") == "1":
        return
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    for name in ("HF_HUB_VERBOSITY", "TRANSFORMERS_VERBOSITY"):
        os.environ.setdefault(name, "error")
