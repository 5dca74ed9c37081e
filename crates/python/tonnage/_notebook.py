"""What results look like in a notebook, light and dark."""

from __future__ import annotations

import html


def preformatted(text: str) -> str:
    """Text as the terminal shows it, in the notebook's own colours."""
    style = "font-family:monospace;white-space:pre;overflow-x:auto;line-height:1.3;background:none;color:inherit"
    return f"<pre style='{style}'>{html.escape(text)}</pre>"


def document(page: str, height: int = 720) -> str:
    """A whole page in a frame of its own: its styles and the notebook's do not meet, and nothing in it runs."""
    source = html.escape(page, quote=True)
    return f'<iframe sandbox srcdoc="{source}" width="100%" height="{height}" style="border:0"></iframe>'
