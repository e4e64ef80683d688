"""Sample models for Carillon: written here, seeded, exported to ONNX.

`python -m carillon_samples --out DIR` writes a Triton-style model repository.
Start reading at catalogue.py (which models there are) and repository.py (what
is written).
"""
