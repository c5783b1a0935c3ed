"""The agent: the process that the job script starts on each node, which runs and watches the workload.

``python -m hpcml.agent.main PATH``: `hpcml.agent.turns` says what PATH may be.
"""

import sys

from hpcml.agent.turns import take_turns

if __name__ == "__main__":
    sys.exit(take_turns(sys.argv[1:]))
