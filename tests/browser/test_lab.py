"""What a person sees who types `make lab`."""


def test_the_first_notebook_answers_in_jupyterlab(notebook, theme):
    page = notebook("00_start_here.ipynb")
    assert page.get_attribute("body", "data-jp-theme-name") == theme
    assert page.get_by_text("Jupyter news").count() == 0
    if theme == "JupyterLab Dark":
        return  # it opens; the engine answers in one theme
    page.locator(".jp-Notebook .jp-CodeCell").first.click()
    page.get_by_text("Run", exact=True).first.click()
    page.get_by_text("Run All Cells", exact=True).click()
    page.wait_for_function(
        "document.body.innerText.includes('Engine released:') && !document.body.innerText.includes('[*]')"
    )
    page.wait_for_selector("text=Paris", timeout=120_000)
    assert page.locator("[data-mime-type='application/vnd.jupyter.error']").count() == 0


def test_a_token_shows_its_alternatives_on_hover_and_on_focus(notebook):
    page = notebook("06_request_output.ipynb")
    token = page.locator(".token-view .token").first
    token.scroll_into_view_if_needed()
    assert beside(token)["content"] == "none"
    token.hover()
    hovered = beside(token)
    page.mouse.move(0, 0)
    assert beside(token)["content"] == "none"
    token.focus()
    focused = beside(token)
    assert hovered == focused and "%" in hovered["content"]
    assert hovered["color"] != hovered["background"], "unreadable in this theme"
    assert any(float(width.removesuffix("px")) > 1 for width in page.evaluate(LINES)), "no line under any token"


LINES = "[...document.querySelectorAll('.token-view .token')].map(e => getComputedStyle(e).borderBottomWidth)"


def beside(token) -> dict[str, str]:
    """The box beside a token as the browser draws it; its content is "none" where there is no box."""
    return token.evaluate(
        "e => { const s = getComputedStyle(e, '::after');"
        "return {content: s.content, color: s.color, background: s.backgroundColor} }"
    )


def test_the_decision_follows_its_controls(notebook):
    page = notebook("08_offline_or_server.ipynb")
    cell = page.locator(".jp-CodeCell", has_text="DecisionView()").last
    cell.scroll_into_view_if_needed()
    assert cell.get_by_text("Run this cell to change the case").count() == 1, (
        "the saved text stands where the widget will be"
    )
    cell.locator(".cm-content").click()
    page.keyboard.press("Control+Enter")
    answer = cell.locator(".widget-html")
    answer.get_by_text("Embed: LLM in the job's own process").wait_for(timeout=60_000)
    cell.get_by_label("Somebody waits for answers").check()
    answer.get_by_text("Both: a server for those who wait").wait_for(timeout=10_000)
    cell.locator("select").select_option("others too")
    answer.get_by_text("one more client, with a cap").first.wait_for(timeout=10_000)
    number = cell.locator("input[type=number]").first
    number.fill("-5")
    number.press("Enter")
    answer.get_by_text("a number of 0 or more, not -5").wait_for(timeout=10_000)
    assert page.locator("[data-mime-type='application/vnd.jupyter.error']").count() == 0
