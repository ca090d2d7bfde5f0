"""The pages and their components, whose options are those of the command line. Imports Gradio."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, get_args

import gradio as gr
from gradio.components import Component, Navbar

from ropeconv.convert.to_gguf import export
from ropeconv.convert.to_gguf.write import FTYPES
from ropeconv.formats.package_data import render
from ropeconv.hub.options import PushOptions
from ropeconv.options import Format, Option, TargetOptions, options
from ropeconv.rope.methods.method import REGISTRY
from ropeconv.runtimes.gguf_readers import reader_names
from ropeconv.version import __version__
from ropeconv.views.plan import method_title

from .forms import (
    METHODS,
    BakeForm,
    CompareForm,
    ModelForm,
    PageForm,
    RuntimesForm,
    filled,
    from_address,
    kept,
    to_page,
)
from .front import Front
from .tasks import WRITINGS, family_names, runtime_names, shown

AT_ONCE = 8
"""Requests that run."""
SOURCE = (
    "owner/name on the Hub, with @revision or /file.gguf if needed; or the path of a folder,"
    " config.json or GGUF file"
)
WORDS = "Extend the context of a language model, in a form that your runtime computes correctly."
EXAMPLES = (
    ("Qwen/Qwen3-8B", "128k"),
    ("HuggingFaceTB/SmolLM2-1.7B-Instruct", "32k"),
    ("microsoft/phi-4", "64k"),
)
"""Models that need no login, with a length that suits them."""


def heading(title: str, words: str) -> None:
    """The heading of a page, and a sentence on its purpose. Both are our own text."""
    gr.HTML(f"<h1>{title}</h1><p>{words}</p>", elem_classes=["head"], apply_default_css=False)


def model(dropped: str = "config.json or GGUF file") -> dict[str, Any]:
    """The two ways to name a model: its name, and a dropped file. dropped: what it may be."""
    return {
        "source": gr.Textbox(label="Model", info=SOURCE, max_lines=1, elem_id="source")
    } | upload(dropped)


def upload(dropped: str = "config.json or GGUF file") -> dict[str, Any]:
    """The place for a dropped file. dropped: what it may be."""
    with gr.Accordion(f"Or drop a {dropped}", open=False):
        return {
            "upload": gr.File(
                label=dropped, file_types=[".json", ".gguf"], height=140, elem_id="upload"
            )
        }


def control(option: Option, choices: Sequence[str] = ()) -> gr.components.Component:
    """The component of an option, labelled with its flag. choices: its values, where it does not
    list them.
    """
    known = [*(choices or option.choices)]
    about: dict[str, Any] = {"label": option.flag, "info": option.help, "elem_id": option.name}
    if option.kind is bool:
        return gr.Checkbox(False, **about)
    if known:
        empty = [("default", option.default or "")] if option.default not in known else []
        return gr.Dropdown([*empty, *known], value=option.default or "", **about)
    return gr.Textbox(max_lines=1, **about)


def controls(
    kind: type, choices: Mapping[str, Sequence[str]], without: Collection[str] = ()
) -> dict[str, Any]:
    """The components of the options of a class. choices: as for `control`, by name. without: names
    to leave out.
    """
    shown_options = [option for option in options(kind) if option.name not in without]
    return {option.name: control(option, choices.get(option.name, ())) for option in shown_options}


def answer() -> gr.HTML:
    """The place of the answer."""
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
Answers = Callable[[Any, gr.Request], Iterator[str]]


@dataclass(frozen=True)
class Page:
    """The components of a page. kind: of the form. fields: components by name. answer: the place of
    answers.
    """

    front: Front
    kind: type[PageForm]
    fields: Mapping[str, Any]
    answer: gr.HTML

    def ask(self, task: str, triggers: list[Any], baking: bool = False) -> None:
        """Runs a task when one of `triggers` comes. baking: whether it may take any time."""

        def begin(request: gr.Request) -> None:
            self.front.begin(request.session_hash or "")

        if baking:  # at once, while the bake itself may have to wait
            gr.on(
                triggers,
                begin,
                None,
                None,
                queue=False,
                api_visibility="private",
                show_progress="hidden",
            )
        self.on(triggers, self.task(task, baking))

    def on(
        self,
        triggers: list[Any],
        answers: Answers,
        last: bool = False,
        place: Component | None = None,
    ) -> None:
        """Shows answers when one of `triggers` comes, and keeps what was typed in the address.

        last: answer also the last trigger that comes while another one is answered, instead of none
        of them. place: where they are shown, by default the place of the answer.
        """

        def answer_form(typed: dict[Component, object], request: gr.Request) -> Iterator[str]:
            values = {name: typed.get(component) for name, component in self.fields.items()}
            yield from answers(filled(self.kind, values), request)

        names = kept(self.kind)
        gr.on(
            triggers,
            None,
            [self.fields[name] for name in names],
            None,
            js=ADDRESS % json.dumps(names),
            queue=False,
            api_visibility="private",
            show_progress="hidden",
        )
        gr.on(
            triggers,
            answer_form,
            set(self.fields.values()),
            place or self.answer,
            api_visibility="private",
            concurrency_limit=AT_ONCE,
            concurrency_id="requests",
            show_progress="hidden",
            trigger_mode="always_last" if last else "once",
        )

    def from_address(
        self, page: gr.Blocks, answers: Answers, complete: Callable[[Any], bool]
    ) -> None:
        """Fills the components from the address when a page is opened, and answers where it is
        `complete`.
        """
        names = kept(self.kind)

        def load(request: gr.Request) -> Iterator[list[object]]:
            form = from_address(self.kind, dict(request.query_params))
            untouched = [gr.skip() for _ in names]
            values = [
                list(value) if isinstance(value := getattr(form, name), tuple) else value
                for name in names
            ]
            known = [
                _known(self.fields[name], value) for name, value in zip(names, values, strict=True)
            ]
            form = filled(self.kind, dict(zip(names, known, strict=True)))
            filling = form != self.kind()  # what is typed meanwhile stays
            yield [*(known if filling else untouched), ""]
            if complete(form):
                for html in answers(form, request):
                    yield [*untouched, html]

        outputs = [*(self.fields[name] for name in names), self.answer]
        page.load(
            load,
            None,
            outputs,
            api_visibility="private",
            show_progress="hidden",
            concurrency_limit=AT_ONCE,
            concurrency_id="requests",
        )

    def task(self, name: str, baking: bool = False) -> Answers:
        """The answers of a task. name: of it. baking: as in `ask`."""

        def answers(form: PageForm, request: gr.Request) -> Iterator[str]:
            yield from self.front.answers(name, form, request.session_hash or "", baking)

        return answers


def _known(component: Component, value: object) -> object:
    """The value of a component from an address; what a list of choices does not have is left
    out.
    """
    choices = getattr(component, "choices", None)
    if choices is None or getattr(component, "allow_custom_value", False):
        return value
    known = {choice[1] if isinstance(choice, tuple) else choice for choice in choices}
    if isinstance(value, list):
        return [choice for choice in value if choice in known]
    return value if value in known else ""


def build_compare(front: Front, page: gr.Blocks) -> None:
    """The components of the page."""
    heading(
        "Compare",
        "The methods that reach a length, side by side, compared without running the model.",
    )
    fields = model()
    context = gr.Textbox(
        label="Target length",
        info="Tokens such as 128k, or a factor such as 4",
        max_lines=1,
        elem_id="context",
    )
    with gr.Accordion("Sort by a measurement of this model", open=False):
        measured = gr.File(label="The file of `ropeconv eval -o`", file_types=[".json"], height=140)
    fields |= {"context": context, "measured": measured}
    button = gr.Button("Compare", variant="primary", elem_id="ask")
    compare_page = Page(front, CompareForm, fields, answer())
    compare_page.ask("compare", [button.click, fields["source"].submit, context.submit])
    compare_page.from_address(
        page, compare_page.task("compare"), lambda form: bool(form.source and form.context)
    )


def build_inspect(front: Front, page: gr.Blocks) -> None:
    """The components of the page."""
    heading(
        "Inspect", "The RoPE of a model, problems in its config, and the runtimes that support it."
    )
    _about_a_model(front, page, "inspect", "Inspect", model())


def build_results(front: Front, page: gr.Blocks) -> None:
    """The components of the page."""
    heading("Results", "How an output was made, whether it was validated, and how well it works.")
    _about_a_model(front, page, "results", "Show", model("receipt, result or GGUF file"))


def _about_a_model(
    front: Front, page: gr.Blocks, task: str, words: str, fields: dict[str, Any]
) -> None:
    button = gr.Button(words, variant="primary", elem_id="ask")
    model_page = Page(front, ModelForm, fields, answer())
    model_page.ask(task, [button.click, fields["source"].submit])
    model_page.from_address(page, model_page.task(task), lambda form: bool(form.source))


def build_runtimes(front: Front, page: gr.Blocks) -> None:
    """The components of the page."""
    heading("Runtimes", "Which runtimes support a method, by model family.")
    with gr.Row():
        writings = [(title, name) for name, title in WRITINGS.items()]
        writing = gr.Dropdown(writings, value=writings[0][1], label="Method", elem_id="writing")
        about = "Type to search"
        family = gr.Dropdown(
            [("all", ""), *family_names()], value="", label="Family", info=about, elem_id="family"
        )
        runtime = gr.Dropdown(
            [("all", ""), *runtime_names()],
            value="",
            label="Runtime",
            info=about,
            elem_id="runtime",
        )
    fields = {"family": family, "runtime": runtime, "writing": writing}
    table_page = Page(front, RuntimesForm, fields, answer())

    def answers(form: Any, request: gr.Request) -> Iterator[str]:
        yield shown(form)

    table_page.on([field.change for field in fields.values()], answers, last=True)
    table_page.from_address(page, answers, lambda form: True)


CHOICES = {
    "to": get_args(Format),
    "outtype": tuple(dict.fromkeys(("auto", *export.OUTTYPES, *FTYPES))),
}
"""Values of options that do not list them all."""


def build_bake(front: Front, page: gr.Blocks) -> None:
    """The components of the page."""
    examples = " ".join(
        f'<a href="{escape(to_page("", BakeForm(source=name, context=length)))}">{name} to'
        f" {length}</a>"
        for name, length in EXAMPLES
    )
    heading("ropeconv", f'{WORDS}</p><p class="examples">For example: {examples}')
    with gr.Row():
        source = gr.Textbox(
            label="Model", info=SOURCE, max_lines=1, elem_id="source", scale=5, min_width=260
        )
        searching = gr.Button("Search the Hub", elem_id="search", scale=1, min_width=130)
    matches = gr.HTML(elem_id="found", apply_default_css=False)
    fields = upload()
    with gr.Row():
        context = gr.Textbox(
            "128k",
            label="Target length",
            info="Tokens, or a factor such as 4",
            max_lines=1,
            elem_id="context",
        )
        runtimes = gr.Dropdown(
            [*runtime_names(), *reader_names()],
            value=[],
            multiselect=True,
            label="Runtime",
            info="Optional: where it must run correctly",
            elem_id="runtimes",
        )
    fields |= {"source": source, "context": context, "runtimes": runtimes}
    with gr.Accordion("Method and other options", open=False):
        methods = [(f"{method_title(REGISTRY[name])} (--{name})", name) for name in METHODS]
        fields["method"] = gr.Dropdown(methods, value="yarn", label="Method", elem_id="method")
        fields["value"] = gr.Textbox(
            label="Value of the method",
            info="Only where it is not the length: a base for --theta, ...",
            max_lines=1,
            elem_id="value",
        )
        fields["settings"] = gr.Textbox(
            label="Settings",
            info="name=value, with commas: beta_fast=16, context=65536, attention_factor=1.1",
            max_lines=1,
            elem_id="settings",
        )
        fields["recipe"] = gr.File(
            label="A recipe instead of the method", file_types=[".json"], height=140
        )
        fields |= controls(TargetOptions, CHOICES, without=("runtimes",))
    planning = gr.Button("Plan", variant="primary", elem_id="plan")
    place = answer()
    with gr.Row():
        info = "A folder or GGUF file. By default it is named after model and method"
        out = gr.Textbox(
            label="Write to", info=info, max_lines=1, elem_id="out", scale=5, min_width=260
        )
        writing = gr.Button("Write", elem_id="write", scale=1, min_width=130)
    with gr.Row():
        info = "owner/name on the Hub"
        repo_id = gr.Textbox(
            label="Publish to", info=info, max_lines=1, elem_id="repo_id", scale=5, min_width=260
        )
        publishing = gr.Button("Publish", elem_id="publish", scale=1, min_width=130)
    with gr.Accordion("Options of publishing", open=False):
        fields |= {"repo_id": repo_id} | controls(PushOptions, {})
    cancel = gr.Button("Cancel", size="sm", elem_id="cancel")
    fields["out"] = out
    bake_page = Page(front, BakeForm, fields, place)
    bake_page.on([searching.click], bake_page.task("search"), place=matches)
    bake_page.ask(
        "plan", [planning.click, *(fields[name].submit for name in ("source", "context", "value"))]
    )
    bake_page.ask("write", [writing.click], baking=True)
    bake_page.ask("publish", [publishing.click], baking=True)

    def stop(request: gr.Request) -> None:
        front.stop(request.session_hash or "")

    cancel.click(stop, None, None, queue=False, api_visibility="private", show_progress="hidden")
    bake_page.from_address(page, bake_page.task("plan"), lambda form: bool(form.source))


PAGES = {
    "Inspect": build_inspect,
    "Compare": build_compare,
    "Runtimes": build_runtimes,
    "Results": build_results,
}
KEPT = (600, 7200)
"""Seconds between two looks at dropped files, and after which they are removed."""
QUIET, QUIET_DARK = "#59636e", "#a3abb3"
"""Small type, with a contrast of at least 4.5 to what is behind it."""
HEAD = '<link rel="icon" href="favicon.ico"><style>%s</style><script>%s</script>'


def application(front: Front) -> gr.Blocks:
    """The pages. front: that runs their requests."""

    def left(request: gr.Request) -> None:
        front.stop(request.session_hash or "")

    with gr.Blocks(title="ropeconv", analytics_enabled=False, delete_cache=KEPT) as demo:
        _page(front, demo, build_bake)
        demo.unload(left)
    for name, build in PAGES.items():
        with demo.route(name) as page:
            _page(front, page, build)
    demo.queue(api_open=False)
    demo._queue.sleep_when_free = (
        0.02  # seconds; with the 0.001 of Gradio an idle page takes 7 % of a core
    )
    return demo  # type: ignore[no-any-return]


def looks() -> dict[str, Any]:
    """How the pages look, as arguments of `launch`. Nothing is loaded from elsewhere."""
    fonts = ["system-ui", "sans-serif"]
    mono = ["ui-monospace", "monospace"]
    theme = gr.themes.Default(primary_hue="blue", font=fonts, font_mono=mono)
    theme.set(
        body_text_color_subdued=QUIET,
        body_text_color_subdued_dark=QUIET_DARK,
        block_info_text_color=QUIET,
        block_info_text_color_dark=QUIET_DARK,
        button_primary_background_fill="*primary_600",
    )
    return {
        "theme": theme,
        # not as `css`, which Gradio puts below selectors of its own
        "head": HEAD % (render("ui/style.css"), render("ui/page.js")),
        "footer_links": [],
        "run_history": False,
    }


def _page(front: Front, page: gr.Blocks, build: Callable[[Front, gr.Blocks], None]) -> None:
    Navbar(main_page_name="Extend")
    build(front, page)
    gr.HTML(f'<p class="quiet">ropeconv {__version__}</p>', apply_default_css=False)
