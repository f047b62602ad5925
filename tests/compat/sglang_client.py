"""Makes SGLang's own client code importable without its engine's dependencies (torch and the rest).

Its benchmark client and its frontend language are plain HTTP clients; but importing their package
imports the engine. So empty packages stand in for those whose __init__ does that (submodules are
still found in the installed files, unmodified), and for `datasets`, which only downloads."""
import importlib.util
import os
import sys
import types

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
sys.path.insert(0, os.path.join(ROOT, "tests", "e2e"))


def install_stand_ins():
    root = list(importlib.util.find_spec("sglang").submodule_search_locations)[0]
    for name in ("sglang", "sglang.srt", "sglang.srt.utils", "sglang.srt.disaggregation"):
        package = types.ModuleType(name)
        package.__path__ = [os.path.join(root, *name.split(".")[1:])]
        sys.modules[name] = package
    constants = types.ModuleType("sglang.srt.disaggregation.utils")
    constants.FAKE_BOOTSTRAP_HOST = "2.2.2.2"
    sys.modules[constants.__name__] = constants
    datasets = types.ModuleType("datasets")
    datasets.load_dataset = None
    sys.modules["datasets"] = datasets
