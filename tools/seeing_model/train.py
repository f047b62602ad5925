"""Trains the model that sees on one GPU within a given time, on scenes that processes draw up meanwhile and that the GPU draws.

    python3 train.py --model FOLDER --work WORK --seconds 220      FOLDER has tokenizer.json

Started again with the same --work it goes on from the weights in WORK/checkpoint.pt, which export.py writes as a model. At its end it prints and writes (WORK/report.json) how many answers about held-out pictures
are right, and what a linear probe on the encoder reads.
"""
import argparse
import json
import multiprocessing
import pathlib
import sys
import time

_STARTED = time.time()


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True, help="folder with tokenizer.json")
    parser.add_argument("--work", type=pathlib.Path, required=True, help="folder for the checkpoint and the report")
    parser.add_argument("--seconds", type=float, default=220, help="all of the run, the report included")
    parser.add_argument("--report-seconds", type=float, default=25)
    parser.add_argument("--steps", type=int, default=10**9, help="at most")
    parser.add_argument("--rows", type=int, default=512, help="pictures a step")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--warm-up", type=int, default=150, help="steps over which the rate rises")
    parser.add_argument("--decay-from", type=float, default=0.45, help="part of the time after which the rate falls to nothing")
    parser.add_argument("--probe-weight", type=float, default=0.3, help="of the loss of linear heads that read cells; it falls to nothing by half of the time")
    parser.add_argument("--held-out", type=int, default=2000, help="pictures of the report")
    parser.add_argument("--probe-steps", type=int, default=200, help="of the report's linear probe")
    parser.add_argument("--workers", type=int, default=max(1, multiprocessing.cpu_count() - 2))
    parser.add_argument("--no-compile", action="store_true")
    return parser.parse_args()


def log(text):
    print("[%6.1f s] %s" % (time.time() - _STARTED, text), flush=True)


def make_batches(tokenizer_file, numbers, count, out):
    """A process that fills the queue with training batches."""
    from tokenizers import Tokenizer

    import examples

    tokenizer = Tokenizer.from_file(tokenizer_file)
    while True:
        with numbers.get_lock():
            number = numbers.value
            numbers.value += 1
        out.put(examples.training_batch(tokenizer, number, count))


def make_held_out(job):
    """(kind, question, answer, pixels, tokens, which of them are learned, cells)."""
    from tokenizers import Tokenizer

    import examples
    import held_out

    number, tokenizer_file = job
    scene, kind, question, answer, quality = held_out.item(number)
    ids, learned = examples.padded(*examples.conversation(Tokenizer.from_file(tokenizer_file), [(question, answer)], "before"))
    return kind, question, answer, examples.held_out_pixels(scene, quality), ids, learned, examples.cells(scene)


class Trainer:
    def __init__(self, args, numbers):
        import torch
        from tokenizers import Tokenizer

        import draw_batch
        import learning
        import model as models

        self.args, self.numbers, self.torch, self.spoil = args, numbers, torch, draw_batch.spoil
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.dtype = torch.bfloat16 if self.device == "cuda" else torch.float32
        torch.manual_seed(1)
        tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
        self.model = models.Seeing(tokenizer.get_vocab_size(), tokenizer.token_to_id("<image>")).to(self.device)
        self.probe = learning.Probe(models.VISION["hidden_size"]).to(self.device)
        self.table = draw_batch.table(self.device)
        self.compose = draw_batch.compose
        self.load()
        self.optimizer = learning.Optimizer(self.model, self.probe, self.dtype)

    def load(self):
        path = self.args.work / "checkpoint.pt"
        if path.exists():
            stored = self.torch.load(path, map_location=self.device)
            self.model.load_state_dict(stored["model"])
            self.probe.load_state_dict(stored["probe"])
            log(f"goes on from {path}")

    def save(self):
        path = self.args.work / "checkpoint.pt"
        self.torch.save({"model": self.model.state_dict(), "probe": self.probe.state_dict()}, str(path) + ".part")
        pathlib.Path(str(path) + ".part").rename(path)
        (self.args.work / "batches").write_text(str(self.numbers.value))

    def compile(self, batch):
        """Compiles what costs time; a compiler that fails must not cost the run."""
        if self.args.no_compile or self.device == "cpu":
            return
        try:
            self.torch._dynamo.config.recompile_limit = 64
            self.compose = self.torch.compile(self.compose, dynamic=False)
            for block in (*self.model.encoder.blocks, *self.model.blocks):
                block.compile(dynamic=False)
            self.loss(batch, 0.1)[0].backward()
            self.torch.cuda.synchronize()
        except Exception as error:  # of any kind
            log(f"without compilation: {error!r}")
            self.compose = sys.modules["draw_batch"].compose
            self.without_compilation()
        for p in (*self.model.parameters(), *self.probe.parameters()):
            p.grad = None
        log("compiled")

    def without_compilation(self):
        """For shapes that come a few times only."""
        for block in (*self.model.encoder.blocks, *self.model.blocks):
            block._compiled_call_impl = None

    def to_device(self, batch):
        return {k: self.torch.from_numpy(v).to(self.device, non_blocking=True) for k, v in batch.items()}

    def pixels(self, batch):
        with self.torch.no_grad():
            return self.spoil(self.compose(batch["things"], batch["ground"], *self.table)) / 127.5 - 1

    def loss(self, batch, probe_weight):
        functional = self.torch.nn.functional
        features = self.model.encoder(self.pixels(batch), self.dtype)
        tokens = batch["tokens"].long()
        logits = self.model.logits(self.model.decode(tokens[:, :-1], features).flatten(0, 1)[batch["at"]])
        wanted = tokens[:, 1:].flatten()[batch["at"]]
        said = functional.cross_entropy(logits, wanted)
        read = self.probe.loss(features, batch["labels"].long())
        right = (logits.argmax(-1) == wanted).float().mean()
        return said + probe_weight * read, said.detach(), read.detach(), right.detach()

    def train(self, batches):
        """Until the time or the steps are over; the rate falls with the time."""
        args, step, saved = self.args, 0, time.time()
        self.compile(self.to_device(batches.get()))
        begun, end = time.time(), args.seconds - args.report_seconds
        while step < args.steps and time.time() - _STARTED < end:
            part = max((time.time() - begun) / max(1e-9, end - (begun - _STARTED)), step / args.steps)
            rate = args.rate * min(1.0, (step + 1) / args.warm_up) * min(1.0, (1.0 - part) / (1.0 - args.decay_from))
            loss, *shown = self.loss(self.to_device(batches.get()), args.probe_weight * max(0.02, 1 - 2 * part))
            loss.backward()
            self.optimizer.step(rate)
            step += 1
            if step % 100 == 0 or step in (1, 10):
                shown = [float(x) for x in shown]
                log("step %d: answers' loss %.4f, probe's loss %.4f, tokens right %.4f, rate %.1e, %.1f steps/s, queue %d" %
                    (step, *shown, rate, step / (time.time() - begun), batches.qsize()))
            if time.time() - saved > 30:
                self.save()
                saved = time.time()
        self.save()
        log(f"{step} steps of {args.rows} pictures")
        return step


def main():
    args = parse()
    args.work.mkdir(parents=True, exist_ok=True)
    tokenizer_file = str(args.model / "tokenizer.json")
    context = multiprocessing.get_context("fork")
    trace = args.work / "batches"
    numbers = context.Value("q", int(trace.read_text()) if trace.exists() else 0)  # the next batch's; no run makes another's
    batches = context.Queue(48)
    makers = [context.Process(target=make_batches, args=(tokenizer_file, numbers, args.rows, batches), daemon=True) for _ in range(args.workers)]
    for maker in makers:
        maker.start()
    pool = context.Pool(max(1, args.workers // 4))
    held_out = pool.map_async(make_held_out, [(n, tokenizer_file) for n in range(args.held_out)], 20)

    trainer = Trainer(args, numbers)
    import learning

    log("%.2f M parameters on %s" % (sum(p.numel() for p in trainer.model.parameters()) / 1e6, trainer.device))
    report = {"steps": trainer.train(batches), "rows": args.rows}
    trainer.without_compilation()
    items = held_out.get()
    report.update(learning.evaluate(trainer, items))
    log("right: %.4f of %d held-out answers" % (report["right"], report["held_out"]))
    report.update(learning.fit_probe(trainer, items, batches, args.probe_steps))
    (args.work / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    log(json.dumps({key: value for key, value in report.items() if key != "misses"}))
    for maker in makers:
        maker.kill()
    pool.terminate()


if __name__ == "__main__":
    main()
