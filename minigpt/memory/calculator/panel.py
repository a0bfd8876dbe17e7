"""The sliders. ``calculator()`` in a notebook's cell shows them; where nobody can move one, it shows the picture alone.

A notebook that papermill or nbconvert runs has nobody in front of it, and says so: its requests to the kernel have
``allow_stdin`` False. Then no widget is made, so none is left in the notebook that they write.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from minigpt.memory.calculator.choice import CHECKPOINTING, LIKE, OFTEN, OPTIMIZERS, Answer, Choice
from minigpt.memory.calculator.picture import picture, words
from minigpt.memory.gpus import GPUS
from minigpt.memory.names import KNOWN
from minigpt.memory.plan import ALLOWED

BATCHES = tuple(2**n for n in range(7))
LENGTHS = tuple(2**n for n in range(7, 18))
MISSING = "The sliders need ipywidgets: `pip install ipywidgets`, then restart the kernel."
STILL = "This picture stands still: run the cell in JupyterLab or in Colab for the sliders."


def calculator(model: str = "llama-3-8b", *, like: str = "hf-trainer", **words_of_the_plan: Any) -> None:
    """Show the calculator, its sliders at ``model`` (a known name, a Hub id, the path of a config.json) and so on.

    ``like`` is a library of ``recipes``, or "textbook". ``method``, ``batch``, ``seq_len``, ``checkpointing``,
    ``optimizer`` (``paged_adamw8bit``, or ``paged_adamw_8bit`` as transformers spells it) and ``card`` are where the
    sliders begin; any other word of the plan (``rank=16``) stays as it is.
    Raises ValueError for a value that no slider has.
    """
    often = {name: words_of_the_plan.pop(name) for name in OFTEN if name in words_of_the_plan}
    choice = Choice(model, like=like, more=words_of_the_plan, **often)
    if not somebody_is_there():
        return _show(choice, STILL)
    try:
        panel = Panel(choice)
    except ImportError:
        return _show(choice, MISSING)
    from IPython.display import display

    display({**panel.box._repr_mimebundle_(), "text/plain": words(panel.answer)}, raw=True)


def somebody_is_there() -> bool:
    """Whether a front end sent this cell in which somebody could type: JupyterLab, Colab; not papermill."""
    shell = _shell()
    message = shell.get_parent() if hasattr(shell, "get_parent") else {}
    return bool(message.get("content", {}).get("allow_stdin"))


def _shell():
    try:
        from IPython import get_ipython
    except ImportError:
        return None
    return get_ipython()


def _show(choice: Choice, sentence: str) -> None:
    answer = Answer.to(choice)
    if _shell() is None:
        print(words(answer))
        return
    from IPython.display import display

    html = f'{picture(answer)}<p style="font-size:12px;opacity:.8">{sentence}</p>'
    display({"text/html": html, "text/plain": words(answer)}, raw=True)


class Panel:
    """The widgets: ``sliders`` by the name of what they choose, ``html`` with the picture, ``box`` around all.

    ``answer`` is what the picture shows. No choice is worked out twice.
    """

    def __init__(self, choice: Choice) -> None:
        import ipywidgets as widgets

        self.choice, self.known = choice, dict[Choice, Answer]()
        wide, described = widgets.Layout(width="22rem"), dict(description_width="7rem")
        pick = dict(layout=wide, style=described)

        def menu(name: str, said: str, options) -> Any:
            return widgets.Dropdown(options=_with(options, getattr(choice, name)), description=said, **pick)

        def slider(name: str, said: str, numbers) -> Any:
            options = sorted(_with(numbers, getattr(choice, name)))
            labels = [(f"{n:,}", n) for n in options]
            return widgets.SelectionSlider(options=labels, description=said, continuous_update=True, **pick)

        self.sliders = {
            "model": menu("model", "model", KNOWN),
            "batch": slider("batch", "batch", BATCHES),
            "method": menu("method", "method", ALLOWED["method"]),
            "seq_len": slider("seq_len", "sequence", LENGTHS),
            "like": menu("like", "recipe", LIKE),
            "checkpointing": menu("checkpointing", "checkpointing", CHECKPOINTING),
            "card": menu("card", "card", GPUS),
            "optimizer": menu("optimizer", "optimizer", OPTIMIZERS),
        }
        self.html = widgets.HTML()
        for name, widget in self.sliders.items():
            widget.value = getattr(choice, name)
            widget.observe(self.moved, names="value")
        controls = widgets.Box(list(self.sliders.values()), layout=widgets.Layout(flex_flow="row wrap"))
        self.box = widgets.VBox([controls, self.html])
        self.draw()

    @property
    def answer(self) -> Answer:
        if self.choice not in self.known:
            self.known[self.choice] = Answer.to(self.choice)
        return self.known[self.choice]

    def moved(self, _change) -> None:
        """A slider has a new value."""
        self.choice = replace(self.choice, **{name: widget.value for name, widget in self.sliders.items()})
        self.draw()

    def draw(self) -> None:
        self.html.value = picture(self.answer)


def _with(options, value) -> list:
    """``options``, and ``value`` before them if it is another."""
    return list(options) if value in options else [value, *options]
