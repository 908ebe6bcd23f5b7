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
