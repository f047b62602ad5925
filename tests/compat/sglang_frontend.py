"""SGLang's frontend language (sglang.lang), unmodified, through its RuntimeEndpoint: gen, stream, select
with its three methods, fork, run_batch, the cache-prefix call and concatenate-and-append."""
import sglang_client

sglang_client.install_stand_ins()
from harness import Server  # noqa: E402
from sglang.lang import api as sgl, choices  # noqa: E402
from sglang.lang.backend.runtime_endpoint import RuntimeEndpoint  # noqa: E402


@sgl.function
def continued(s, text):
    s += text + sgl.gen("more", max_tokens=8, temperature=0, ignore_eos=True)


@sgl.function
def decided(s, sentence, method):
    s += sentence + " Is that true? "
    s += sgl.select("answer", ["yes", "no", "yes, it is"], choices_method=method)


@sgl.function
def joined(s):
    s += "Remember this."
    forks = s.fork(3)
    forks += lambda i: f" Statement {i} is true."
    forks.join("concate_and_append")
    s += " Now" + sgl.gen("more", max_tokens=4, temperature=0, ignore_eos=True)


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

        for method in (choices.token_length_normalized, choices.greedy_token_selection,
                       choices.unconditional_likelihood_normalized):
            state = decided.run(sentence="Snow is cold.", method=method)
            state.sync()
            assert state.error() is None, state.error()
            print("select:", type(method).__name__, state["answer"])
            assert state["answer"] in ("yes", "no", "yes, it is")

        prefix = "The lighthouse stands at the end of the long pier. " * 8
        sgl.flush_cache()
        backend = RuntimeEndpoint(f"http://127.0.0.1:{server.port}")
        backend.cache_prefix(prefix)
        cached = continued.run(text=prefix + "It is").get_meta_info("more")
        print("cache prefix:", cached["cached_tokens"], "of", cached["prompt_tokens"], "tokens cached")
        assert cached["cached_tokens"] > 0.8 * cached["prompt_tokens"]

        state = joined.run()
        state.sync()
        assert state.error() is None, state.error()
        text = "Remember this." + "".join(f" Statement {i} is true." for i in range(3)) + " Now"
        assert state.text() == text + state["more"], state.text()
        again = continued.run(text=text)["more"]
        assert again.startswith(state["more"]), (again, state["more"])
        print("concatenate and append: as the whole text:", repr(state["more"]))

        print("fork:", repr(forked.run().text()))
        sgl.flush_cache()
        info = sgl.get_server_info()
        assert info["max_total_num_tokens"] > 0
    print("sglang frontend: ok")


if __name__ == "__main__":
    main()
