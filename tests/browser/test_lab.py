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
