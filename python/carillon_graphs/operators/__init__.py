"""A row for every operator that Carillon's graph knows, a file a family."""

from . import control_flow, elementwise, indices, learning, matrices, networks, quantised, reductions, shapes, signals
from .registry import ROWS

__all__ = ["ROWS", "control_flow", "elementwise", "indices", "learning", "matrices", "networks", "quantised", "reductions",
           "shapes", "signals"]
