"""The page's files: a fixed table of names, made at the start. No path is ever built from what a client sends."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from firth.serving.responses import HttpResponse

PAGE = Path(__file__).parent / "page"
CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
    ".png": "image/png",
    ".woff2": "font/woff2",
}


class StaticFiles:
    """`/` is index.html; every file of the page is under `/page/`. They contain no secrets and need no token."""

    def __init__(self) -> None:
        self.paths: dict[str, Path] = {}
        for path in sorted(PAGE.rglob("*")):
            if path.suffix in CONTENT_TYPES:
                self.paths[f"/page/{path.relative_to(PAGE).as_posix()}"] = path
        index = PAGE / "index.html"
        if index.exists():
            self.paths["/"] = index

    def __contains__(self, name: str) -> bool:
        return name in self.paths

    def response(self, name: str, headers: Mapping[str, str]) -> HttpResponse:
        """A file, or 304 if the client's copy is current."""
        path = self.paths[name]
        content = path.read_bytes()
        content_type = CONTENT_TYPES[path.suffix]
        etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        # The client keeps a copy and revalidates it each time.
        caching = {"etag": etag, "cache-control": "no-cache"}
        if headers.get("if-none-match") == etag:
            return HttpResponse(b"", 304, content_type, caching)
        return HttpResponse(content, 200, content_type, caching)
