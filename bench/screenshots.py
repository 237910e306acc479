"""Pictures of the page for the documentation: `python -m bench.screenshots URL` while `firth serve` runs there.

Each panel is shown in English and light; then some in Chinese and dark, and one as on a phone. A panel that no served
model can do is left out. `NAME=MODEL` behind the URL chooses the model of a picture.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from PIL import Image

from bench.browser import Page, browser

OUT = Path(__file__).parents[1] / "docs" / "images"
MOST_BYTES = 150_000
PHONE = {"width": 390, "height": 844}
DARK = {"dark": True, "language": "zh"}
PANELS = (
    "fill",
    "classify",
    "attention",
    "tag",
    "meaning",
    "compare",
    "answer",
    "rewrite",
    "search",
    "neighbours",
    "runs",
)
IN_CHINESE = ("fill", "classify", "attention", "tag", "meaning", "compare")
LOOKS: dict[str, dict[str, Any]] = {
    **{panel: {} for panel in PANELS},
    **{f"{panel}-zh": DARK for panel in IN_CHINESE},
    "fill-phone": PHONE,
}
POINTS = {
    "attention": "#lines .token.from[data-from='10']",
    "attention-zh": "#lines .token.from[data-from='11']",
    "meaning": "#places [data-place='3']",
    "meaning-zh": "#places [data-place='3']",
}
"""What the mouse points at."""
HEADS = {"attention": (7, 6), "attention-zh": (8, 5)}
"""Layer and head to show: of the default models, those that look from a pronoun to its noun."""


def shoot(page: Page, url: str, name: str, model: str | None) -> bool:
    panel = name.split("-")[0]
    page.go(f"{url}/#{panel}")
    page.wait("document.querySelector('#body, .cannot') !== null")
    if page.evaluate("document.querySelector('.cannot') !== null"):
        return False
    if model:
        choose = f"m.value = {json.dumps(model)}; m.dispatchEvent(new Event('change'))"
        page.evaluate(f"(() => {{ const m = document.querySelector('#model'); if (m) {{ {choose}; m.blur(); }} }})()")
    time.sleep(1.5)
    page.wait("!document.querySelector('[aria-busy]')")
    if name in HEADS:
        layer, head = HEADS[name]
        page.point(f".head-row:nth-child({layer}) button:nth-child({head})", click=True)
    page.evaluate("document.activeElement.blur(); window.scrollTo(0, 0)")
    _fit(page, LOOKS[name])
    if name in POINTS:
        page.point(POINTS[name])
    time.sleep(0.3)
    page.shoot(OUT / f"page-{name}.png")
    _shrink(OUT / f"page-{name}.png")
    return True


def _shrink(path: Path) -> None:
    """256 colours are enough for such a page."""
    with Image.open(path) as image:
        small = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


def _fit(page: Page, look: dict[str, Any]) -> None:
    """A screen as high as the page, within reason."""
    bottom = "Math.ceil(document.querySelector('footer').getBoundingClientRect().bottom + 50)"
    most = 1000 if look is PHONE else 1800
    page.look(**{**look, "height": min(most, int(page.evaluate(bottom)))})
    time.sleep(0.4)


def main() -> None:
    url, *choices = sys.argv[1:]
    models = dict(choice.split("=", 1) for choice in choices)
    OUT.mkdir(parents=True, exist_ok=True)
    with browser() as program:
        for name, look in LOOKS.items():
            with program.page(**look) as page:
                made = shoot(page, url.rstrip("/"), name, models.get(name))
            size = (OUT / f"page-{name}.png").stat().st_size if made else 0
            print(f"page-{name}.png", f"{size:,} bytes" if made else "left out: no served model can do it")
            assert size < MOST_BYTES, f"page-{name}.png has {size} bytes, more than {MOST_BYTES}"


if __name__ == "__main__":
    main()
