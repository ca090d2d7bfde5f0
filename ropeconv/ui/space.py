"""Publishes the pages as a Space: a README with its metadata, the requirements, and a program of some lines."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, metadata, version
from typing import TYPE_CHECKING

from ..errors import RopeconvError
from ..extras import require
from ..formats.template import render
from ..hub.publish_options import PublishOptions, repository
from ..sources.hub_client import answers
from ..version import __version__

if TYPE_CHECKING:
    from huggingface_hub import HfApi

MARK = "from ropeconv.ui import serve_space"
"""What the program of such a Space has, and no other."""
EMPTY = {".gitattributes"}
"""Files of a new Space, which a run that was stopped leaves."""
PROGRAM = "app.py"
FILES = ("README.md", "requirements.txt", PROGRAM)


def files() -> dict[str, str]:
    """The files of a Space, by name."""
    values = {
        "version": __version__,
        "gradio": version("gradio"),
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "homepage": _homepage(),
    }
    return {name: render(f"space/{name}.jinja", **values) for name in FILES}


def publish_space(name: str, private: bool = False) -> str:
    """Publishes a Space, or the newer version of one that is there, and returns its address.

    name: owner/name. private: of a new one. Raises UsageError where the name is none, RopeconvError for a Space with
    another program, and what huggingface_hub raises.
    """
    require("gradio", "the page")
    from huggingface_hub import CommitOperationAdd

    from ..hub.publish import client

    repo_id = repository(name)
    api = client(PublishOptions())
    with answers(repo_id):
        if api.repo_exists(repo_id, repo_type="space"):
            _refuse_other(api, repo_id)
            if private and not api.space_info(repo_id).private:
                raise RopeconvError(f"{repo_id} is there and public; leave --private out, or change that on the Hub")
        else:
            api.create_repo(repo_id, repo_type="space", space_sdk="gradio", private=private)
        operations = [CommitOperationAdd(path, text.encode()) for path, text in files().items()]
        api.create_commit(repo_id, operations, commit_message=f"ropeconv {__version__}", repo_type="space")
    return f"{api.endpoint}/spaces/{repo_id}"


def _refuse_other(api: HfApi, repo_id: str) -> None:
    """Raises RopeconvError for a Space that is not one of these."""
    if api.file_exists(repo_id, PROGRAM, repo_type="space"):
        with open(api.hf_hub_download(repo_id, PROGRAM, repo_type="space"), encoding="utf-8", errors="replace") as file:
            if MARK in file.read():
                return
    elif set(api.list_repo_files(repo_id, repo_type="space")) <= EMPTY:
        return
    raise RopeconvError(f"{repo_id} is a Space with another program; choose another name")


def _homepage() -> str:
    """The page of the project, as its metadata has it."""
    try:
        urls = metadata("ropeconv").get_all("Project-URL") or []
    except PackageNotFoundError:
        urls = []
    return next((url.partition(", ")[2] for url in urls if url.startswith("Homepage, ")), "")
