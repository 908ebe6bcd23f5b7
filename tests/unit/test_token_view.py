"""The token view's two forms; in a browser it is clicked in tests/browser."""

import math

from test_outputs import completion, logprob, request

from helpers.widgets import tokens


def shown(**entries):
    steps = [{5: logprob(math.log(0.25), 2, "<b>"), 9: logprob(math.log(0.75), 1, "y")}, {6: logprob(0.0, 1, "z")}]
    return tokens.view([request(completions=[completion(logprobs=steps)])])


def test_the_words_have_a_line_a_token():
    text, first, second = repr(shown()).splitlines()
    assert text == "<b>z" and first == "  '<b>' 25%; else 'y' 75%" and second == "  'z' 100%"


def test_html_is_escaped_focusable_and_marked_by_more_than_colour():
    html = shown()._repr_html_()
    assert "<b>" not in html and html.count('tabindex="0"') == 2 and "aria-label" in html
    assert "border-bottom: 3.0px solid" in html and "border-bottom: 0.0px solid" in html


def test_without_log_probabilities_the_text_is_still_shown(recwarn):
    view = tokens.view([request()])
    assert (
        "probability unknown" in repr(view) and "[5]" in view._repr_html_() and "logprobs=N" in str(recwarn[0].message)
    )
