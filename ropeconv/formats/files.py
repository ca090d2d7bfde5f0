"""Open files of a source, of which only regular ones are opened.

A FIFO never ends, and a device has no size.
"""

import errno
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Literal

from ..errors import BadSource

LONGEST = 64 << 20
"""The most bytes of a text file; the longest published tokenizer.json has 37 million."""
KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


def expand_home(path: str | os.PathLike[str]) -> Path:
    """Return a path with `~` expanded.

    Raises:
        BadSource: For the home of an unknown user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise BadSource(
            f"{str(path)!r} is in the home of an unknown user; write the whole path"
        ) from None


def check_regular(mode: int, path: Path) -> None:
    """Raise BadSource for anything but a regular file.

    Args:
        mode: As `os.stat` gives it.
        path: The file, for the message.
    """
    if not stat.S_ISREG(mode):
        kind = KINDS.get(stat.S_IFMT(mode), "not a file")
        raise BadSource(
            f"{path} is {kind}, and a regular file is needed there; remove it or give another"
            " source"
        )


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading.

    Raises:
        BadSource: Where it is not a regular file.
        OSError: Where it does not exist.
    """
    # O_NONBLOCK: opening a FIFO would wait for a writer. The open file is checked, and not the
    # name, which another process may give to something else in between.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        check_regular(os.fstat(descriptor).st_mode, path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: Path, name: str) -> bytes:
    """Return the content of a small file.

    Raises:
        BadSource: Where it is not regular, or too long.
    """
    with open_regular(path) as file:
        content = file.read(LONGEST + 1)
    if len(content) > LONGEST:
        raise BadSource(
            f"{name} is longer than {LONGEST:,} bytes, the limit for such a file; download it again"
        )
    return content


def read_text(path: Path, name: str) -> str:
    """Return the text of a small file with its line ends.

    Raises:
        BadSource: As `read_bytes`, and for non-UTF-8.
    """
    try:
        return read_bytes(path, name).decode()
    except UnicodeDecodeError:
        raise BadSource(f"{name} is not UTF-8 text; fix it or download it again") from None


GRAPHS = (".onnx", ".xml")
"""Ends of the names of compiled graphs that can be changed: ONNX, and OpenVINO with a .bin file."""
FROZEN = {
    ".pte": "an ExecuTorch program",
    ".tflite": "a LiteRT model",
    ".engine": "a TensorRT engine",
    ".mlpackage": "a Core ML model",
}
"""Compiled graphs that cannot be changed, by the ends of their names."""
CHECKPOINTS = (".safetensors", ".safetensors.index.json", ".gguf")


def graph_names(folder: Path) -> list[str]:
    """Names of the models in a folder of graphs, sorted; none where it also holds a checkpoint."""
    names = {path.name for path in folder.iterdir()}
    for name in names:
        is_of_checkpoint = name.endswith(CHECKPOINTS) or name.startswith("pytorch_model")
        if is_of_checkpoint:
            return []

    models = []
    for name in names:
        if not name.endswith(GRAPHS) or "tokenizer" in name:
            continue
        # OpenVINO keeps weights in a .bin file of the same stem; other .xml files are not graphs
        weights = f"{name.removesuffix('.xml')}.bin"
        if name.endswith(".onnx") or weights in names:
            models.append(name)
    return sorted(models)


def journal_of(path: Path) -> Path:
    """Return the path of the journal that a GGUF file has while it is changed in place."""
    return path.with_name(f".{path.name}.ropeconv-journal")


BUSY = {errno.EWOULDBLOCK, errno.EACCES}
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}


def try_lock(file: int | BinaryIO, shared: bool = False) -> Literal["taken", "busy", "none"]:
    """Lock an open file (flock(2)) without waiting.

    An exclusive lock needs a file that is open for writing, since NFS refuses others.

    Returns:
        "busy" where another process has the lock, "none" where the filesystem has no locks.

    Raises:
        OSError: For other problems.
    """
    # filelock opens a lock file itself, has no shared lock, and where a filesystem has no locks it
    # makes a marker that outlives a kill. Here the file that is written is the lock, and callers
    # decide what happens without one.
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError as problem:
        if problem.errno in BUSY:
            return "busy"
        if problem.errno not in NO_LOCKS:
            raise
        return "none"
    return "taken"


ATTEMPTS = 10
LOCK = "lock"
FILES = "files"


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield a new, empty temporary folder. Raises OSError.

    A lock beside it tells that this process lives.
    """
    clear()
    folder, lock = _new_folder()
    try:
        (folder / FILES).mkdir()
        yield folder / FILES
    finally:
        _remove(folder, lock)


def clear() -> None:
    """Remove the temporary folders of this user that no living process has locked.

    Links are never followed. Nothing is removed on systems without locks.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{_prefix()}*"):
        with suppress(OSError):  # raised where a living process has the lock
            lock, system_has_locks = _lock(folder)
            if system_has_locks:
                _remove(folder, lock)
            else:
                os.close(lock)


def _prefix() -> str:
    return f"ropeconv-{os.getuid()}-"


def _new_folder() -> tuple[Path, int]:
    """Make a temporary folder, and lock it: its path and the lock."""
    for _ in range(ATTEMPTS):
        folder = Path(tempfile.mkdtemp(prefix=f"{_prefix()}{os.getpid()}-"))
        try:
            lock, _ = _lock(folder)
            return folder, lock
        except OSError:  # another run may have cleared it before it was locked
            shutil.rmtree(folder, ignore_errors=True)
    raise OSError(f"cannot keep a folder in {tempfile.gettempdir()}")


def _lock(folder: Path) -> tuple[int, bool]:
    """Lock a folder with a file in it.

    Returns:
        (descriptor of the lock file, whether the filesystem has locks at all); without locks, any
        number of processes may get the folder.

    Raises:
        OSError: Where another process has the lock, and for a folder of another user.
    """
    # The temporary folder is open to all users, so everything is opened by way of the descriptor
    # of the folder that was checked: a link that somebody puts there instead is never followed.
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(place).st_uid != os.getuid():
            raise PermissionError(f"{folder} is another user's")
        lock = os.open(
            LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=place
        )
        try:
            # another run may have removed the file since it was opened, and begun a new one: then
            # this lock is on a file without a name
            status = try_lock(lock)
            there = os.stat(LOCK, dir_fd=place, follow_symlinks=False)
            is_current = os.path.samestat(os.fstat(lock), there)
            if status == "busy" or not is_current:
                raise BlockingIOError(f"{folder} is another run's")
        except OSError:
            os.close(lock)
            raise
    finally:
        os.close(place)
    return lock, status == "taken"


def _remove(folder: Path, lock: int) -> None:
    """Remove a folder, then its lock; a disk that fails once is asked again."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)
    with suppress(OSError):
        # NFS keeps a removed file in it under another name for as long as that is open
        folder.rmdir()
