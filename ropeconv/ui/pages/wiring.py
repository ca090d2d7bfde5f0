"""What every page does: it asks when a button is pressed, and keeps what was typed in its address."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import gradio as gr

from ..forms import Form, filled, from_address, kept
from ..front import Front

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
Answers = Callable[[Form, gr.Request, str], Iterator[str]]


@dataclass(frozen=True)
class Page:
    """The components of a page. kind: of the form. fields: components by name. answer: where answers stand."""

    front: Front
    kind: type[Form]
    fields: Mapping[str, Any]
    answer: gr.HTML

    def ask(self, task: str, triggers: list[Any], baking: bool = False) -> None:
        """Runs a task when one of `triggers` comes. baking: whether it may take as long as a bake."""

        def begin(request: gr.Request) -> None:
            self.front.begin(request.session_hash or "")

        def answers(form: Form, request: gr.Request, token: str) -> Iterator[str]:
            yield from self.front.answers(task, form, request.session_hash or "", token, baking)

        if baking:  # at once, while the bake itself may have to wait
            gr.on(triggers, begin, None, None, queue=False, api_visibility="private", show_progress="hidden")
        self.on(triggers, answers)

    def on(self, triggers: list[Any], answers: Answers, last: bool = False) -> None:
        """Shows answers when one of `triggers` comes, and keeps what was typed in the address.

        last: answer also the last trigger that comes while another one is answered, instead of none of them.
        """

        def asked(given: dict[Any, Any], request: gr.Request, token: str) -> Iterator[str]:
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

        def opened(request: gr.Request, token: str) -> Iterator[Any]:
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

            def load(request: gr.Request, token: gr.OAuthToken | None) -> Iterator[Any]:
                yield from opened(request, token.token if token else "")
        else:

            def load(request: gr.Request) -> Iterator[Any]:  # type: ignore[misc]
                yield from opened(request, "")

        page.load(
            load, None, outputs, api_visibility="private", show_progress="hidden",
            concurrency_limit=self.front.rules.at_once, concurrency_id="requests",
        )  # fmt: skip

    def task(self, name: str) -> Answers:
        """The answers of a task. name: of it."""
        return lambda form, request, token: self.front.answers(name, form, request.session_hash or "", token)

    def _with_login(self, asked: Callable[[dict[Any, Any], gr.Request, str], Iterator[str]]) -> Any:
        """A function of Gradio: with the login of the visitor in a Space, without it on one's own machine."""
        if not self.front.rules.public:

            def local(given: dict[Any, Any], request: gr.Request) -> Iterator[str]:
                yield from asked(given, request, "")

            return local

        def public(given: dict[Any, Any], request: gr.Request, token: gr.OAuthToken | None) -> Iterator[str]:
            yield from asked(given, request, token.token if token else "")

        return public


def _known(component: Any, value: Any) -> Any:
    """The value of a component from an address; what a list of choices does not have is left out."""
    choices = getattr(component, "choices", None)
    if choices is None or getattr(component, "allow_custom_value", False):
        return value
    known = {one[1] if isinstance(one, tuple) else one for one in choices}
    return [one for one in value if one in known] if isinstance(value, list) else value if value in known else ""
