"""The page of ``tonnage view``, from a program or inside a notebook."""

from __future__ import annotations

import html
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from . import _tonnage


class Page:
    """A page on this machine's own address. Closed by ``close()``, at the end of a ``with``, or when it is forgotten."""

    def __init__(self, made: _tonnage.Page) -> None:
        self._made = made

    @property
    def url(self) -> str:
        """The address, with the token that no one can guess."""
        return self._made.url

    @property
    def port(self) -> int:
        """Its port."""
        return self._made.port

    def open(self) -> bool:
        """Opens it in a browser of this machine; says whether there is one."""
        import webbrowser

        return webbrowser.open(self.url)

    def close(self) -> None:
        """Ends it."""
        self._made.close()

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<tonnage page at {self.url}>"

    def _repr_html_(self) -> str:
        url = html.escape(self.url)
        hint = (
            f"The page is at <a href='{url}' target='_blank'>{url}</a>, on the machine that runs this notebook. "
            f"If the frame stays empty because that is another machine: "
            f"<code>ssh -L {self.port}:127.0.0.1:{self.port} THAT-MACHINE</code>, then run the cell again."
        )
        frame = f"<iframe src='{url}' width='100%' height='720' style='border:0'></iframe>"
        return f"{frame}<p style='font-size:small;opacity:.7'>{hint}</p>"
