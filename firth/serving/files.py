"""The page's files: a fixed table of names, made at the start; no path is ever built from what a client says."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from firth.serving.responses import Reply

PAGE = Path(__file__).parent / "page"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
    ".png": "image/png",
    ".woff2": "font/woff2",
}


class Files:
    """`/` is index.html; every file of the page stands under `/page/`. They hold no secret and need no token."""

    def __init__(self) -> None:
        paths = [path for path in sorted(PAGE.rglob("*")) if path.suffix in TYPES]
        self.paths = {f"/page/{path.relative_to(PAGE).as_posix()}": path for path in paths}
        if (PAGE / "index.html").exists():
            self.paths["/"] = PAGE / "index.html"

    def __contains__(self, name: str) -> bool:
        return name in self.paths

    def reply(self, name: str, headers: Mapping[str, str]) -> Reply:
        path = self.paths[name]
        data = path.read_bytes()
        tag = f'"{hashlib.sha256(data).hexdigest()[:16]}"'
        fresh = {"etag": tag, "cache-control": "no-cache"}
        if headers.get("if-none-match") == tag:
            return Reply(b"", 304, TYPES[path.suffix], fresh)
        return Reply(data, 200, TYPES[path.suffix], fresh)
