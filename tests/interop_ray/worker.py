"""A Ray cluster on this machine: a head without processors, and nodes with two each.

Each line of stdin is a request, each line of stdout its answer, both JSON.  The cluster ends with
stdin.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

from ray.cluster_utils import Cluster

OBJECTS = {"object_store_memory": 80 * 1024 * 1024}  # about the least that Ray takes


def main() -> None:
    """Answer each request with the addresses of the cluster and of its dashboard."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in the background of a shell
    head = {"num_cpus": 0, "include_dashboard": True, **OBJECTS}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes: list[Any] = []
    try:
        for line in sys.stdin:
            request = json.loads(line)
            if request["do"] == "add":
                node = cluster.add_node(num_cpus=2, env_vars=request["variables"], **OBJECTS)
                nodes.append(node)
            elif request["do"] == "cut off":
                cluster.remove_node(nodes.pop(), allow_graceful=False)
            addresses = [cluster.address, f"http://{cluster.webui_url}"]
            sys.stdout.write(json.dumps({"answer": addresses}) + "\n")
            sys.stdout.flush()
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
