"""The GPU Yard node agent."""
