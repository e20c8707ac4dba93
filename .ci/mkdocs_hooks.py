"""Site hooks: blocks tagged for CI are shell blocks, links to files outside `docs/` are their paths."""

from __future__ import annotations

import posixpath
import re
from typing import Any

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)[^)]*\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Make a page's Markdown fit for the site."""
    folder = posixpath.dirname(page.file.src_uri)

    def outside(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", folder, link[2]))
        return link[0] if target.startswith("docs/") else f"{link[1]} (`{target}`)"

    text = re.sub(r"^```sh (finds|gpu|slow)$", "```sh", markdown, flags=re.M)
    return LINK.sub(outside, text)
