"""The pages of a report in a real browser: quick, silent, safe, searchable, and usable by keyboard, light or dark."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import yaml
from cases import RECIPES, ROOT

import aotair
from aotair.report.frame import document
from aotair_runtime.artifact.debug_data import read_debug_data
from aotair_runtime.artifact.open import open_artifact
from aotair_runtime.format.debug_data import DebugData, Made

MOST_BYTES, MOST_SECONDS = 5_000_000, 2.0
SHOTS = ROOT / "build" / "browser"
TAB, ENTER, RIGHT, CONTROL, BACKSPACE = "\ue004", "\ue007", "\ue014", "\ue009", "\ue003"  # as WebDriver has them
WICKED = "</script></pre><script>window.taken = 1</script><img src=x onerror=window.taken=1>\x1b]0;&\"'"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from selenium import webdriver

    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    assert chromium and driver, "chromium and chromedriver are not installed"
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.add_argument("--window-size=1300,1000")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with webdriver.Chrome(options=options, service=webdriver.ChromeService(driver)) as found:
        yield found


def deep() -> dict[str, Any]:
    """A language model of 24 layers, with 12 buckets of its prefill."""
    made: dict[str, Any] = yaml.safe_load((ROOT / "recipes" / "llama.yaml").read_text())
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    made["model"]["kwargs"] = {"layers": 24, "slots": 8, "length": 128, **sizes}
    made["entry_points"]["prefill"]["buckets"] = {"batch": [1, 2, 4, 8], "seq": [16, 32, 64]}
    return made | {"name": "deep", "verify": {"seed": 0, "level": "sampled"}}


@pytest.fixture(scope="module", params=["small", "deep"])
def artifact(browser: Any, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = deep() if request.param == "deep" else RECIPES["encoder"]
    return aotair.build(recipe, tmp_path_factory.mktemp(request.param) / f"{request.param}.aotair")


def pages_of(artifact: Path) -> list[Path]:
    return sorted(artifact.rglob("*.html"))


def scheme(browser: Any, name: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": name}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def opened(browser: Any, page: Path) -> float:
    """Open a page; the seconds until it is there, its scripts run."""
    for log in ("browser", "performance"):
        browser.get_log(log)
    browser.get(page.as_uri())
    return browser.execute_script("return performance.getEntriesByType('navigation')[0].loadEventEnd") / 1000


def requested(browser: Any) -> list[str]:
    """What the browser has asked for since the page was opened, and its policy has not refused."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    refused = {e["params"]["requestId"] for e in events if e["params"].get("blockedReason") == "csp"}
    sent = [e["params"] for e in events if e["method"] == "Network.requestWillBeSent"]
    return [one["request"]["url"] for one in sent if one["requestId"] not in refused]


def send(browser: Any, *keys: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(browser).send_keys(*keys).perform()


def found(browser: Any, selector: str) -> list[Any]:
    return browser.find_elements("css selector", selector)


def test_pages_open_quickly_and_ask_for_nothing(browser: Any, artifact: Path):
    SHOTS.mkdir(parents=True, exist_ok=True)
    rows = []
    for page in pages_of(artifact):
        for colours in ("light", "dark"):
            scheme(browser, colours)
            seconds, nbytes = opened(browser, page), page.stat().st_size
            assert browser.get_log("browser") == []
            assert [unquote(url) for url in requested(browser)] == [unquote(page.as_uri())]
            assert nbytes < MOST_BYTES and seconds < MOST_SECONDS
            height = min(3000, browser.execute_script("return document.documentElement.scrollHeight"))
            browser.set_window_size(1300, max(1000, height))
            browser.save_screenshot(str(SHOTS / f"{artifact.stem}-{page.stem}-{colours}.png"))
            browser.set_window_size(1300, 1000)
            rows.append(f"{page.relative_to(artifact)!s:24} {colours:6} {nbytes:>10,} bytes {seconds:7.3f} s")
    print(artifact.stem, *rows, sep="\n")


def test_pages_are_light_or_dark(browser: Any, artifact: Path):
    colours = {}
    for name in ("light", "dark"):
        scheme(browser, name)
        opened(browser, artifact / "report.html")
        body = found(browser, "body")[0]
        colours[name] = (body.value_of_css_property("background-color"), body.value_of_css_property("color"))
    assert len({*colours["light"], *colours["dark"]}) == 4
    assert colours["light"][0] == "rgba(255, 255, 255, 1)"


def test_every_page_is_reached_from_the_front(browser: Any, artifact: Path):
    opened(browser, artifact / "report.html")
    for page in pages_of(artifact):
        words = {"report": "Overview", "all-passes": "Passes"}.get(page.stem, page.stem)
        browser.find_element("css selector", "nav").find_element("link text", words).click()
        assert unquote(browser.current_url).partition("#")[0] == unquote(page.as_uri())


def test_a_search_shows_what_holds_the_words(browser: Any, artifact: Path):
    opened(browser, artifact / "report" / "all-passes.html")
    parts = found(browser, ".part")
    found(browser, "#search")[0].send_keys("reinplace_inplaceable_ops gelu" if artifact.stem == "small" else "mlp silu")
    left = [part for part in parts if part.get_attribute("hidden") is None]
    assert 0 < len(left) < len(parts)
    assert all("gelu" in part.text or "silu" in part.text for part in left)
    assert found(browser, "#found")[0].text == f"{len(left)} of {len(parts)}"
    found(browser, "#search")[0].send_keys(CONTROL + "a", BACKSPACE)
    assert not found(browser, ".part[hidden]")


def test_keys_open_what_is_folded(browser: Any, artifact: Path):
    opened(browser, artifact / "report" / "all-passes.html")
    send(browser, TAB)
    assert browser.switch_to.active_element.text == "Skip to the content"
    (summary, *_) = found(browser, "summary")
    browser.execute_script("arguments[0].focus()", summary)
    before = summary.find_element("xpath", "..").get_attribute("open")
    send(browser, ENTER)
    assert before is None and summary.find_element("xpath", "..").get_attribute("open") is not None


def graph_page(browser: Any, artifact: Path) -> None:
    opened(browser, artifact / "report" / ("forward.html" if artifact.stem == "small" else "prefill.html"))


def test_keys_open_move_and_zoom_the_graph(browser: Any, artifact: Path):
    graph_page(browser, artifact)
    if artifact.stem == "deep":
        (layers,) = found(browser, "g.module[aria-label^='1 to 23, 23 alike']")
        browser.execute_script("arguments[0].focus()", layers)
        send(browser, ENTER)
        assert len(found(browser, "g.module[aria-label]:not(.open)")) >= 23
        focused = browser.switch_to.active_element
        assert focused.get_attribute("aria-expanded") == "true", "it keeps the focus, open"
    browser.execute_script("document.querySelector('.graph svg').focus()")
    places = [found(browser, ".graph svg > g")[0].get_attribute("transform")]
    for key in ("+", RIGHT, "0"):
        send(browser, key)
        places.append(found(browser, ".graph svg > g")[0].get_attribute("transform"))
    assert len(set(places[:3])) == 3


def test_a_box_that_gets_the_focus_comes_into_view(browser: Any, artifact: Path):
    graph_page(browser, artifact)
    found(browser, "[data-way=open]")[0].click()
    svg = found(browser, ".graph svg")[0]
    seen = set()
    for _ in range(40):
        send(browser, TAB)
        box = browser.switch_to.active_element
        if box.tag_name == "g":
            seen.add(box.get_attribute("aria-label"))
            place, area = (browser.execute_script("return arguments[0].getBoundingClientRect()", e) for e in (box, svg))
            assert area["left"] <= place["left"] < area["right"] and area["top"] <= place["top"] < area["bottom"]
    assert len(seen) > 10


def test_a_call_says_what_it_is(browser: Any, artifact: Path):
    graph_page(browser, artifact)
    found(browser, "[data-way=all]")[0].click()
    call = next(box for box in found(browser, "g.call") if "gather" in box.text or "index_select" in box.text)
    call.click()
    said = found(browser, ".graph dl")[0].text
    assert "arguments" in said and "line of the model" in said and ".py:" in said


def test_all_modules_open_at_once(browser: Any, artifact: Path):
    graph_page(browser, artifact)
    for way in ("close", "open"):
        found(browser, f"[data-way={way}]")[0].click()
    SHOTS.mkdir(parents=True, exist_ok=True)
    browser.execute_script("document.querySelector('.graph').scrollIntoView()")
    browser.save_screenshot(str(SHOTS / f"{artifact.stem}-open.png"))
    assert not found(browser, "g.module:not(.open)") and browser.get_log("browser") == []
    if artifact.stem == "deep":
        assert len(found(browser, "g.call")) > 900


def test_names_of_a_hostile_model_are_shown_and_not_obeyed(browser: Any, artifact: Path, tmp_path: Path):
    from aotair.program import Built
    from aotair.report.explain import Explained
    from aotair.report.page import pages

    whole = open_artifact(artifact)
    made = read_debug_data(whole).made
    debug = DebugData(tuple(Made(WICKED, WICKED, WICKED) for _ in made))
    program = replace(whole.program, name=WICKED)
    (tmp_path / "report").mkdir()
    for name, text in pages(program, Built(program, {}, {}, debug), Explained((), ())).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        opened(browser, tmp_path / name)
        assert browser.execute_script("return window.taken") is None
        assert "window.taken = 1" in found(browser, "h1")[0].text and browser.get_log("browser") == []
        assert len(requested(browser)) == 1


def test_the_policy_lets_nothing_else_run_or_be_fetched(browser: Any, tmp_path: Path):
    body = "<script>window.taken = 1</script><img src='https://example.org/x.png' onerror='window.taken = 1'>"
    page = tmp_path / "page.html"
    page.write_text(document("x", body, "page.html", {}, scripts=["window.mine = 1;"]), encoding="utf-8")
    opened(browser, page)
    assert browser.execute_script("return [window.mine, window.taken]") == [1, None]
    assert requested(browser) == [page.as_uri()]
    assert len(browser.get_log("browser")) >= 2, "the browser says what it refused"
