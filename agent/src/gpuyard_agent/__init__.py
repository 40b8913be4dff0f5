"""The GPU Yard node agent.

This file stays free of imports: the shim pays for it at every start of a replica.
"""

__version__ = "0.1.0"
