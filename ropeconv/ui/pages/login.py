"""The button of a Space with which visitors sign in and out."""

from __future__ import annotations

import json

import gradio as gr

SIGN_IN = "Sign in with Hugging Face"
LONGEST = 1500
"""Characters of an address that comes back: it is kept in a cookie meanwhile."""
AWAY = """(words) => {
  const typed = window.location.search.length < %d ? window.location.search : "";
  const way = words === %s ? "/login/huggingface" : "/logout";
  window.parent?.postMessage({ type: "SET_SCROLLING", enabled: true }, "*");
  setTimeout(() => {
    window.location.assign(`${way}?_target_url=${encodeURIComponent(window.location.pathname + typed)}`);
  }, 500);
}"""
"""As the script of Gradio's own button, but with all of the address, of which that keeps the first field alone."""


def login(page: gr.Blocks) -> None:
    """Signs in and out, and leads back to the page with all that was typed. page: that it is on."""
    gr.LoginButton(visible=False)  # without one, Gradio does not serve the addresses of a login
    button = gr.Button(SIGN_IN, elem_id="login")
    button.click(None, [button], None, js=AWAY % (LONGEST, json.dumps(SIGN_IN)), queue=False, api_visibility="private")

    def named(profile: gr.OAuthProfile | None) -> str:
        return f"Sign out ({profile.username})" if profile else SIGN_IN

    page.load(named, None, button, queue=False, api_visibility="private", show_progress="hidden")
