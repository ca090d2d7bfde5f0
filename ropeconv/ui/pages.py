"""Bake: a plan, and then a folder, a GGUF file or a publication."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import gradio as gr
from gradio.components import Component

from ..bake.advice import matrix
from ..convert.encoding import ENCODINGS
from ..convert.to_gguf import export
from ..convert.to_gguf.write import FTYPES
from ..options import Format
from ..runtimes.gguf_readers import reader_names
from ..runtimes.runtime import runtimes
from .forms import (
    METHODS,
    BakeForm,
    CompareForm,
    InspectForm,
    PageForm,
    ResultsForm,
    RuntimesForm,
    filled,
    from_address,
    kept,
)
from .rules import Rules
from .server import Front
from .tasks import shown

SOURCE = "owner/name on the Hub, also with @revision or /file.gguf"
LOCAL_SOURCE = f"{SOURCE}, or a folder, config.json or GGUF file on this machine"


def heading(title: str, words: str) -> None:
    """The heading of a page, and a sentence on what it is for. Both are our own text."""
    gr.HTML(f"<h1>{title}</h1><p>{words}</p>", elem_classes=["head"], apply_default_css=False)


def model(
    rules: Rules, dropped: str = "config.json or GGUF file", kinds: tuple[str, ...] = (".json", ".gguf")
) -> dict[str, Any]:
    """The two ways to name a model: its name, and a dropped file. dropped: what it may be. kinds: its suffixes."""
    source = gr.Textbox(label="Model", info=SOURCE if rules.public else LOCAL_SOURCE, max_lines=1, elem_id="source")
    with gr.Accordion(f"Or drop a {dropped}", open=False):
        upload = gr.File(label=dropped, file_types=list(kinds), height=140, elem_id="upload")
    return {"source": source, "upload": upload}


def answer() -> gr.HTML:
    """Where the answer stands."""
    return gr.HTML(elem_id="answer", apply_default_css=False)


ADDRESS = """(...values) => {
  const address = new URL(window.location);
  %s.forEach((name, place) => {
    const value = Array.isArray(values[place]) ? values[place].join(",") : values[place];
    if (value === true) address.searchParams.set(name, "1");
    else if (value) address.searchParams.set(name, value);
    else address.searchParams.delete(name);
  });
  window.history.replaceState(null, "", address);
}"""
"""Keeps the values of components in the address. %s: their names, as a list."""
Answers = Callable[[PageForm, gr.Request, str], Iterator[str]]


@dataclass(frozen=True)
class Page:
    """The components of a page. kind: of the form. fields: components by name. answer: where answers stand."""

    front: Front
    kind: type[PageForm]
    fields: Mapping[str, Any]
    answer: gr.HTML

    def ask(self, task: str, triggers: list[Any], baking: bool = False) -> None:
        """Runs a task when one of `triggers` comes. baking: whether it may take as long as a bake."""

        def begin(request: gr.Request) -> None:
            self.front.begin(request.session_hash or "")

        def answers(form: PageForm, request: gr.Request, token: str) -> Iterator[str]:
            yield from self.front.answers(task, form, request.session_hash or "", token, baking)

        if baking:  # at once, while the bake itself may have to wait
            gr.on(triggers, begin, None, None, queue=False, api_visibility="private", show_progress="hidden")
        self.on(triggers, answers)

    def on(self, triggers: list[Any], answers: Answers, last: bool = False) -> None:
        """Shows answers when one of `triggers` comes, and keeps what was typed in the address.

        last: answer also the last trigger that comes while another one is answered, instead of none of them.
        """

        def asked(given: dict[Component, object], request: gr.Request, token: str) -> Iterator[str]:
            values = {name: given.get(component) for name, component in self.fields.items()}
            yield from answers(filled(self.kind, values), request, token)

        names = kept(self.kind)
        gr.on(
            triggers, None, [self.fields[name] for name in names], None, js=ADDRESS % json.dumps(names), queue=False,
            api_visibility="private", show_progress="hidden",
        )  # fmt: skip
        gr.on(
            triggers, self._with_login(asked), set(self.fields.values()), self.answer, api_visibility="private",
            concurrency_limit=self.front.rules.at_once, concurrency_id="requests", show_progress="hidden",
            trigger_mode="always_last" if last else "once",
        )  # fmt: skip

    def from_address(self, page: gr.Blocks, answers: Answers, complete: Callable[[Any], bool]) -> None:
        """Fills the components from the address when a page is opened, and answers where it is `complete`."""
        names = kept(self.kind)

        def opened(request: gr.Request, token: str) -> Iterator[list[object]]:
            form = from_address(self.kind, dict(request.query_params))
            untouched = [gr.skip() for _ in names]
            values = [list(one) if isinstance(one := getattr(form, name), tuple) else one for name in names]
            known = [_known(self.fields[name], value) for name, value in zip(names, values, strict=True)]
            form = filled(self.kind, dict(zip(names, known, strict=True)))
            filling = form != self.kind()  # what is typed meanwhile stays
            yield [*(known if filling else untouched), ""]
            if complete(form):
                for html in answers(form, request, token):
                    yield [*untouched, html]

        outputs = [*(self.fields[name] for name in names), self.answer]
        if self.front.rules.public:

            def load(request: gr.Request, token: gr.OAuthToken | None) -> Iterator[list[object]]:
                yield from opened(request, token.token if token else "")
        else:

            def load(request: gr.Request) -> Iterator[list[object]]:  # type: ignore[misc]
                yield from opened(request, "")

        page.load(
            load, None, outputs, api_visibility="private", show_progress="hidden",
            concurrency_limit=self.front.rules.at_once, concurrency_id="requests",
        )  # fmt: skip

    def task(self, name: str) -> Answers:
        """The answers of a task. name: of it."""
        return lambda form, request, token: self.front.answers(name, form, request.session_hash or "", token)

    def _with_login(self, asked: Callable[[dict[Component, object], gr.Request, str], Iterator[str]]) -> Any:
        """A function of Gradio: with the login of the visitor in a Space, without it on one's own machine."""
        if not self.front.rules.public:

            def local(given: dict[Component, object], request: gr.Request) -> Iterator[str]:
                yield from asked(given, request, "")

            return local

        def public(given: dict[Component, object], request: gr.Request, token: gr.OAuthToken | None) -> Iterator[str]:
            yield from asked(given, request, token.token if token else "")

        return public


def _known(component: Component, value: object) -> object:
    """The value of a component from an address; what a list of choices does not have is left out."""
    choices = getattr(component, "choices", None)
    if choices is None or getattr(component, "allow_custom_value", False):
        return value
    known = {one[1] if isinstance(one, tuple) else one for one in choices}
    return [one for one in value if one in known] if isinstance(value, list) else value if value in known else ""


def build_compare(front: Front, page: gr.Blocks) -> None:
    """The components of the page."""
    heading("Compare", "The methods that reach a length, with numbers that need no run of the model, and their curves.")
    fields = model(front.rules)
    context = gr.Textbox(
        label="Context", info="A length such as 128k, or a factor such as 4", max_lines=1, elem_id="context"
    )
    with gr.Accordion("Sort by a measurement of this model", open=False):
        measured = gr.File(label="The file of `ropeconv eval -o`", file_types=[".json"], height=140)
    fields |= {"context": context, "measured": measured}
    button = gr.Button("Compare", variant="primary", elem_id="ask")
    made = Page(front, CompareForm, fields, answer())
    made.ask("compare", [button.click, fields["source"].submit, context.submit])
    made.from_address(page, made.task("compare"), lambda form: bool(form.source and form.context))


def build_inspect(front: Front, page: gr.Blocks) -> None:
    """The components of the page."""
    heading("Inspect", "The RoPE of a model, what is wrong with its settings, and which runtimes read it right.")
    fields = model(front.rules)
    button = gr.Button("Inspect", variant="primary", elem_id="ask")
    made = Page(front, InspectForm, fields, answer())
    made.ask("inspect", [button.click, fields["source"].submit])
    made.from_address(page, made.task("inspect"), lambda form: bool(form.source))


def build_results(front: Front, page: gr.Blocks) -> None:
    """The components of the page."""
    heading("Results", "How an output was made, whether runtimes compute it, and what it does to the model.")
    fields = model(front.rules, "receipt (ropeconv.json), result of eval or validate, or GGUF file")
    button = gr.Button("Show", variant="primary", elem_id="ask")
    made = Page(front, ResultsForm, fields, answer())
    made.ask("results", [button.click, fields["source"].submit])
    made.from_address(page, made.task("results"), lambda form: bool(form.source))


def build_runtimes(front: Front, page: gr.Blocks) -> None:
    """The components of the page."""
    heading("Runtimes", "What every runtime computes of every model family, and how that is known.")
    cells = matrix()
    families = sorted({cell.family for cell in cells})
    runtimes = list(dict.fromkeys(cell.verdict.runtime.partition("@")[0] for cell in cells))
    with gr.Row():
        family = gr.Dropdown([("all", ""), *families], value="", label="Family", elem_id="family")
        runtime = gr.Dropdown([("all", ""), *runtimes], value="", label="Runtime", elem_id="runtime")
    fields = {"family": family, "runtime": runtime}
    made = Page(front, RuntimesForm, fields, answer())

    def answers(form: Any, request: gr.Request, token: str) -> Iterator[str]:
        yield shown(form)

    made.on([one.change for one in fields.values()], answers, last=True)
    made.from_address(page, answers, lambda form: True)


SIGN_IN = "Sign in with Hugging Face"
LONGEST = 1500
"""Characters of an address that comes back: it is kept in a cookie meanwhile."""
AWAY = """(words, ...values) => {
  (%s)(...values);
  const typed = window.location.search.length < %d ? window.location.search : "";
  const way = words === %s ? "/login/huggingface" : "/logout";
  window.parent?.postMessage({ type: "SET_SCROLLING", enabled: true }, "*");
  setTimeout(() => {
    window.location.assign(`${way}?_target_url=${encodeURIComponent(window.location.pathname + typed)}`);
  }, 500);
}"""
"""As the script of Gradio's own button, but with all of the address, of which that keeps the first field alone."""


def login() -> gr.Button:
    """The button, where it stands."""
    gr.LoginButton(visible=False)  # without one, Gradio does not serve the addresses of a login
    return gr.Button(SIGN_IN, elem_id="login")


def lead_back(button: gr.Button, made: Page, page: gr.Blocks) -> None:
    """Signs in and out, and leads back to the page with what was typed. button: of `login`. made: the page's fields."""
    names = kept(made.kind)
    script = AWAY % (ADDRESS % json.dumps(names), LONGEST, json.dumps(SIGN_IN))
    typed = [made.fields[name] for name in names]
    button.click(None, [button, *typed], None, js=script, queue=False, api_visibility="private")

    def named(profile: gr.OAuthProfile | None) -> str:
        return f"Sign out ({profile.username})" if profile else SIGN_IN

    page.load(named, None, button, queue=False, api_visibility="private", show_progress="hidden")


OUTTYPES = tuple(dict.fromkeys(("auto", *export.OUTTYPES, *FTYPES)))
LOGIN = "Publishing needs a login: Hugging Face then asks whether this page may create repositories of yours."


def build_bake(front: Front, page: gr.Blocks) -> None:
    """The components of the page."""
    public = front.rules.public
    heading("Bake", "Plan an output first; then write or publish it. Weights that do not change are not moved.")
    fields = model(front.rules)
    with gr.Row():
        fields["method"] = gr.Dropdown([("choose", ""), *METHODS], value="", label="Method", elem_id="method")
        fields["value"] = gr.Textbox(
            label="Its value", info="A factor (4) or a length (128k)", max_lines=1, elem_id="value"
        )
    with gr.Accordion("Settings of the method, and recipes", open=False):
        fields["settings"] = gr.Textbox(
            label="Settings", info="name=value, with commas: beta_fast=16, context=65536, attention_factor=1.1",
            max_lines=1, elem_id="settings",
        )  # fmt: skip
        fields["recipe"] = gr.File(label="A recipe in place of the method", file_types=[".json"], height=140)
    with gr.Accordion("How it is written", open=False):
        with gr.Row():
            fields["to"] = gr.Dropdown(
                [("as the model", ""), *get_args(Format)], value="", label="Format", elem_id="to"
            )
            fields["outtype"] = gr.Dropdown(
                [("as stored", ""), *OUTTYPES], value="", label="Type of GGUF weights", elem_id="outtype"
            )
            fields["encoding"] = gr.Dropdown([("auto", ""), *ENCODINGS], value="", label="Encoding", elem_id="encoding")
        names = [*dict.fromkeys(row.name for row in runtimes()), *reader_names()]
        fields["runtimes"] = gr.Dropdown(
            names, value=[], multiselect=True, label="Runtimes that must read it exactly", elem_id="runtimes"
        )
        fields["replace"] = gr.Checkbox(False, label="Start a scaled model from its unscaled RoPE", elem_id="replace")
    if not public:
        fields["out"] = gr.Textbox(
            label="Folder or GGUF file", info="Empty: here, named after model and method", max_lines=1, elem_id="out"
        )
    with gr.Row():
        fields["repo_id"] = gr.Textbox(
            label="Repository", info="owner/name, to publish", max_lines=1, elem_id="repo_id"
        )
        fields["private"] = gr.Checkbox(False, label="Private", elem_id="private")
        fields["exist_ok"] = gr.Checkbox(False, label="Commit to one that exists (--exist-ok)", elem_id="exist_ok")
    if public:
        gr.Markdown(LOGIN)
        button = login()
    with gr.Row():
        planning = gr.Button("Plan", variant="primary", elem_id="plan")
        writing = gr.Button("Write", visible=not public, elem_id="write")
        publishing = gr.Button("Publish", elem_id="publish")
        cancel = gr.Button("Cancel", variant="stop", elem_id="cancel")
    fields |= {"out": gr.State("")} if public else {}
    made = Page(front, BakeForm, fields, answer())
    if public:
        lead_back(button, made, page)
    made.ask("plan", [planning.click, fields["source"].submit, fields["value"].submit])
    if not public:
        made.ask("write", [writing.click], baking=True)
    made.ask("publish", [publishing.click], baking=True)

    def stop(request: gr.Request) -> None:
        front.stop(request.session_hash or "")

    cancel.click(stop, None, None, queue=False, api_visibility="private", show_progress="hidden")
    made.from_address(page, made.task("plan"), lambda form: bool(form.source and form.method))
