"""Random graphs of ONNX, asked of a live server and of the oracles: tools/random_graphs."""

from __future__ import annotations

import sys

from .run import main

if __name__ == "__main__":
    sys.exit(main())
