"""The GPUs of this node, real or simulated."""
