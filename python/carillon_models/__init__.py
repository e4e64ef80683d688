"""Small ONNX files of many architectures, to see what a server makes of them. Start at catalogue.py."""
