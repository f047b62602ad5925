// What the frontend language costs and gains: the interpreter's time for each primitive, many
// programs at once, parallel branches with the fork hint on and off, compiled against interpreted.
//
//   build/release/lang_bench [--model-path share/default_model] [--quick]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/executor/null_executor.h"
#include "espalier/lang.h"
#include "lang/backends/engine_backend.h"
#include "text/tokenizer/byte_tokenizer.h"

namespace {

using namespace espalier;
using namespace espalier::lang;

// A back end that answers at once on the caller's thread, so the time is the interpreter's.
class Instant final : public Backend {
 public:
  std::string name() const override { return "instant"; }
  RoleFrame role_frame(Role, std::optional<Role>) const override { return {"<", ">", {}}; }
  void generate(GenerateCall call, CallEvents events) override {
    Completion completion;
    completion.samples.push_back({"answer", {.id = std::move(call.id), .finish_reason = "stop"}});
    events.on_done(std::move(completion));
  }
  void score(ScoreCall call, ScoreDone done) override {
    std::vector<ChoiceScore> scores;
    for (std::string& text : call.choices) {
      scores.push_back({.text = std::move(text)});
      scores.back().logprobs = {-1.0f};
    }
    done(std::move(scores));
  }
  void cancel(const std::string&) override {}
};

double seconds_of(const std::function<void()>& work) {
  const TimePoint begin = SteadyClock().now();
  work();
  return to_seconds(SteadyClock().now() - begin);
}

double processor_seconds() {  // of all threads of the process
  timespec t{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

// The medians of five runs. Processor time is comparable on a system with other load, too.
struct Times {
  double wall = 0, processor = 0;
};
Times median_of(const std::function<void()>& work) {
  std::vector<double> wall, processor;
  for (int i = 0; i < 5; ++i) {
    const double before = processor_seconds();
    wall.push_back(seconds_of(work));
    processor.push_back(processor_seconds() - before);
  }
  std::sort(wall.begin(), wall.end());
  std::sort(processor.begin(), processor.end());
  return {wall[2], processor[2]};
}

void check(bool good, std::string_view what) {
  if (good) return;
  fmt::print(stderr, "wrong: {}\n", what);
  std::exit(1);
}

void primitives(const std::shared_ptr<Backend>& instant, int count) {
  const RunOptions options{.backend = instant};
  const auto show = [&](std::string_view what, const std::function<void(State&)>& program,
                        int primitives) {
    const Times times = median_of([&] {
      State s = start(options);
      program(s);
      check(s.sync().ok(), what);
    });
    fmt::print("{:<34} {:8.3f} us of processor a primitive, {:8.3f} us of time\n", what,
               times.processor * 1e6 / primitives, times.wall * 1e6 / primitives);
  };
  show(
      "text",
      [&](State& s) {
        for (int i = 0; i < count; ++i) s += "ab";
      },
      count);
  show(
      "message (three primitives)",
      [&](State& s) {
        for (int i = 0; i < count; ++i) s += user("ab");
      },
      3 * count);
  // A stream of one program is a strand: each gen waits for the one before it.
  show(
      "gen, a fork each",
      [&](State& s) {
        s += "prompt";
        Forks forks = s.fork(count);
        forks += gen("a");
        for (State& f : forks) check(f["a"] == "answer", "gen");
      },
      2 * count);
  show(
      "gen, one after the other",
      [&](State& s) {
        for (int i = 0; i < count / 10; ++i) s += gen("a");
      },
      count / 10);
  show(
      "select, one after the other",
      [&](State& s) {
        for (int i = 0; i < count / 10; ++i) s += select("a", {"x", "y"});
      },
      count / 10);
}

int num_threads_now() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("Threads:")) return std::atoi(line.c_str() + 8);
  return 0;
}

std::shared_ptr<Backend> null_engine() {
  EngineConfig config;
  config.cache.max_total_tokens = 400000;
  config.schedule.max_running_requests = 256;
  config.schedule.max_queued_requests = 100000;
  config.sampling.random_seed = 1;
  Engine::Parts parts{
      .tokenizer = make_byte_tokenizer(),
      .executor = std::make_unique<NullExecutor>(
          NullExecutorConfig{.vocab_size = kByteVocabSize,
                             .next_token = [](uint64_t h) -> Result<TokenId> {
                               return 'a' + NullExecutor::uniform_token(h, 26);
                             }}),
      .info = {.vocab_size = kByteVocabSize, .context_length = 4096, .eos_ids = {kByteEosId}}};
  auto engine = Engine::create(config, std::move(parts));
  check(engine.has_value(), "engine");
  return *engine_backend(std::shared_ptr<Engine>(std::move(*engine)), ChatFrames());
}

const Program& tips() {
  static const Program program("tips", {"topic"}, [](State& s, const Value& topic) {
    s += "A page of advice about " + topic + ", in four parts.\n";
    Forks forks = s.fork(4);
    forks +=
        [](int i) { return "Part " + std::to_string(i) + ":" + gen("part", {.max_tokens = 8}); };
    s += join(forks["part"], "\n") + gen("end", {.max_tokens = 8});
  });
  return program;
}

void many_programs(int count) {
  const auto backend = null_engine();
  std::vector<Arguments> batch;
  for (int i = 0; i < count; ++i) batch.push_back({{"topic", "topic " + std::to_string(i)}});
  int threads = 0;
  const double seconds = seconds_of([&] {
    const auto states =
        run_batch(tips(), batch,
                  {.run = {.backend = backend}, .num_threads = 2, .progress = [&](size_t, size_t) {
                     threads = std::max(threads, num_threads_now());
                   }});
    for (const State& s : states) check(s["end"].str().size() == 8, "end");
  });
  fmt::print(
      "{} programs of 4 forks, {} calls, no model: {:.2f} s, {:.0f} us a program, at most {} "
      "threads in the process\n",
      count, 5 * count, seconds, seconds * 1e6 / count, threads);
}

void branches(const std::shared_ptr<Backend>& backend) {
  std::string prefix = "These are notes about a small town by the sea.\n";
  for (int i = 0; i < 40; ++i)
    prefix += "In house number " + std::to_string(i) + " lives a family with two children.\n";
  // `host`: what the program does for itself between the fork and the branches' texts.
  const auto program = [&](int round, bool parallel, std::chrono::milliseconds host) {
    return [&, round, parallel, host](State& s) {
      s += "Round " + std::to_string(round) + ". " + prefix;
      Forks forks = s.fork(8);
      std::this_thread::sleep_for(host);
      for (int i = 0; i < 8; ++i) {
        forks[i] += "Question " + std::to_string(i) + ":" +
                    gen("a", {.max_tokens = 24, .temperature = 0, .ignore_eos = true});
        if (!parallel) (void)forks[i].sync();
      }
      for (State& f : forks) check(!f["a"].str().empty(), "branch");
    };
  };
  int round = 0;
  const auto measure = [&](std::string_view what, bool parallel, bool hint,
                           std::chrono::milliseconds host = {}) {
    const Usage before = backend->usage();
    const Times times = median_of([&] {
      const State s =
          run(program(++round, parallel, host), {.backend = backend, .fork_hint = hint});
      check(s.error().ok(), s.error().to_string());
    });
    const Usage after = backend->usage();
    const auto prompt = static_cast<double>(after.prompt_tokens - before.prompt_tokens);
    const auto cached = static_cast<double>(after.cached_tokens - before.cached_tokens);
    fmt::print(
        "8 branches, {:<39} {:7.1f} ms, {:4.1f} % of prompt tokens cached, {:.0f} computed\n", what,
        times.wall * 1e3, 100 * cached / prompt, (prompt - cached) / 5);
  };
  measure("one after the other", false, false);
  measure("at once, hint off", true, false);
  measure("at once, hint on", true, true);
  // A look-up, say: the hint has the prefix computed meanwhile.
  constexpr std::chrono::milliseconds kHost(100);
  measure("at once after 100 ms of work, hint off", true, false, kHost);
  measure("at once after 100 ms of work, hint on", true, true, kHost);
}

// From the join of 8 branches that have been written to the next token: their cache kept, or
// computed anew.
void joins(const std::shared_ptr<Backend>& backend) {
  int round = 0;
  for (const bool keeps : {false, true}) {
    std::vector<double> seconds;
    double cached = 0;
    for (int i = 0; i < 5; ++i) {
      State s = start({.backend = backend, .parallel_encoding = keeps});
      s += "Round " + std::to_string(++round) + ". These are notes about a town.\n";
      Forks forks = s.fork(8);
      forks += [](int house) {
        std::string text = "House " + std::to_string(house) + ": ";
        for (int k = 0; k < 12; ++k) text += "there lives a family with two children. ";
        return text + gen("note", {.max_tokens = 2, .temperature = 0, .ignore_eos = true}) + "\n";
      };
      for (State& f : forks) check(f.sync().ok(), "branch");
      seconds.push_back(seconds_of([&] {
        forks.join(JoinMode::kConcatenateAndAppend);
        s += "In short:" + gen("a", {.max_tokens = 1, .temperature = 0, .ignore_eos = true});
        check(s.sync().ok(), s.error().to_string());
      }));
      const MetaInfo meta = s.meta_info("a");
      cached =
          100 * static_cast<double>(meta.cached_tokens) / static_cast<double>(meta.prompt_tokens);
    }
    std::sort(seconds.begin(), seconds.end());
    fmt::print(
        "8 branches appended to each other, {:<17} {:7.1f} ms to the next token, {:.1f} % of "
        "its prompt cached\n",
        keeps ? "their cache kept" : "computed anew", seconds[2] * 1e3, cached);
  }
}

void compiled_against_interpreted(const std::shared_ptr<Backend>& instant, int count) {
  const RunOptions options{.backend = instant};
  const Program graph = compiled(optimize(*trace(tips())));
  const auto time = [&](const Program& program) {
    return median_of([&] {
             for (int i = 0; i < count; ++i)
               check(program.run({{"topic", "x"}}, options).error().ok(), "run");
           }).processor *
           1e6 / count;
  };
  fmt::print(
      "a program of 4 forks and 5 calls, instant back end: interpreted {:.1f} us "
      "of processor, compiled {:.1f} us\n",
      time(tips()), time(graph));
}

}  // namespace

int main(int argc, char** argv) {
  std::string model = "share/default_model";
  bool quick = false;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--quick") quick = true;
    if (std::string_view(argv[i]) == "--model-path" && i + 1 < argc) model = argv[++i];
  }
  const auto instant = std::make_shared<Instant>();
  primitives(instant, quick ? 1000 : 20000);
  compiled_against_interpreted(instant, quick ? 20 : 500);
  many_programs(quick ? 50 : 1000);
  const auto backend = engine_backend(EngineConfig{.model = {.model_path = model}});
  if (!backend) {
    fmt::print(stderr, "{}\n", backend.error().to_string());
    return 1;
  }
  branches(*backend);
  joins(*backend);
  return 0;
}
