"""The button of a Space with which visitors sign in and out."""

from __future__ import annotations

import json

import gradio as gr

from ..forms import kept
from .wiring import ADDRESS, Page

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
