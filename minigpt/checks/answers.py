"""A student's value that lives in another process: what a judge holds in its place, and how it asks.

    with answers.elsewhere(channel):       here a check's parameters are Answers, not the notebook's values
        exec(check, namespace)
    answers.value(predicted)               the value of an answer that is no function

``checks.call``, ``checks.by_hand`` and probes, given an Answer, are run where it lives, and what comes back is a plain
value, a ``Wrong``, or, for what is no plain value, a ``Kept``: it stays there, and can be handed back as an argument.
So a judge of functions on numbers and tensors is the same for both.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from minigpt.checks import wire
from minigpt.checks.comparing import plain
from minigpt.checks.verdict import Wrong


class Elsewhere:
    """Something in the process behind ``channel``."""

    def __init__(self, channel: Channel, kind: str, name: str | int, shown: str) -> None:
        self.channel, self._name, self._shown = channel, (kind, name), shown
        self.__name__ = shown

    def by_name(self) -> tuple[str, str | int]:
        """What goes over the wire in its place."""
        return self._name

    def __repr__(self) -> str:
        return self._shown

    def __deepcopy__(self, memo) -> Elsewhere:
        return self


class Answer(Elsewhere):
    """What the student called ``name``."""

    def __init__(self, name: str, channel: Channel) -> None:
        super().__init__(channel, "answer", name, name)


class Kept(Elsewhere):
    """What an answer gave, and is no plain value: its number there. Its class has the name of the value's class."""

    def __init__(self, number: int, shown: str, channel: Channel) -> None:
        super().__init__(channel, "kept", number, shown)


class Channel:
    """A way to the process in which the student's code runs; ``exchange`` is the way itself."""

    def exchange(self, request: bytes, about: tuple[Elsewhere, ...]) -> bytes:
        """What the process replies; ``about``: what the request names. Raises Wrong where it does not."""
        raise NotImplementedError

    def anew(self) -> None:
        """Forgets what answers have done to their process, where that can be."""

    def ask(self, do: str, *what, name: str = "the answer"):
        """What ``answering.DOES[do](*what)`` gives there. Raises Wrong, also for a reply that is none."""
        reply = self.exchange(wire.send((do, *what)), tuple(within(what)))
        try:
            said = wire.unpack(reply, self._kept)
        except ValueError as error:
            self.anew()  # who sends such a reply may have sent another one
            raise Wrong("broken-reply", f"{name}: what came back from it cannot be read: {str(error)[:200]}") from None
        if isinstance(said, Wrong):
            raise said
        return said

    def answer(self, name: str) -> Answer:
        """Raises Wrong where there is none."""
        if self.ask("has", name) is not True:
            raise Wrong("not-run", f"there is no {name} yet: run the cells above this one, in order")
        return Answer(name, self)

    def _kept(self, number: int, kind: str, shown: str) -> Kept:
        return type(kind, (Kept,), {})(number, shown, self)


def within(value, depth: int = 0) -> Iterator[Elsewhere]:
    """What is elsewhere among arguments: as they are, or in a list, tuple or dict."""
    if isinstance(value, Elsewhere):
        yield value
    elif depth < 4 and type(value) in (list, tuple, dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from within(part, depth + 1)


def sent(do: str, function: Callable, args: tuple, kwargs: dict, *more) -> Callable[[], Any] | None:
    """What asks the process where the function or one of its arguments lives, if it is not this one."""
    away = next(within((function, args, kwargs)), None)
    if away is None:
        return None
    name = getattr(away if isinstance(function, Elsewhere) else function, "__name__", "the answer")
    return lambda: away.channel.ask(do, function, args, kwargs, *more, name=name)


def value(answer):
    """The answer itself, as a plain value: for an answer that is no function."""
    return answer.channel.ask("value", answer, name=answer.__name__) if isinstance(answer, Elsewhere) else plain(answer)


_channels: list[Channel] = []


@contextlib.contextmanager
def elsewhere(channel: Channel) -> Iterator[None]:
    """Within it the answers that a check looks at are those behind ``channel``."""
    _channels.append(channel)
    try:
        yield
    finally:
        _channels.pop()


def current() -> Channel | None:
    return _channels[-1] if _channels else None
