"""The page in a real browser, on real models: panels show what the server answers, what users write stays text."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import firth
from firth import checkpoint, samples
from firth.encoders.bert import Bert
from firth.lock import Lock
from firth.objectives.masked_lm import MaskedLM
from firth.run_folder import LOCK
from firth.tokenizers.bpe import BPE
from firth.tokenizers.wordpiece import WordPiece

pytest.importorskip("websockets", reason="websockets is not installed (pip install '.[dev]')")
from bench.browser import Browser, Page, browser, chromium

pytestmark = pytest.mark.skipif(
    chromium() is None, reason="chromium is not installed (Debian: apt-get install chromium)"
)
HOSTILE = "<img src=x onerror='window.hit=1'><script>window.hit=1</script>\"'&lt;b&gt;"
PANELS = (
    "fill",
    "classify",
    "attention",
    "tag",
    "runs",
    "meaning",
    "compare",
    "answer",
    "rewrite",
    "neighbours",
    "search",
)
TOKEN = "a-token-of-the-tests"


@pytest.fixture(scope="module")
def segmenter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An HMM that cuts Chinese into words, trained on a few lines."""
    folder = tmp_path_factory.mktemp("segmenter")
    lines = ["我们 在 北京 学习 。", "他们 在 上海 工作 。", "我们 学习 语言 。", "他们 研究 语言 。"] * 5
    (folder / "words.txt").write_text("\n".join(lines))
    firth.finetune(
        task="tag", train=folder / "words.txt", out=folder / "model", encoder="bag", tagger="hmm", format="words"
    )
    return folder / "model"


@pytest.fixture(scope="module")
def other_mask(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose mask is spelled <mask>."""
    tokenizer = BPE.train(
        samples.prose("en").read_text("utf-8").splitlines(), BPE.Config(vocab_size=400, specials="roberta")
    )
    sizes: dict[str, Any] = {"width": 16, "num_layers": 1, "num_heads": 2, "ffn_width": 32, "max_positions": 64}
    encoder = Bert(Bert.Config(vocab_size=400, **sizes))
    goals = {"masked_lm": checkpoint.make_objective("masked_lm", MaskedLM.Config(), encoder, tokenizer)}
    folder = tmp_path_factory.mktemp("other") / "model"
    checkpoint.save(folder, checkpoint.Checkpoint(encoder, goals, tokenizer))
    return folder


@pytest.fixture(scope="module")
def watched(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page-runs")
    (folder / "finished").symlink_to(run)
    return folder


@pytest.fixture(scope="module")
def site(
    folders: dict[str, Path],
    segmenter: Path,
    other_mask: Path,
    watched: Path,
    search_index: Path,
    serve_for_module: Callable[..., Any],
) -> Iterator[Any]:
    arguments = [f"{name}={folders[name]}" for name in ("plain", "classify", "tag", "answer", "rewrite")]
    arguments += [f"words={segmenter}", f"other={other_mask}"]
    with serve_for_module(*arguments, "--runs", watched, "--index", search_index) as server:
        yield server


@pytest.fixture(scope="module")
def program() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture
def page(program: Browser) -> Iterator[Page]:
    with program.page() as found:
        yield found


def opened(page: Page, site: Any, panel: str, *, model: str | None = None) -> Page:
    page.go(f"{site.url}/#{panel}")
    page.wait("document.querySelector('#body') !== null")
    if model is not None:
        page.evaluate(
            f"(() => {{ const all = document.querySelector('#model'); all.value = '{model}';"
            "all.dispatchEvent(new Event('change')); })()"
        )
    return page


def texts(page: Page, selector: str) -> list[str]:
    found: list[str] = page.evaluate(f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.textContent)")
    return found


def shown(page: Page, selector: str, expected: list[str]) -> None:
    """Waits until the elements' texts are the expected ones."""
    found = f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.textContent)"
    page.wait(f"JSON.stringify({found}) === JSON.stringify({json.dumps(expected)})")


def test_fill_shows_the_likeliest_tokens_and_writes_the_pressed_one(page: Page, site: Any) -> None:
    opened(page, site, "fill")
    text = "The [MASK] is 😀 [MASK]."
    page.write("#fill-text", text)
    masks = site.post("/fill", {"text": text, "top": 8}).json()["masks"]
    shown(page, "#gaps .bar-name", [row["token"] for mask in masks for row in mask["candidates"]])
    assert texts(page, "#gaps h2") == ["Gap 1", "Gap 2"]
    widths = page.evaluate("[...document.querySelectorAll('#gaps ol:first-of-type .bar-fill')].map(e => e.offsetWidth)")
    assert widths[:8] == sorted(widths[:8], reverse=True)
    assert widths[0] > 0
    page.point("#gaps section:nth-child(2) li:nth-child(3) button", click=True)
    filled = masks[1]["candidates"][2]["text"]
    page.wait(f"document.querySelector('#fill-text').value === {json.dumps(filled)}")
    page.wait("document.querySelectorAll('#gaps section').length === 1")
    page.point(".buttons button:nth-child(2)", click=True)
    assert page.evaluate("document.querySelector('#fill-text').value") == text
    page.wait("document.querySelectorAll('#gaps section').length === 2")
    for left in (1, 0):  # by keyboard alone, the focus stays where the next choice is
        page.evaluate("document.querySelector('#gaps .bar').focus()")
        page.press("Enter")
        page.wait(f"document.querySelectorAll('#gaps section').length === {left}")
        wanted = "#gaps .bar" if left else "#fill-text"
        assert page.evaluate(f"document.activeElement === document.querySelector('{wanted}')")
    page.write("#fill-text", "no gap")
    page.wait("document.querySelector('#gaps').textContent.includes('Put [MASK]')")
    page.point(".buttons button:nth-child(1)", click=True)
    assert page.evaluate("document.querySelector('#fill-text').value") == "no gap[MASK]"
    assert page.mistakes == []
    assert {url for url in page.requests if not url.startswith((site.url, "about:", "data:"))} == set()


def test_fill_speaks_of_the_models_own_mask(page: Page, site: Any) -> None:
    opened(page, site, "fill", model="other")
    page.wait("document.querySelectorAll('#gaps section').length === 2")  # of the example
    assert "[MASK]" not in page.text("#panel") + page.evaluate("document.querySelector('#fill-text').value")
    page.write("#fill-text", "")
    page.point(".buttons button", click=True)
    assert page.evaluate("document.querySelector('#fill-text').value") == "<mask>"
    page.wait("document.querySelectorAll('#gaps section').length === 1")
    assert page.mistakes == []


@pytest.fixture(scope="module")
def one_language_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An English and a Chinese model."""
    made = {}
    sizes: dict[str, Any] = {"width": 16, "num_layers": 1, "num_heads": 2, "ffn_width": 32, "max_positions": 128}
    for language in samples.LANGUAGES:
        lines = samples.prose(language).read_text("utf-8").splitlines()
        tokenizer = WordPiece.train(lines, WordPiece.Config(vocab_size=2000), fewer=True)
        encoder = Bert(Bert.Config(vocab_size=len(tokenizer.vocab), **sizes))
        goals = {"masked_lm": checkpoint.make_objective("masked_lm", MaskedLM.Config(), encoder, tokenizer)}
        made[language] = tmp_path_factory.mktemp("language") / language
        checkpoint.save(made[language], checkpoint.Checkpoint(encoder, goals, tokenizer, info={"language": language}))
    return made


def test_examples_are_in_a_language_that_the_model_reads(
    page: Page, one_language_models: dict[str, Path], start: Callable[..., Any]
) -> None:
    english, chinese = "Paris is the", "他在[MASK]京大学"
    example = "document.querySelector('#fill-text').value"
    with start(*(f"{name}-small={folder}" for name, folder in one_language_models.items())) as site:
        told = httpx.get(f"{site.url}/info").json()["models"]
        assert {name: row["languages"] for name, row in told.items()} == {"en-small": ["en"], "zh-small": ["zh"]}
        opened(page, site, "fill")
        assert page.evaluate(example).startswith(english)
        assert page.evaluate("document.querySelector('#model').value") == "en-small"
        # A model of the other language gets an example in its own, on a page that stays English.
        opened(page, site, "fill", model="zh-small")
        assert page.evaluate(example).startswith(chinese)
        assert "Hide a word" in page.text("#panel")
        opened(page, site, "compare")
        assert page.evaluate("document.querySelector('#compare-texts').value").startswith("A man is playing")
        # On the Chinese page the Chinese model comes first, unless a person has chosen.
        page.point("#language", click=True)
        assert page.evaluate("document.querySelector('#model').value") == "zh-small"
        assert page.evaluate("document.querySelector('#compare-texts').value").startswith("今天下雨，天气很冷")
        page.wait("document.querySelectorAll('#similarities td.cosine').length === 25")
        assert page.mistakes == []


def test_attention_shows_every_head_and_follows_pointer_and_keys(page: Page, site: Any) -> None:
    opened(page, site, "attention", model="plain")
    page.write("#attention-text", "The cat sat.")
    answer = site.post("/attention", {"text": "The cat sat."}).json()
    tokens, heads = answer["tokens"], answer["heads"]
    shown(page, "#lines .token.from", tokens)
    assert page.evaluate("document.querySelectorAll('#heads button svg').length") == heads * len(answer["layers"])
    cells = page.evaluate(
        "[...document.querySelectorAll('#matrix .cell')].map(e => Number(e.getAttribute('fill-opacity')))"
    )
    assert cells == [weight for row in answer["weights"][0][0] for weight in row]
    assert page.text("#head-title") == "Layer 1, head 1"
    page.evaluate("document.querySelector('#heads button[tabindex=\"0\"]').focus()")
    page.press("ArrowDown")
    page.press("ArrowRight")
    assert page.text("#head-title") == "Layer 2, head 2"
    page.point("#lines .token.from[data-from='2']")
    row = answer["weights"][1][1][2]
    best = tokens[max(range(len(row)), key=row.__getitem__)]
    page.wait(f"document.querySelector('#attention-says').textContent.startsWith('{tokens[2]} looks at {best}: ')")
    assert page.evaluate("document.querySelectorAll('#lines path.on').length") == sum(weight >= 0.02 for weight in row)
    assert page.mistakes == []


def test_classify_shows_labels_and_the_words_that_speak_for_them(page: Page, site: Any) -> None:
    opened(page, site, "classify")
    text = "What a 😀 <b>lovely</b> day"
    page.write("#classify-text", text)
    [prediction] = site.post("/predict", {"model": "classify", "inputs": [text]}).json()["predictions"]
    by_probability = sorted(prediction["probabilities"], key=lambda name: -prediction["probabilities"][name])
    shown(page, "#labels .bar-name", by_probability)
    for by in ("gradients", "occlusion"):
        page.wait("document.querySelector('#classify-by') !== null")
        page.evaluate(
            f"(() => {{ const by = document.querySelector('#classify-by'); by.value = '{by}';"
            "by.dispatchEvent(new Event('change')); })()"
        )
        found = site.post("/explain", {"model": "classify", "input": text, "by": by}).json()
        weights = [f"{'−' if word['weight'] < 0 else '+'}{abs(word['weight']):.3f}" for word in found["words"]]
        page.wait(
            "JSON.stringify([...document.querySelectorAll('#why mark')].map(e => e.dataset.weight)) === "
            + json.dumps(json.dumps(weights, ensure_ascii=False, separators=(",", ":")))
        )
        assert "".join(texts(page, "#why .tagged")) == text
        assert texts(page, "#why h2") == [f"What speaks for “{by_probability[0]}”"]
    page.evaluate("document.querySelector('#why mark').focus()")
    page.wait(f"document.querySelector('#why-says').textContent.startsWith({json.dumps(found['words'][0]['word'])})")
    assert page.mistakes == []


def test_the_page_opens_on_what_the_models_can_do(
    page: Page, folders: dict[str, Path], start: Callable[..., Any]
) -> None:
    with start(f"answers={folders['answer']}") as server:
        page.go(server.url)
        page.wait("document.querySelector('#body') !== null")
        # The model still has its masked-LM head, so it can fill.
        assert page.evaluate("document.querySelector('[aria-selected=true]').id") == "tab-fill"
    with start(f"writer={folders['rewrite']}") as server:
        page.go(server.url)
        page.wait("document.querySelector('#body') !== null")
        assert page.evaluate("document.querySelector('[aria-selected=true]').id") != "tab-fill"
        assert "cannot" not in page.evaluate("document.querySelector('#panel').innerHTML")
        page.go(f"{server.url}/#fill")  # an address that names a panel is obeyed
        page.wait("document.querySelector('.cannot') !== null")
        # Tabs of what the model cannot do come last, and say so.
        unable = page.evaluate("[...document.querySelectorAll('[role=tab]')].map((tab) => tab.matches('.unable'))")
        assert unable == sorted(unable)
        assert True in unable
        assert False in unable
        assert page.evaluate("document.querySelector('#tab-fill').title") == page.text(".cannot")
        page.go(f"{server.url}/#answer")
        page.wait("document.querySelector('.cannot code') !== null")
        assert page.text(".cannot code") == "firth finetune --task answer"


def test_text_that_the_model_cannot_read_is_said(page: Page, site: Any) -> None:
    opened(page, site, "compare", model="plain")
    page.write("#compare-texts", "ποιότητα ήταν εξαιρετική\nθα ξαναέρθουμε")
    page.wait("document.querySelector('#unread').textContent.includes('unknown to this model')")
    page.write("#compare-texts", "a day\na night")
    page.wait("document.querySelector('#unread').textContent === ''")


def test_tag_marks_entities_where_they_stand(page: Page, site: Any) -> None:
    text = "😀 Anna Smith went to Berlin with Peter."
    opened(page, site, "tag", model="tag")
    page.write("#tag-text", text)
    spans = site.post("/predict", {"model": "tag", "inputs": [text]}).json()["predictions"][0]["spans"]
    assert spans
    shown(page, "#tagged mark", [span["text"] + span["label"] for span in spans])
    page.evaluate("document.querySelector('#tagged mark').focus()")
    assert page.text("#tag-says").startswith(f"{spans[0]['text']}: {spans[0]['label']}, ")
    assert "".join(texts(page, "#tagged")) != ""
    assert page.mistakes == []


def test_tag_sets_chinese_words_apart(page: Page, site: Any) -> None:
    opened(page, site, "tag", model="words")
    page.write("#tag-text", "我们在上海学习。")
    shown(page, "#tagged mark.word", ["我们", "在", "上海", "学习", "。"])
    assert page.text("#tagged") == "我们在上海学习。"


def test_runs_draw_the_curve_above_its_floor_and_grow(page: Page, site: Any, watched: Path) -> None:
    live = watched / f"live {HOSTILE.replace('/', '')}"[:200]
    live.mkdir()
    rows = [{"step": step, "split": "train", "masked_lm": 9 - step / 10} for step in (10, 20)]
    (live / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lock = Lock(live / LOCK)
    lock.acquire()
    opened(page, site, "runs")
    page.wait("document.querySelectorAll('#run option').length === 2")
    page.wait("document.querySelector('.curve.train').getAttribute('d').split('L').length === 2")
    assert page.text("#state") == "running"
    lock.release(keep_file=False)
    with (live / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 30, "split": "train", "masked_lm": 6.5}) + "\n")
        file.write(json.dumps({"step": 30, "split": "held-out", "masked_lm": 6.75}) + "\n")
    page.wait("document.querySelector('.curve.train').getAttribute('d').split('L').length === 3")
    assert page.text("#runs-says") == "training, step 30: 6.5 · held out, step 30: 6.75"
    page.evaluate("document.querySelector('#chart').focus()")
    for key, says in (
        ("End", "step 30: 6.5"),
        ("ArrowLeft", "step 20: 7"),
        ("Home", "step 10: 8"),
        ("ArrowLeft", "step 10: 8"),
    ):
        page.press(key)
        assert page.text("#runs-says") == f"training, {says}"
    assert page.evaluate("document.querySelector('line.floor')") is None
    page.evaluate("(() => { const all = document.querySelector('#run'); all.value = 'finished';"
                  "all.dispatchEvent(new Event('change')); })()")  # fmt: skip
    page.wait("document.querySelector('line.floor') !== null")
    floor = next(
        row["floor"] for row in site.client.get(f"{site.url}/runs").json()["runs"] if row["name"] == "finished"
    )
    assert page.text(".floor-name").split()[-1] == f"{floor:.4g}"
    assert page.text("#state") == "finished"
    assert page.evaluate("window.hit") is None
    assert page.mistakes == []


def test_meaning_maps_the_places_of_a_word(page: Page, site: Any) -> None:
    lines = ["the house is old", "an old house stands here", "the river runs", "old songs by the river"]
    opened(page, site, "meaning", model="plain")
    page.write("#meaning-word", "old")
    page.write("#meaning-texts", "\n".join(lines))
    shown(page, "#places li", [lines[0], lines[1], lines[3]])
    assert texts(page, "#places mark") == ["old"] * 3
    assert page.evaluate("document.querySelectorAll('#map .place').length") == 3
    answer = site.post("/meaning", {"word": "old", "texts": lines}).json()
    best = max((1, 2), key=lambda other: answer["similarities"][0][other])
    page.evaluate("document.querySelector('#places li').focus()")
    assert page.text("#near").startswith(f"1 → {best + 1} (")
    assert page.evaluate(f"document.querySelector(\"#map [data-place='{best}']\").classList.contains('close')")
    assert len(answer["neighbours"]) >= 8
    assert texts(page, "#alone .bar-name") == [row["token"] for row in answer["neighbours"][:8]]
    assert page.mistakes == []


def test_compare_answer_and_neighbours_show_what_the_server_says(page: Page, site: Any) -> None:
    lines = ["a cat sleeps", "the cat naps", "it rains"]
    opened(page, site, "compare", model="plain")
    page.write("#compare-texts", "\n".join(lines))
    rows = site.post("/similarity", {"texts": lines}).json()["similarities"]
    shown(page, "#similarities .cosine", [f"{value:.2f}".replace("-", "−") for row in rows for value in row])

    question, passage = "Who came?", "😀 On Monday Anna came to the village."
    opened(page, site, "answer")
    page.write("#question", question)
    page.write("#passage", passage)
    sent = {"model": "answer", "inputs": [{"question": question, "context": passage}]}
    span = site.post("/predict", sent).json()["predictions"][0]["spans"][0]
    shown(page, "#answered mark", [span["text"]])
    assert page.evaluate("document.querySelector('#answered').textContent") == passage

    opened(page, site, "neighbours", model="plain")
    page.write("#neighbours-word", "old")
    near = [row["token"] for row in site.post("/neighbours", {"word": "old", "top": 15}).json()["neighbours"]]
    shown(page, "#neighbour-list .bar-name", near)
    page.point("#neighbour-list li:nth-child(2) button", click=True)
    page.wait(f"document.querySelector('#path').lastChild.textContent === {json.dumps(near[1])}")
    assert page.evaluate("document.querySelector('#neighbours-word').value") == near[1]
    assert page.evaluate("document.activeElement === document.querySelector('#neighbour-list .bar')")
    assert [one for one in page.mistakes if " 422 " not in one] == []  # the panel's example is no word of this model


def test_search_shows_the_passages_that_the_server_finds(page: Page, site: Any) -> None:
    opened(page, site, "search")
    page.write("#search-query", "warm air")
    hits = site.post("/search", {"query": "warm air", "top": 8}).json()["hits"]
    shown(page, "#search-list .hit-text", [hit["text"] for hit in hits])
    assert page.text("#search-list .hit-place").endswith(f"{hits[0]['file']}:{hits[0]['line']}")
    assert page.mistakes == []


def test_rewrite_shows_the_text_and_where_it_comes_from(page: Page, site: Any) -> None:
    opened(page, site, "rewrite")
    page.write("#rewrite-text", "The door is open.")
    body = {"model": "rewrite", "texts": ["The door is open."], "attention": True}
    answer = site.post("/rewrite", body).json()
    shown(page, "#written", [answer["texts"][0]["text"]])
    source, target = answer["attention"]["source"], answer["attention"]["target"]
    shown(page, "#lines .token.from", target)
    shown(page, "#lines .token:not(.from)", source)
    assert page.evaluate("document.querySelectorAll('#heads [role=gridcell]').length") == 4
    assert page.evaluate("document.querySelectorAll('#matrix .cell').length") == len(source) * len(target)
    weights = answer["attention"]["weights"][0][0][1]
    best = source[weights.index(max(weights))]
    page.point("#lines .token.from[data-from='1']")
    page.wait(
        f"document.querySelector('#rewrite-says').textContent.startsWith('for {target[1]} it looked at {best}: ')"
    )
    page.evaluate(
        "(() => { const all = document.querySelector('#rewrite-beams'); all.value = '1';"
        "all.dispatchEvent(new Event('change')); })()"
    )
    greedy = site.post("/rewrite", {**body, "beams": 1}).json()
    shown(page, "#written", [greedy["texts"][0]["text"]])
    assert page.mistakes == []

    # A text that is too long for a picture is rewritten all the same.
    long_text = "word " * 110
    page.write("#rewrite-text", long_text)
    long_answer = site.post("/rewrite", {"model": "rewrite", "texts": [long_text.strip()], "beams": 1}).json()
    shown(page, "#written", [long_answer["texts"][0]["text"]])
    page.wait("document.querySelector('#lines').offsetParent === null")
    assert [one for one in page.mistakes if " 413 " not in one] == []


def test_what_users_write_stays_text(page: Page, site: Any) -> None:
    fields = {
        "fill": ("#fill-text", f"[MASK] {HOSTILE}", "#gaps .bar"),
        "attention": ("#attention-text", HOSTILE, "#lines .token"),
        "tag": ("#tag-text", HOSTILE, "#tagged"),
        "meaning": ("#meaning-texts", f"bank {HOSTILE}\n{HOSTILE} bank", "#places li"),
        "compare": ("#compare-texts", f"{HOSTILE}\n{HOSTILE}", "#similarities td"),
        "answer": ("#passage", HOSTILE, "#answered"),
        "rewrite": ("#rewrite-text", HOSTILE, "#lines .token"),
        "neighbours": ("#neighbours-word", HOSTILE, "#body"),
        "search": ("#search-query", HOSTILE, "#search-list li"),
    }
    for panel, (selector, text, result) in fields.items():
        opened(page, site, panel)
        page.wait(f"document.querySelector('{result}') !== null")
        page.write(selector, text)
        time.sleep(0.45)  # the page waits until typing pauses
        page.wait("!document.querySelector('[aria-busy]')")
        assert page.evaluate("document.querySelectorAll('main img, main script, main b').length") == 0, panel
    assert page.evaluate("window.hit") is None
    assert not any(url.endswith("/x") for url in page.requests)
    opened(page, site, "compare", model="plain")
    page.write("#compare-texts", f"{HOSTILE}\nother")
    shown(page, "#similarities td.line", [HOSTILE, "other"])


def test_errors_are_said_and_mended(page: Page, site: Any) -> None:
    opened(page, site, "attention", model="plain")
    page.write("#attention-text", "word " * 200)
    page.wait(
        "document.querySelector('.status .wrong').textContent.startsWith('That is too much at once. The text has')"
    )
    page.write("#attention-text", "short")
    page.wait("document.querySelector('.status').textContent === ''")
    offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    page.send("Network.emulateNetworkConditions", **offline)
    page.write("#attention-text", "gone")
    page.wait("document.querySelector('.status .wrong').textContent === 'The server does not answer.'")


def test_language_and_keyboard(page: Page, site: Any) -> None:
    same = (
        "Promise.resolve(import('/page/texts.js')).then(({words}) => { const tree = (v) => v && typeof v === 'object' "
    )
    same += "&& !Array.isArray(v) ? Object.entries(v).map(([k, w]) => [k, tree(w)]) : typeof v; "
    same += "return JSON.stringify(tree(words('en'))) === JSON.stringify(tree(words('zh'))); })"
    page.look(language="zh", dark=True)
    opened(page, site, "fill")
    assert page.evaluate(same) is True
    assert page.text("h1") == "填空"
    assert page.evaluate("document.documentElement.lang") == "zh-Hans"
    red, *_ = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert red < 40
    page.point("#language", click=True)
    assert page.text("h1") == "Fill"
    opened(page, site, "fill")
    assert page.text("h1") == "Fill"  # remembered
    page.evaluate("document.querySelector('#tab-fill').focus()")
    for name in PANELS[1:]:
        page.press("ArrowRight")
        page.wait(f"document.activeElement.id === 'tab-{name}' && location.hash === '#{name}'")
    for key, name in (("Home", PANELS[0]), ("ArrowLeft", PANELS[-1]), ("ArrowRight", PANELS[0]), ("End", PANELS[-1])):
        page.press(key)
        page.wait(f"document.activeElement.id === 'tab-{name}'")
    page.evaluate("localStorage.clear()")
    assert [one for one in page.mistakes if " 422 " not in one] == []


def test_a_phone_needs_no_scrolling_sideways_and_nothing_jumps(page: Page, site: Any) -> None:
    page.look(width=390, height=844)
    for panel in PANELS:
        opened(page, site, panel)
        page.wait("!document.querySelector('[aria-busy]')")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, panel
    jumps = "new Promise(done => { let sum = 0; new PerformanceObserver(list => list.getEntries().forEach(e => sum += "
    jumps += "e.value)).observe({type: 'layout-shift', buffered: true}); setTimeout(() => done(sum), 300); })"
    page.look()
    opened(page, site, "fill")
    page.wait("document.querySelectorAll('#gaps .bar').length > 0")
    assert page.evaluate(jumps) < 0.1


def test_the_token_is_asked_for_and_kept_in_memory(page: Page, segmenter: Path, start: Callable[..., Any]) -> None:
    with start(f"words={segmenter}", environment={"FIRTH_TOKEN": TOKEN}) as server:
        page.go(f"{server.url}/#tag")
        page.wait("document.querySelector('#door').open")
        for given, wrong in (("not-the-token", "That was not the token."), (TOKEN, None)):
            page.write("#token", given)
            page.press("Enter")
            if wrong:
                page.wait(f"document.querySelector('#door-wrong').textContent === '{wrong}'")
        page.wait("document.querySelectorAll('#tagged mark').length > 0")
        assert TOKEN not in page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")
        for panel in ("fill", "attention", "meaning", "answer", "runs", "neighbours"):
            page.evaluate(f"location.hash = '{panel}'")
            page.wait(f"document.querySelector('#tab-{panel}').getAttribute('aria-selected') === 'true'")
            assert len(page.text(".cannot")) > 20, panel
        page.go(f"{server.url}/#tag")
        page.wait("document.querySelector('#door').open")
