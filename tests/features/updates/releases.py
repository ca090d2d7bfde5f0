"""Releases of the data with a change that a user sees, and a server for them on this machine."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from ropeconv.features.updates.release import MANIFEST, data_name, make_release
from ropeconv.runtimes.stored import ABOUT, read_shipped

LATER = "2999.01.01"
"""Later than every release."""
DATA = data_name(LATER)
ROW = """
[[rows]]
version = "99.0"
inherits = "0.33"
source = "a release of the tests"
"""
"""A row for a release of vLLM that the package does not know."""


def later_files(version: str = LATER) -> dict[str, str]:
    """The data of the package with one more row."""
    files = dict(read_shipped())
    lines = files[ABOUT].splitlines()
    files[ABOUT] = "\n".join(
        f'version = "{version}"' if line.startswith("version") else line for line in lines
    )
    files["data/vllm.toml"] += ROW
    return files


def write_release(folder: Path, version: str = LATER) -> Path:
    """Write a release into a folder, and return its manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    manifest, data = make_release(later_files(version))
    (folder / MANIFEST).write_bytes(manifest)
    (folder / data_name(version)).write_bytes(data)
    return folder / MANIFEST


def change_manifest(folder: Path, **fields: object) -> Path:
    """Write other fields into the manifest of a release."""
    path = folder / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    return path


@dataclass
class ReleaseServer:
    """Serves a folder."""

    folder: Path
    cut: int = 0
    """Bytes of the data that it sends before it closes; 0 for all."""

    stall: int = 0
    """Bytes of the data after which it sends nothing more; 0 for never."""

    moved: str = ""
    """Where it redirects the data to; empty for nowhere."""

    code: int = 200
    url: str = ""
    asked: list[str] = field(default_factory=list)
    stalled: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)


@contextmanager
def serving(folder: Path) -> Iterator[ReleaseServer]:
    """Serve the release in a folder. Its `url` is that of the manifest."""
    about = ReleaseServer(folder)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.rpartition("/")[2]
            about.asked.append(name)
            content = (about.folder / name).read_bytes()
            if name == DATA and about.moved and "moved" not in self.path:
                self.send_response(302)
                self.send_header("Location", about.moved)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(about.code)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if name == DATA and about.cut:
                self.wfile.write(content[: about.cut])
                self.close_connection = True
                return
            if name == DATA and about.stall:
                self.wfile.write(content[: about.stall])
                self.wfile.flush()
                about.stalled.set()
                about.go_on.wait(60)
                return
            self.wfile.write(content)

        def log_message(self, *words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    about.url = f"http://127.0.0.1:{server.server_port}/release/{MANIFEST}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield about
    finally:
        about.go_on.set()
        server.shutdown()
        server.server_close()
