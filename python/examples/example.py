"""What the examples share: the back end that the command line names.

    python3 EXAMPLE.py                           # the model that ships, in this process
    python3 EXAMPLE.py MODEL_FOLDER
    python3 EXAMPLE.py http://127.0.0.1:30000    # a server
"""
import os
import sys

import espalier as sgl

SHIPPED = os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "share",
                       "default_model")


def place() -> str:
    return sys.argv[1] if len(sys.argv) > 1 else SHIPPED


def backend() -> sgl.Backend:
    where = place()
    return sgl.RuntimeEndpoint(where) if where.startswith("http") else sgl.Engine(where)
