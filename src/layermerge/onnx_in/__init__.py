"""ONNX in: a network that is only a file, as a module that can be traced."""
