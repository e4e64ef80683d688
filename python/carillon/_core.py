"""Imported where there is no compiled module for this Python; a compiled one beside this file goes first."""

import sys
from pathlib import Path

_there = sorted(path.name.split(".")[1] for path in Path(__file__).parent.glob("_core.*.so"))
raise ImportError(f"carillon._core is not compiled for this Python ({sys.implementation.cache_tag}), only for "
                  f"{', '.join(_there) or 'none'}: `pip install .` in a checkout compiles it", name=__name__)
