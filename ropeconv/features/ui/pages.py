"""The pages and their components, whose options are those of the command line.

`application` builds all pages: one function for each, such as `build_compare`, places components
and says which of them ask for what. `Page` connects these with `Front`. The module imports Gradio.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, get_args

import gradio as gr
from gradio.components import Component, Navbar

from ropeconv.convert.to_gguf import export
from ropeconv.convert.to_gguf.quantise import FTYPES
from ropeconv.formats.package_data import render
from ropeconv.hub.options import PushOptions
from ropeconv.options import Format, MachineOptions, Option, TargetOptions, options
from ropeconv.rope.methods.method import REGISTRY
from ropeconv.runtimes.gguf_readers import reader_names
from ropeconv.version import __version__
from ropeconv.views.plan import method_title

from .forms import (
    METHODS,
    PRESETS,
    BakeForm,
    CompareForm,
    ModelForm,
    PageForm,
    RuntimesForm,
    address_fields,
    fill_form,
    from_address,
    to_page,
)
from .front import Front
from .tasks import WRITINGS, family_names, runtime_names, runtimes_html

MOST_REQUESTS = 8
"""Requests that run at the same time."""
MODEL_INFO = (
    "owner/name on the Hub, with @revision or /file.gguf if needed; or the path of a folder,"
    " config.json or GGUF file"
)
PURPOSE = "Extend the context of a language model, in a form that your runtime computes correctly."
EXAMPLES = (
    ("Qwen/Qwen3-8B", "128k"),
    ("HuggingFaceTB/SmolLM2-1.7B-Instruct", "32k"),
    ("microsoft/phi-4", "64k"),
)
"""Models that need no login, with a length that suits them."""


def add_heading(title: str, words: str, more: str = "") -> None:
    """Add the heading of a page, a sentence on its purpose, and more HTML below it.

    All are HTML, and must be our own text.
    """
    html = f"<h1>{title}</h1><p>{words}</p>{more}"
    gr.HTML(html, elem_classes=["head"], apply_default_css=False)


def add_model(dropped: str = "config.json or GGUF file") -> dict[str, Any]:
    """Add the two ways to name a model, its name and a dropped file, and return them by name.

    Args:
        dropped: The files that may be dropped, in words.
    """
    source = gr.Textbox(label="Model", info=MODEL_INFO, max_lines=1, elem_id="source")
    return {"source": source, **add_upload(dropped)}


def add_upload(dropped: str = "config.json or GGUF file") -> dict[str, Any]:
    """Add the place for a dropped file, and return {"upload": it}.

    Args:
        dropped: The files that may be dropped, in words.
    """
    with gr.Accordion(f"Or drop a {dropped}", open=False):
        file = gr.File(label=dropped, file_types=[".json", ".gguf"], height=140, elem_id="upload")
    return {"upload": file}


def add_option(option: Option, choices: Sequence[str] = ()) -> gr.components.Component:
    """Add the component of an option, labelled with its flag: a box, a list or a text field.

    Args:
        option: The option.
        choices: Its values, where the option does not list them.
    """
    about: dict[str, Any] = {"label": option.flag, "info": option.help, "elem_id": option.name}
    if option.kind is bool:
        return gr.Checkbox(False, **about)

    known: list[Any] = list(choices or option.choices)
    if not known:
        return gr.Textbox(max_lines=1, **about)

    # an option without a value means that ropeconv chooses, which a list must have as a choice
    default = option.default or ""
    if option.default not in known:
        known.insert(0, ("default", default))
    return gr.Dropdown(known, value=default, **about)


def add_options(
    kind: type, choices: Mapping[str, Sequence[str]], without: Collection[str] = ()
) -> dict[str, Any]:
    """Add the components of the options of a class, and return them by name.

    Args:
        kind: The class.
        choices: The values to choose from, by the name of the option, where it lists none.
        without: Names of options to leave out.
    """
    components = {}
    for option in options(kind):
        if option.name not in without:
            components[option.name] = add_option(option, choices.get(option.name, ()))
    return components


def add_answer() -> gr.HTML:
    """Add the place of the answer."""
    return gr.HTML(elem_id="answer", apply_default_css=False)


ADDRESS_SCRIPT = """(...values) => {
  const address = new URL(window.location);
  %s.forEach((name, place) => {
    const value = Array.isArray(values[place]) ? values[place].join(",") : values[place];
    if (value === true) address.searchParams.set(name, "1");
    else if (value) address.searchParams.set(name, value);
    else address.searchParams.delete(name);
  });
  window.history.replaceState(null, "", address);
}"""
"""JavaScript that keeps the values of components in the address; %s is the list of their names."""
Answers = Callable[[Any, gr.Request], Iterator[str]]
"""Yields the HTML of a page for its form: progress, and at last the answer."""
NOT_IN_API: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
"""Arguments of all events: none is a part of an API, and answers show their progress."""
WITH_LIMIT: dict[str, Any] = {"concurrency_limit": MOST_REQUESTS, "concurrency_id": "requests"}
"""Arguments of events that run a task, which all share one limit."""


@dataclass(frozen=True)
class Page:
    """The components of a page."""

    front: Front

    kind: type[PageForm]
    """The class of the form."""

    fields: Mapping[str, Any]
    """The components of the form by name."""

    answer: gr.HTML
    """The place of answers."""

    def run_task_on(self, triggers: list[Any], task: str, baking: bool = False) -> None:
        """Run a task whenever an event happens, and show its answer on the page.

        Args:
            triggers: Events of Gradio, such as clicks of a button.
            task: The name of the task.
            baking: Whether the task writes, validates or publishes. It then has no time limit.
        """

        def forget_earlier_cancel(request: gr.Request) -> None:
            session = request.session_hash or ""  # the open page in the browser
            self.front.begin(session)

        # A task may wait in Gradio's queue, where Cancel stops it too. An earlier Cancel must not
        # stop this task, so it is forgotten at once (queue=False).
        if baking:
            gr.on(
                triggers,
                forget_earlier_cancel,
                inputs=None,
                outputs=None,
                queue=False,
                **NOT_IN_API,
            )
        self.answer_on(triggers, self.answers_of_task(task, baking))

    def answer_on(
        self,
        triggers: list[Any],
        answers: Answers,
        answer_last_event: bool = False,
        place: Component | None = None,
    ) -> None:
        """Show an answer whenever an event happens, and write the form into the address.

        Someone who opens the address later sees the same form.

        Args:
            triggers: Events of Gradio, such as clicks of a button.
            answers: Called with the form; yields HTML, which the page shows.
            answer_last_event: Whether to answer the last event that happens during another answer.
                By default such events are dropped.
            place: The component that shows the answers, by default `answer` of the page.
        """

        def answer_form(typed: dict[Component, object], request: gr.Request) -> Iterator[str]:
            values = {name: typed.get(component) for name, component in self.fields.items()}
            yield from answers(fill_form(self.kind, values), request)

        # first, JavaScript in the browser writes the values of the form into the address
        names = address_fields(self.kind)
        components = [self.fields[name] for name in names]
        script = ADDRESS_SCRIPT % json.dumps(names)  # the script has the names of the values
        gr.on(triggers, None, inputs=components, outputs=None, js=script, queue=False, **NOT_IN_API)

        # Then Python answers. Since `inputs` is a set, `answer_form` gets a dict of all values.
        gr.on(
            triggers,
            answer_form,
            inputs=set(self.fields.values()),
            outputs=place or self.answer,
            trigger_mode="always_last" if answer_last_event else "once",
            **NOT_IN_API,
            **WITH_LIMIT,
        )

    def fill_on_load(
        self, blocks: gr.Blocks, answers: Answers, is_complete: Callable[[Any], bool]
    ) -> None:
        """Fill the form from the address when the page is opened, and show the answer to it.

        /?source=Qwen/Qwen3-8B&context=128k opens with the model and the length filled in.

        Args:
            blocks: The page in Gradio.
            answers: Called with the form; yields HTML, which the page shows.
            is_complete: Whether a form can be answered. Most need a model.
        """

        def fill_and_answer(request: gr.Request) -> Iterator[list[object]]:
            yield from self._values_of_opened_page(request, answers, is_complete)

        form_fields = [self.fields[name] for name in address_fields(self.kind)]
        blocks.load(
            fill_and_answer,
            inputs=None,
            outputs=[*form_fields, self.answer],
            **NOT_IN_API,
            **WITH_LIMIT,
        )

    def _values_of_opened_page(
        self, request: gr.Request, answers: Answers, is_complete: Callable[[Any], bool]
    ) -> Iterator[list[object]]:
        """Yield the values of an opened page: a list for the fields of its form and the answer.

        Gradio shows each list at once. The value gr.skip() leaves its component unchanged.

        Args:
            request: The request of the browser, with the parameters of the address.
            answers: Called with the form; yields HTML, which the page shows.
            is_complete: Whether a form can be answered. Most need a model.
        """
        in_address = from_address(self.kind, dict(request.query_params))
        values = {}
        for name in address_fields(self.kind):
            values[name] = _known_value(self.fields[name], getattr(in_address, name))
        form = fill_form(self.kind, values)

        # First fill the form, without an answer yet. If the address has no values, leave the form
        # unchanged, since the user may have typed into it already.
        unchanged_form = [gr.skip() for _ in values]
        empty_form = self.kind()
        if form == empty_form:
            yield [*unchanged_form, ""]
        else:
            yield [*values.values(), ""]

        # then show the progress and the answer, each in place of the HTML before it
        if is_complete(form):
            for html in answers(form, request):
                yield [*unchanged_form, html]

    def answers_of_task(self, name: str, baking: bool = False) -> Answers:
        """Return a function that runs a task on a form, and yields its progress and answer as HTML.

        Args:
            name: The name of the task.
            baking: Whether the task writes, validates or publishes.
        """

        def answers(form: PageForm, request: gr.Request) -> Iterator[str]:
            yield from self.front.answers(name, form, request.session_hash or "", baking)

        return answers


def _known_value(component: Component, value: object) -> object:
    """Return a value from an address, without those that the list of a component does not have.

    Gradio raises an error for a value that is not among the choices, and the page stays empty.
    """
    # a tuple of several choices, which is a list in Gradio
    typed = list(value) if isinstance(value, tuple) else value
    choices = getattr(component, "choices", None)
    if choices is None or getattr(component, "allow_custom_value", False):
        return typed

    # a choice is a value, or a title with a value: ("YaRN (--yarn)", "yarn")
    known = set()
    for choice in choices:
        if isinstance(choice, tuple):
            _, known_value = choice
            known.add(known_value)
        else:
            known.add(choice)
    if isinstance(typed, list):
        return [choice for choice in typed if choice in known]
    return typed if typed in known else ""


def build_compare(front: Front, page: gr.Blocks) -> None:
    """Build the page that compares methods."""
    add_heading(
        "Compare",
        "The methods that reach a length, side by side, compared without running the model.",
    )
    fields = add_model()
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
    compare_page = Page(front=front, kind=CompareForm, fields=fields, answer=add_answer())
    compare_page.run_task_on([button.click, fields["source"].submit, context.submit], "compare")
    compare_page.fill_on_load(
        page,
        compare_page.answers_of_task("compare"),
        is_complete=lambda form: bool(form.source and form.context),
    )


def build_inspect(front: Front, page: gr.Blocks) -> None:
    """Build the page that inspects a model."""
    add_heading(
        "Inspect", "The RoPE of a model, problems in its config, and the runtimes that support it."
    )
    _ask_about_model(front, page, "inspect", "Inspect", add_model())


def build_results(front: Front, page: gr.Blocks) -> None:
    """Build the page that shows receipts and results."""
    add_heading(
        "Results", "How an output was made, whether it was validated, and how well it works."
    )
    _ask_about_model(front, page, "results", "Show", add_model("receipt, result or GGUF file"))


def _ask_about_model(
    front: Front, blocks: gr.Blocks, task: str, label: str, fields: dict[str, Any]
) -> None:
    """Add a button that runs a task on a model, and below it the answer.

    Args:
        front: Runs the tasks of pages in processes.
        blocks: The page in Gradio.
        task: The name of the task, such as "inspect".
        label: The text on the button.
        fields: The components that name the model, from `add_model`.
    """
    button = gr.Button(label, variant="primary", elem_id="ask")
    page = Page(front=front, kind=ModelForm, fields=fields, answer=add_answer())

    # a click on the button, or Enter in the field of the model, runs the task
    page.run_task_on([button.click, fields["source"].submit], task)

    # an address with a model, such as ?source=Qwen/Qwen3-8B, runs the task when it is opened
    def names_model(form: ModelForm) -> bool:
        return bool(form.source)

    answers = page.answers_of_task(task)  # a function that runs the task on a form
    page.fill_on_load(blocks, answers, is_complete=names_model)


def build_runtimes(front: Front, page: gr.Blocks) -> None:
    """Build the page with a table of which runtimes support which methods.

    Args:
        front: Runs the tasks of pages in processes. The table needs no process.
        page: The page in Gradio.
    """
    add_heading("Runtimes", "Which runtimes support a method, by model family.")

    # three lists, to choose the method, the family and the runtime
    with gr.Row():
        # WRITINGS: the title of each method, by how config.json has it (its "writing")
        writings = [(title, name) for name, title in WRITINGS.items()]
        _, first_writing = writings[0]
        writing = gr.Dropdown(writings, value=first_writing, label="Method", elem_id="writing")
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
    table_page = Page(front=front, kind=RuntimesForm, fields=fields, answer=add_answer())

    def answers(form: Any, request: gr.Request) -> Iterator[str]:
        """Yield the table for a form, as HTML."""
        yield runtimes_html(form)

    # show the table again after each choice; after several quick choices, for the last of them
    changes = [field.change for field in fields.values()]
    table_page.answer_on(changes, answers, answer_last_event=True)

    # show the table when the page is opened; without choices it has all families and runtimes
    table_page.fill_on_load(page, answers, is_complete=lambda form: True)


CHOICES = {
    "to": get_args(Format),
    "outtype": tuple(dict.fromkeys(("auto", *export.OUTTYPES, *FTYPES))),
}
"""Values of options that do not list them all."""


LEAST_WIDTH = 220
"""Pixels below which a part of a row gets a row of its own, as on a telephone."""
OFFERED_MEMORY_SIZES = tuple(preset.memory for preset in PRESETS.values())
"""Sizes that are offered; any other can be typed."""


def build_bake(front: Front, page: gr.Blocks) -> None:
    """Build the first page, which plans, writes and publishes an output.

    From top to bottom it has the model, the length and the runtimes, the machine, the method, and
    the places to write and publish to. `_connect_bake` says what its buttons do.

    Args:
        front: Runs the tasks of pages in processes.
        page: The page in Gradio.
    """
    examples = f'<p class="examples">For example: {_example_links()}</p>'
    add_heading("ropeconv", PURPOSE, more=examples)

    # the model, and what the output is for
    buttons: dict[str, gr.Button] = {}
    with gr.Row():
        source = gr.Textbox(
            label="Model", info=MODEL_INFO, max_lines=1, elem_id="source", scale=5, min_width=260
        )
        buttons["search"] = gr.Button("Search the Hub", elem_id="search", scale=1, min_width=130)
    matches = gr.HTML(elem_id="found", apply_default_css=False)
    fields = {"source": source, **add_upload(), **_add_goal()}

    # a button for each kind of machine, such as "Mac, 24 GB: mlx-lm"
    with gr.Row():
        preset_buttons = {
            name: gr.Button(preset.label, size="sm", elem_id=name, min_width=LEAST_WIDTH)
            for name, preset in PRESETS.items()
        }
    fields |= _add_method()

    # a click on such a button fills four fields, at once (not in Gradio's queue of tasks)
    filled = [fields[name] for name in ("memory", "runtimes", "to", "outtype")]
    for name, button in preset_buttons.items():
        preset_values = PRESETS[name].values
        button.click(
            preset_values, inputs=fields["source"], outputs=filled, queue=False, **NOT_IN_API
        )
    buttons["plan"] = gr.Button("Plan", variant="primary", elem_id="plan")
    answer = add_answer()

    # two rows: a field for a place, and the buttons that write or publish there
    fields["out"], write_buttons = _add_place(
        name="out",
        label="Write to",
        info="A folder or GGUF file. By default it is named after model and method",
        buttons={"write": "Write", "validate": "Validate"},
    )
    fields["repo_id"], publish_buttons = _add_place(
        name="repo_id",
        label="Publish to",
        info="owner/name on the Hub",
        buttons={"publish": "Publish"},
    )
    buttons |= write_buttons | publish_buttons
    with gr.Accordion("Options of publishing", open=False):
        fields |= add_options(PushOptions, {})
    buttons["cancel"] = gr.Button("Cancel", size="sm", elem_id="cancel")

    bake_page = Page(front=front, kind=BakeForm, fields=fields, answer=answer)
    _connect_bake(bake_page, buttons, matches)

    # an address with a model opens with its plan
    bake_page.fill_on_load(
        page, bake_page.answers_of_task("plan"), is_complete=lambda form: bool(form.source)
    )


def _connect_bake(page: Page, buttons: Mapping[str, gr.Button], matches: gr.HTML) -> None:
    """Let each button of the first page run the task of its name, or cancel it.

    Args:
        page: The page, with the components of its form.
        buttons: The buttons by name: "search", "plan", "write", "validate", "publish", "cancel".
        matches: The place of the models that a search has found.
    """
    page.answer_on([buttons["search"].click], page.answers_of_task("search"), place=matches)

    # Enter in a field plans too
    entered = [page.fields[name].submit for name in ("source", "context", "value")]
    page.run_task_on([buttons["plan"].click, *entered], "plan")
    for name in ("write", "validate", "publish"):
        page.run_task_on([buttons[name].click], name, baking=True)

    def stop(request: gr.Request) -> None:
        page.front.stop(request.session_hash or "")

    # outside of the queue, in which the bake may still wait
    buttons["cancel"].click(stop, inputs=None, outputs=None, queue=False, **NOT_IN_API)


def _example_links() -> str:
    """Links that fill the form with the examples, as HTML."""
    links = []
    for name, length in EXAMPLES:
        address = to_page("", BakeForm(source=name, context=length))
        links.append(f'<a href="{escape(address)}">{name} to {length}</a>')
    return " ".join(links)


def _add_goal() -> dict[str, Any]:
    """Add the length to reach and the runtimes that must run it, and return them by name."""
    with gr.Row():
        context = gr.Textbox(
            "128k",
            label="Target length",
            info="Tokens, or a factor such as 4",
            max_lines=1,
            elem_id="context",
            min_width=LEAST_WIDTH,
        )
        runtimes = gr.Dropdown(
            [*runtime_names(), *reader_names()],
            value=[],
            multiselect=True,
            label="Runtime",
            info="Optional: where it must run correctly",
            elem_id="runtimes",
            min_width=LEAST_WIDTH,
        )
        memory = gr.Dropdown(
            ["", *OFFERED_MEMORY_SIZES],
            value="",
            allow_custom_value=True,
            label="Memory",
            info="Such as 24GB; by default that of this machine",
            elem_id="memory",
            min_width=LEAST_WIDTH,
        )
    return {"context": context, "runtimes": runtimes, "memory": memory}


def _add_method() -> dict[str, Any]:
    """Add the method with its settings, and the options of the output, and return them by name."""
    fields: dict[str, Any] = {}
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
        fields |= add_options(MachineOptions, {}, without=("memory",))
        fields |= add_options(TargetOptions, CHOICES, without=("runtimes",))
    return fields


def _add_place(
    name: str, label: str, info: str, buttons: Mapping[str, str]
) -> tuple[gr.Textbox, dict[str, gr.Button]]:
    """Add a row with a field for the place of an output, and the buttons that do something there.

    The field is returned, and the buttons by their names.

    Args:
        name: The name of the field, by which the page and its tests find it.
        label: The title of the field.
        info: A sentence below the title.
        buttons: The texts on the buttons, by the names by which the page and its tests find them.
    """
    with gr.Row():
        place = gr.Textbox(
            label=label, info=info, max_lines=1, elem_id=name, scale=5, min_width=260
        )
        added_buttons = {
            button_name: gr.Button(text, elem_id=button_name, scale=1, min_width=130)
            for button_name, text in buttons.items()
        }
    return place, added_buttons


PAGES = {
    "Inspect": build_inspect,
    "Compare": build_compare,
    "Runtimes": build_runtimes,
    "Results": build_results,
}
CHECK_AND_KEEP_SECONDS = (600, 7200)
"""Seconds between two looks at dropped files, and those after which a file is removed."""
SMALL_TYPE_COLOUR = "#59636e"
"""The colour of small type, with a contrast of at least 4.5 to what is behind it."""
SMALL_TYPE_COLOUR_DARK = "#a3abb3"
"""The same in dark pages."""
HEAD_HTML = '<link rel="icon" href="favicon.ico"><style>%s</style><script>%s</script>'


def application(front: Front) -> gr.Blocks:
    """Return the pages as an application of Gradio.

    Args:
        front: Runs the requests of the pages.
    """

    def stop_jobs_of_page(request: gr.Request) -> None:
        front.stop(request.session_hash or "")

    with gr.Blocks(
        title="ropeconv", analytics_enabled=False, delete_cache=CHECK_AND_KEEP_SECONDS
    ) as demo:
        _build_page(front, demo, build_bake)
        demo.unload(stop_jobs_of_page)  # when the user closes it or goes elsewhere
    for name, build in PAGES.items():
        with demo.route(name) as page:
            _build_page(front, page, build)
    demo.queue(api_open=False)
    # Seconds between two looks at the queue, for which Gradio has no public setting. With its
    # default of 0.001 an idle page takes 7 % of a core.
    demo._queue.sleep_when_free = 0.02
    return demo  # type: ignore[no-any-return]


def looks() -> dict[str, Any]:
    """Return how the pages look, as arguments of `launch`. Nothing is loaded from elsewhere."""
    fonts = ["system-ui", "sans-serif"]
    mono = ["ui-monospace", "monospace"]
    theme = gr.themes.Default(primary_hue="blue", font=fonts, font_mono=mono)
    theme.set(
        body_text_color_subdued=SMALL_TYPE_COLOUR,
        body_text_color_subdued_dark=SMALL_TYPE_COLOUR_DARK,
        block_info_text_color=SMALL_TYPE_COLOUR,
        block_info_text_color_dark=SMALL_TYPE_COLOUR_DARK,
        button_primary_background_fill="*primary_600",
    )
    return {
        "theme": theme,
        # not as `css`, which Gradio puts below selectors of its own
        "head": HEAD_HTML % (render("ui/style.css"), render("ui/page.js")),
        "footer_links": [],
        "run_history": False,
    }


def _build_page(front: Front, page: gr.Blocks, build: Callable[[Front, gr.Blocks], None]) -> None:
    """Build a page with the links to the others above, and the version below."""
    Navbar(main_page_name="Extend")
    build(front, page)
    gr.HTML(f'<p class="quiet">ropeconv {__version__}</p>', apply_default_css=False)
