"""Random graphs of ONNX over all operators, held against oracles: `run` has the command."""
