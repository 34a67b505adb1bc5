"""The S3 server of moto, in its environment: worker.py PORT."""

from __future__ import annotations

import sys

from moto.server import main

main(["-H", "127.0.0.1", "-p", sys.argv[1]])
