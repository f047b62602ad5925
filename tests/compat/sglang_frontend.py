"""SGLang's frontend language (sglang.lang), unmodified, through its RuntimeEndpoint: gen, stream, select,
fork and run_batch."""
import sglang_client

sglang_client.install_stand_ins()
from harness import Server  # noqa: E402
from sglang.lang import api as sgl  # noqa: E402
from sglang.lang.backend.runtime_endpoint import RuntimeEndpoint  # noqa: E402


@sgl.function
def continued(s, text):
    s += text + sgl.gen("more", max_tokens=8, temperature=0, ignore_eos=True)


@sgl.function
def decided(s, sentence):
    s += sentence + " Is that true? "
    s += sgl.select("answer", ["yes", "no"])


@sgl.function
def forked(s):
    s += "Two things about the sea. "
    branches = s.fork(2)
    for number, branch in enumerate(branches):
        branch += f"Thing {number + 1}:" + sgl.gen("thing", max_tokens=6, temperature=0, ignore_eos=True)
    s += " ".join(branch["thing"] for branch in branches)


def main():
    with Server() as server:
        sgl.set_default_backend(RuntimeEndpoint(f"http://127.0.0.1:{server.port}"))
        one = continued.run(text="The sun")
        print("gen:", repr(one["more"]))
        assert one["more"] and one.get_meta_info("more")["completion_tokens"] == 8

        streamed = "".join(continued.run(text="The sun", stream=True).text_iter())
        assert streamed == "The sun" + one["more"], streamed

        batch = continued.run_batch([{"text": t} for t in ("The sun", "One day", "Two and")])
        assert batch[0]["more"] == one["more"] and len(batch) == 3
        print("run_batch:", [b["more"] for b in batch])

        answer = decided.run(sentence="Snow is cold.")["answer"]
        print("select:", answer)
        assert answer in ("yes", "no")

        print("fork:", repr(forked.run().text()))
        sgl.flush_cache()
        info = sgl.get_server_info()
        assert info["max_total_num_tokens"] > 0
    print("sglang frontend: ok")


if __name__ == "__main__":
    main()
