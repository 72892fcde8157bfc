"""Clients of TensorFlow Serving."""
