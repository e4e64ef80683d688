"""How each operator is drawn: a row is a function that adds the operator's node to a sketch, or raises Misfit."""

from __future__ import annotations

from typing import Callable

ROWS: dict[str, Callable] = {}


def row(*operators: str):
    """The decorated function draws each of these operators; it is called with the sketch and the operator's name."""

    def add(function):
        for operator in operators:
            assert operator not in ROWS, operator
            ROWS[operator] = function
        return function

    return add
