"""Five questions about a job, and the answer beside them: a thin view of `teaching.decisions`."""

from typing import Any

from helpers.teaching.decisions import OWNERS, Case, decide


class DecisionView:
    """Shows the controls in a notebook; its text is the answer for the case it was made with."""

    def __init__(self, case: Case = Case()):  # noqa: B008  # frozen
        import ipywidgets as widgets

        self.case = case
        wide = {"style": {"description_width": "16em"}, "layout": widgets.Layout(width="44em")}
        self._owner = widgets.Dropdown(options=OWNERS, value=case.owner, description="Who uses the card?", **wide)
        self._waits = widgets.Checkbox(value=case.interactive, description="Somebody waits for answers", **wide)
        self._work = widgets.FloatText(value=case.work, description="Work, in seconds", **wide)
        self._start = widgets.FloatText(value=case.start, description="Start of an engine, in seconds", **wide)
        self._compare = widgets.Checkbox(
            value=case.comparable, description="Results are compared over versions", **wide
        )
        self._see = widgets.Checkbox(value=case.observed, description="Somebody must see it run", **wide)
        self._answer = widgets.HTML()
        controls = [self._owner, self._waits, self._work, self._start, self._compare, self._see]
        for control in controls:
            control.observe(self._changed, names="value")
        self.box = widgets.VBox([*controls, self._answer])
        self._changed()

    def _changed(self, _change: Any = None) -> None:
        """Decides anew; an input that makes no sense is answered under the controls."""
        import html

        try:
            case = Case(
                self._owner.value,
                self._waits.value,
                _positive(self._work),
                _positive(self._start),
                self._compare.value,
                self._see.value,
            )
        except ValueError as error:
            self._answer.value = f"<p><b>{html.escape(str(error))}</b></p>"
            return
        self.case = case
        lines = [html.escape(line) for line in repr(decide(case)).splitlines()]
        self._answer.value = f"<p><b>{lines[0]}</b></p>" + "".join(f"<p>{line}</p>" for line in lines[1:])

    def __repr__(self) -> str:
        return f"{decide(self.case)!r}\n(Run this cell to change the case.)"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return self.box._repr_mimebundle_() | {"text/plain": repr(self)}


def _positive(control: Any) -> float:
    if not control.value >= 0:
        raise ValueError(f"{control.description}: a number of 0 or more, not {control.value:g}.")
    return control.value
