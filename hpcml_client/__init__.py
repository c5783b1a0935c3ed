"""What a program inside a run may import: standard library only, Python 3.10 and newer.

``run = hpcml_client.connect()`` is the whole of it for most programs (docs/your-own-program.md).
"""

from hpcml_client.checkpoints import EX_TEMPFAIL, Checkpoints, Saved
from hpcml_client.client import Client, connect

__all__ = ["EX_TEMPFAIL", "Checkpoints", "Client", "Saved", "connect"]
