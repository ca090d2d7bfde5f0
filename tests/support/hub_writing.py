"""A Hub on localhost that can be written to, driven through the real client: repositories, commits,
LFS, copies.

Faults are switched on by name in `faults`, each a number of times. `received` counts the bytes of
bodies that arrived, `stored` what came in by upload, by sha256.
"""

import base64
import hashlib
import json
import shutil
import time
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from .hub_server import LARGE, Hub, handler, running

ATTRIBUTES = "*.safetensors filter=lfs\n"
"""The file that the Hub puts into a new repository."""


class WritingHub(Hub):
    """A Hub that can be written to. root: where repositories are made.

    pulls: the repositories of pull requests. no_xet: those whose files cannot be copied. allowed:
    by repository, the sha256 of files that were copied into it from others.
    """

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root
        self.version: dict[str, int] = {}
        self.no_xet: set[str] = set()
        self.pulls: list[str] = []
        self.deleted: list[str] = []
        self.messages: list[str] = []
        self.stored: dict[str, bytes] = {}
        self.allowed: dict[str, set[str]] = {}
        self.received = 0
        self.faults: dict[str, int] = {}
        self.refused: list[float] = []

    def commit(self, repo: str) -> str:
        return hashlib.sha1(f"{repo}{self.version.get(repo, 0)}".encode()).hexdigest()

    def first(self, repo: str) -> str:
        """The first commit of a repository, which has the Hub's .gitattributes only."""
        return hashlib.sha1(f"{repo} made".encode()).hexdigest()

    def fails(self, fault: str) -> bool:
        """Count a request in which a fault may strike, and say whether it does."""
        left = self.faults.get(fault, 0)
        self.faults[fault] = left - 1
        return left > 0

    def row(self, root: Path, path: Path) -> dict[str, Any]:
        entry = super().row(root, path)
        if "lfs" in entry and root not in [self.repos[repo] for repo in self.no_xet]:
            entry["xetHash"] = entry["lfs"]["oid"]
        return entry

    def by_sha(self, digest: str) -> bytes | None:
        """The content of a file of any repository; None without one."""
        for root in self.repos.values():
            for path in root.rglob("*"):
                if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == digest:
                    return path.read_bytes()
        return None

    def has(self, repo: str, digest: str) -> bool:
        """Whether a file was uploaded, or copied into a repository from another one."""
        return digest in self.stored or digest in self.allowed.get(repo, set())

    def count_commit(self, repo: str) -> None:
        """Give a repository another newest commit."""
        self.version[repo] = self.version.get(repo, 0) + 1


def writing(hub: WritingHub) -> type[BaseHTTPRequestHandler]:
    """Make the class that answers the requests to a Hub that can be written to."""

    class Handler(handler(hub)):  # type: ignore[misc]
        def do_GET(self) -> None:
            if hub.fails("busy"):
                self.busy()
                return
            if self.path == "/api/whoami-v2":
                self.json(200, {"type": "user", "name": "me", "orgs": []})
            elif self.path.split("/")[5:6] == ["commits"]:
                self.commits("/".join(self.path.split("/")[3:5]))
            else:
                super().do_GET()

        def commits(self, repo: str) -> None:
            """The newest commit and the first one, as the Hub lists them."""
            about = {"authors": [], "date": "2026-01-01T00:00:00.000Z", "title": "", "message": ""}
            ids = [hub.commit(repo), hub.first(repo)]
            self.json(200, [{"id": commit, **about} for commit in ids])

        def read(self) -> bytes:
            """The body of a request, which may come in chunks, each behind its size in hex."""
            if self.headers.get("Transfer-Encoding") == "chunked":
                data = b""
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    data += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
            else:
                data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            hub.received += len(data)
            return data

        def json(self, status: int, data: Any, headers: dict[str, str] | None = None) -> None:
            self.reply(
                status,
                json.dumps(data).encode(),
                True,
                {"Content-Type": "application/json", **(headers or {})},
            )

        def busy(self) -> None:
            """Refuse a request, as the Hub does with clients that send too many."""
            hub.refused.append(time.monotonic())
            self.json(429, {"error": "We had to rate limit you"}, {"Retry-After": "1"})

        def do_PUT(self) -> None:
            """Change the settings of a repository, or take the content of a file."""
            data = self.read()
            if self.path.endswith("/settings"):
                repo = "/".join(self.path.split("/")[3:5])
                settings = json.loads(data)
                # newer clients send "visibility"
                is_private = settings.get("private", settings.get("visibility") == "private")
                if is_private:
                    hub.private.add(repo)
                else:
                    hub.private.discard(repo)
                self.json(200, {})
                return
            if hub.fails("put"):
                self.json(500, {})
                return
            hub.stored[hashlib.sha256(data).hexdigest()] = data
            self.json(200, {})

        def do_DELETE(self) -> None:
            body = json.loads(self.read())
            repo = "/".join(filter(None, [body.get("organization"), body["name"]]))
            shutil.rmtree(hub.repos.pop(repo))
            hub.deleted.append(repo)
            self.json(200, {})

        def do_POST(self) -> None:
            path, _, query = self.path.partition("?")
            parts = path.strip("/").split("/")
            data = self.read()
            if hub.fails("busy"):
                self.busy()
                return
            if not self.headers.get("Authorization"):
                self.json(401, {"error": "Invalid username or password."})
            elif path == "/api/validate-yaml":
                self.json(200, {"errors": [], "warnings": []})
            elif path == "/api/repos/create":
                self.create(json.loads(data))
            elif path.endswith(".git/info/lfs/objects/batch"):
                self.batch("/".join(parts[:2]).removesuffix(".git"), json.loads(data))
            elif parts[4] == "paths-info":
                names = parse_qs(data.decode()).get("paths", [])
                self.describe_files("/".join(parts[2:4]), names)
            elif parts[4] == "preupload":
                self.say_how_to_upload(json.loads(data)["files"])
            elif parts[4:] == ["lfs-files", "duplicate"]:
                self.duplicate(json.loads(data))
            elif parts[4] == "branch":
                self.branch("/".join(parts[2:4]), parts[5], json.loads(data or b"{}"))
            elif parts[4] == "commit":
                self.commit(hub.at("/".join(parts[2:4]), parts[5]), data, "create_pr=1" in query)
            else:
                self.json(404, {})

        def describe_files(self, repo: str, names: list[str]) -> None:
            """Send the size and the digests of those of some files that a repository has."""
            root = hub.repos[repo]
            rows = []
            for name in names:
                if (root / name).is_file():
                    rows.append(hub.row(root, root / name))
            self.json(200, rows)

        def say_how_to_upload(self, files: list[dict[str, Any]]) -> None:
            """Send whether each file goes to LFS, or into the commit itself."""
            modes = []
            for file in files:
                is_large = file["path"].endswith(LARGE)
                mode = "lfs" if is_large else "regular"
                modes.append(
                    {"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": None}
                )
            self.json(200, {"files": modes})

        def create(self, body: dict[str, Any]) -> None:
            repo = "/".join(filter(None, [body.get("organization") or "me", body["name"]]))
            if repo in hub.repos:
                self.json(
                    409,
                    {"error": "You already created this model repo", "url": f"{hub.url}/{repo}"},
                )
                return
            hub.repos[repo] = hub.root / repo
            hub.repos[repo].mkdir(parents=True)
            (hub.repos[repo] / ".gitattributes").write_text(ATTRIBUTES)
            if body.get("private") or body.get("visibility") == "private":
                hub.private.add(repo)
            self.json(200, {"url": f"{hub.url}/{repo}"})

        def branch(self, repo: str, name: str, body: dict[str, Any]) -> None:
            if name in hub.branches:
                self.json(409, {"error": "Reference already exists"})
                return
            hub.branches.append(name)
            root = hub.root / f"{repo}@{name}"
            hub.repos[f"{repo}@{name}"] = root
            if body.get("startingPoint") == hub.first(repo):
                root.mkdir(parents=True)
                (root / ".gitattributes").write_text(ATTRIBUTES)
            else:
                shutil.copytree(hub.repos[repo], root)
            self.json(200, {})

        def batch(self, repo: str, body: dict[str, Any]) -> None:
            """Send, for each file of LFS that is not here yet, where it is uploaded."""
            objects = []
            for file in body["objects"]:
                answer = dict(file)
                if not hub.has(repo, file["oid"]):
                    url = f"{hub.url}/upload/{file['oid']}"
                    answer["actions"] = {"upload": {"href": url, "header": {}}}
                objects.append(answer)
            self.json(200, {"transfer": "basic", "objects": objects})

        def duplicate(self, body: dict[str, Any]) -> None:
            """Allow files of other repositories to be committed without uploading them again."""
            if hub.fails("region"):
                self.json(400, {"error": "Repositories are in different regions"})
                return
            allowed = hub.allowed.setdefault(body["target"]["name"], set())
            allowed.update(file["sha256"] for file in body["files"])
            self.json(200, {"failed": []})

        def commit(self, repo: str, data: bytes, pull: bool) -> None:
            """Commit files, unless another commit came meanwhile or a fault strikes.

            Args:
                repo: The repository, or `id@branch`.
                data: Lines of JSON: the header, and then a file each.
                pull: Whether the commit is a pull request.
            """
            header, *files = (json.loads(line) for line in data.splitlines())
            if hub.fails("race"):
                hub.count_commit(repo)
            if hub.fails("overtaken"):
                (hub.repos[repo] / "theirs.txt").write_text("of somebody else")
                hub.count_commit(repo)
            if hub.fails("cut"):
                self.close_connection = True
                return
            if hub.fails("commit"):
                self.json(500, {"error": "Internal Error"})
                return
            if header["value"].get("parentCommit") not in (None, hub.commit(repo)):
                self.json(
                    412, {"error": "A commit has happened since. Please refresh and try again."}
                )
                return

            # the contents of all files, before any is written
            contents = {}
            for file in files:
                value = file["value"]
                if file["key"] == "file":
                    contents[value["path"]] = base64.b64decode(value["content"])
                elif file["key"] == "lfsFile":
                    content = self.content_of(repo.partition("@")[0], value["oid"])
                    if content is None:
                        self.json(400, {"error": f"LFS object {value['oid']} is not here"})
                        return
                    contents[value["path"]] = content

            root = hub.root / f"pull-{len(hub.pulls)}" if pull else hub.repos[repo]
            for name, content in contents.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_bytes(content)
            hub.messages.append(header["value"]["summary"])
            if pull:
                hub.pulls.append(repo)
            else:
                hub.count_commit(repo)
            if hub.fails("lost"):
                self.close_connection = True
                return
            url = f"{hub.url}/{repo}/commit/{hub.commit(repo)}"
            more = {"pullRequestUrl": f"{hub.url}/{repo}/discussions/1"} if pull else {}
            self.json(
                200, {"success": True, "commitOid": hub.commit(repo), "commitUrl": url, **more}
            )

        def content_of(self, repo: str, digest: str) -> bytes | None:
            """The content of a file of LFS, uploaded or copied; None where it is not here."""
            uploaded = hub.stored.get(digest)
            if uploaded:
                return uploaded
            return hub.by_sha(digest) if hub.has(repo, digest) else None

    return Handler


def serving_writes(root: Path) -> AbstractContextManager[WritingHub]:
    """A running Hub that keeps new repositories below `root`."""
    hub = WritingHub(root)
    return running(hub, writing(hub))
