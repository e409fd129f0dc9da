"""Prefect's pages as a reader with a mouse has them: every control takes its click."""

import json
import time
import urllib.parse

import pytest

from tests.effects.browser import Page
from tests.effects.product import SMALLEST, Served, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.deep]

SIZES = ((1280, 720), (1400, 1000), (1920, 1080), (600, 800))
"""Widths and heights of windows [pixels]."""
DRAWN = (
    "document.querySelectorAll('#root *').length > 15"
    " && !document.querySelector('main .h-screen') && !document.querySelector('.animate-pulse')"
)
"""Whether Prefect has drawn the page: nothing of it is still being read."""

# What a click at the middle of each control in the window would meet. A control that Prefect itself
# covers, such as one under an open menu, is not named.
_COVERED_BY_OURS = """(() => {
  const ours = document.querySelector('a[href="/parcel/"]').closest('body > *');
  return [...document.querySelectorAll('#root button, #root a, #root input, #root textarea')]
    .filter(control => {
      const box = control.getBoundingClientRect();
      const x = box.x + box.width / 2, y = box.y + box.height / 2;
      const hit = document.elementFromPoint(x, y);
      return hit && ours.contains(hit);
    })
    .map(control => control.outerHTML.slice(0, 100));
})()"""
_BUTTONS = """[...document.querySelectorAll('#root button')]
  .filter(button => ['Submit', 'Cancel', 'Add item'].includes(button.innerText.trim()))
  .map(button => {
    const box = button.getBoundingClientRect();
    const x = box.x + box.width / 2, y = box.y + box.height / 2;
    const hit = document.elementFromPoint(x, y);
    return {
      text: button.innerText.trim(), x, y,
      seen: y > 0 && y < innerHeight, takes: !!hit && button.contains(hit),
    };
  })"""
_SCROLLS = "[...Array(Math.ceil(document.documentElement.scrollHeight / 300)).keys()]"


def form(served: Served, **parameters: object) -> str:
    """The address of the form of a study, filled in."""
    found = served.ask("/deployments/name/study/study")
    filled = urllib.parse.quote(json.dumps({**found["parameters"], **parameters}))
    return f"{served.url}/v2/deployments/deployment/{found['id']}/run?parameters={filled}"


def to_the_end(page: Page) -> None:
    page.evaluate("window.scrollTo(0, document.documentElement.scrollHeight)")
    page.wait(
        "Math.abs(scrollY + innerHeight - document.documentElement.scrollHeight) < 2"
        f" && {_BUTTONS}.some(button => button.text === 'Submit' && button.seen)"
    )


def click(page: Page, text: str) -> None:
    """Clicks in the middle of the last of the buttons with a text that are in the window."""
    found = [b for b in page.evaluate(_BUTTONS) if b["text"] == text and b["seen"]]
    page.click(found[-1]["x"], found[-1]["y"])


def test_every_button_of_the_form_takes_the_click_at_its_middle(served: Served, page: Page):
    page.resize(*SIZES[0])
    page.open(served.link("/v2/dashboard"), DRAWN)
    for width, height in SIZES:
        page.resize(width, height)
        page.open(form(served, study=SMALLEST, overrides=["num_seeds=2"]), DRAWN)
        page.wait(f"{_BUTTONS}.length >= 5")
        taken = set()
        for number in page.evaluate(_SCROLLS):
            page.evaluate(f"window.scrollTo(0, {300 * number})")
            assert page.evaluate(_COVERED_BY_OURS) == [], (width, height, number)
            seen = [button for button in page.evaluate(_BUTTONS) if button["seen"]]
            assert [button["text"] for button in seen if not button["takes"]] == [], (width, height)
            taken |= {button["text"] for button in seen}
        to_the_end(page)
        assert all(button["takes"] for button in page.evaluate(_BUTTONS) if button["seen"])
        assert taken == {"Submit", "Cancel", "Add item"}, (width, height)


def test_pages_of_prefect_lose_no_control_and_get_no_scroll_bar(served: Served, page: Page):
    page.resize(*SIZES[0])
    page.open(served.link("/v2/dashboard"), DRAWN)
    for path in ("dashboard", "runs", "deployments", "automations"):
        for width, height in SIZES:
            page.resize(width, height)
            page.open(f"{served.url}/v2/{path}", DRAWN)
            assert page.evaluate(_COVERED_BY_OURS) == [], (path, width, height)
            # The link is where a reader finds it, and whole.
            link = page.evaluate(
                "document.querySelector('a[href=\"/parcel/\"]').getBoundingClientRect().toJSON()"
            )
            assert 0 <= link["top"] < link["bottom"] < 60, (path, width, height)
            assert link["right"] <= width, (path, width, height)
            size = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
            assert size[0] <= size[1], (path, width, height)
    page.open(f"{served.url}/v2/deployments", DRAWN)  # Two rows: less than a window.
    for width, height in SIZES:
        page.resize(width, height)
        page.wait(f"innerHeight === {height} && document.documentElement.scrollHeight === {height}")


def check_the_form(served: Served, page: Page) -> None:
    """Fills a form in wrongly and rightly, and submits it by mouse."""

    def own() -> list[dict]:
        return [run for run in served.runs() if run["parameters"].get("approve")]

    page.resize(*SIZES[0])
    page.open(served.link("/v2/dashboard"), DRAWN)
    wrong = form(served, study=SMALLEST, overrides=["num_seed=2"], approve=True)
    page.open(wrong, DRAWN)
    to_the_end(page)
    click(page, "Submit")
    page.wait("document.body.innerText.includes('did you mean num_seeds?')")
    assert own() == []
    # The message lies on neither of the form's last buttons, also once it has glided to its place.
    time.sleep(1)
    assert "did you mean num_seeds?" in page.text()
    assert all(button["takes"] for button in page.evaluate(_BUTTONS) if button["seen"])
    page.open(form(served, study=SMALLEST, overrides=["num_seeds=2"], approve=True), DRAWN)
    to_the_end(page)
    began = time.monotonic()
    click(page, "Submit")
    (run,) = wait_for(own, 60, page.text)
    assert run["parameters"]["overrides"] == ["num_seeds=2"]

    def state() -> str:
        return served.ask(f"/flow_runs/{run['id']}")["state_type"]

    wait_for(lambda: state() == "RUNNING", 400, state)
    print(f"from the click to a run that has begun: {time.monotonic() - began:.0f} s")
    served.ask(f"/flow_runs/{run['id']}/set_state", {"state": {"type": "CANCELLING"}})
    wait_for(lambda: state() == "CANCELLED", 400, state)


def test_submit_by_mouse_starts_the_run_or_says_what_is_wrong(served: Served, page: Page):
    check_the_form(served, page)
    print(f"from `parcel serve` to that: {time.monotonic() - served.began:.0f} s")


def test_add_item_takes_a_line_that_is_typed(served: Served, page: Page):
    page.resize(*SIZES[0])
    page.open(served.link("/v2/dashboard"), DRAWN)
    page.open(form(served, study=SMALLEST), DRAWN)
    page.wait(f"{_BUTTONS}.length >= 5")
    page.evaluate("window.scrollTo(0, 400)")
    page.wait("scrollY === 400")
    before = page.evaluate("document.querySelectorAll('#root textarea, #root input').length")
    click(page, "Add item")
    page.wait(f"document.querySelectorAll('#root textarea, #root input').length > {before}")
    assert page.evaluate("document.querySelectorAll('#root textarea, #root input').length") > before
