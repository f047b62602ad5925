// scheduler_bench [--running N] [--waiting M] [--context TOKENS] [--page-size P] [--json FILE]:
// what a step costs the host. A null executor answers at once, so all that is timed is next() and
// commit() of steady decode with N sequences running and M waiting (they do not fit).
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "base/rng.h"
#include "cache/prefix_cache.h"
#include "engine/scheduler/scheduler.h"

namespace espalier {
namespace {

class Deaf final : public SequenceObserver {
 public:
  void on_input_logprobs(SequenceId, int32_t, std::vector<TokenLogprobs>&&) override {}
  std::optional<FinishReason> on_token(SequenceId, TokenId, TokenLogprobs&&,
                                       const RequestStats&) override {
    return std::nullopt;
  }
  void on_finish(SequenceId, FinishReason, const RequestStats&) override {}
};

struct Options {
  int32_t running = 256, waiting = 0, context = 512, page_size = 1;
  int num_steps = 2000;
};

struct Timings {
  double next_p50 = 0, next_p99 = 0, commit_p50 = 0, commit_p99 = 0, total_p50 = 0, total_p99 = 0;
};

double percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

void answer(const ForwardBatch& batch, StepResult& result) {
  result.step = batch.step;
  result.lanes.resize(batch.lanes.size());
  for (size_t i = 0; i < batch.lanes.size(); ++i)
    result.lanes[i].token = batch.lanes[i].sample ? 7 : -1;
}

Timings measure(const Options& options) {
  // Just what the running ones may come to, so that nobody else is admitted.
  const int32_t max_new_tokens = options.num_steps + 60;
  const int32_t num_pages =
      options.running * ((options.context + max_new_tokens) / options.page_size + 1);
  auto cache = make_prefix_cache({.num_pages = num_pages, .page_size = options.page_size}).value();
  const SteadyClock clock;
  Deaf deaf;
  Scheduler scheduler({.max_running = options.running + 1,
                       .max_waiting = options.waiting + options.running,
                       .context_length = 1 << 20,
                       .new_token_ratio_init = 1,
                       .new_token_ratio_min = 1},
                      *cache, clock, deaf);
  Rng rng(1);
  const auto add = [&](SequenceId id) {
    SequenceSpec spec{.id = id, .max_new_tokens = max_new_tokens};
    spec.sampling = std::make_shared<SamplingSpec>();
    for (int32_t i = 0; i < options.context; ++i)
      spec.prompt_ids.push_back(static_cast<TokenId>(rng.below(100000)));
    if (const Status status = scheduler.add(std::move(spec)); !status.ok()) {
      fmt::print(stderr, "{}\n", status.to_string());
      std::exit(1);
    }
  };
  SequenceId id = 1;
  for (int32_t i = 0; i < options.running; ++i) add(id++);

  ForwardBatch batches[2];
  StepResult result;
  std::vector<double> next_us, commit_us, total_us;
  const auto now = [] { return std::chrono::steady_clock::now(); };
  const auto us = [](auto d) { return std::chrono::duration<double, std::micro>(d).count(); };
  scheduler.next(batches[0]);
  for (int step = 0; step < options.num_steps; ++step) {
    if (step == 20)
      for (int32_t i = 0; i < options.waiting; ++i) add(id++);
    ForwardBatch& launched = batches[step % 2];
    answer(launched, result);  // the executor's work
    const auto begin = now();
    const bool more = scheduler.next(batches[(step + 1) % 2]);
    const auto middle = now();
    scheduler.commit(launched, result);
    const auto end = now();
    if (!more || (step >= 50 && static_cast<int32_t>(launched.lanes.size()) != options.running)) {
      fmt::print(stderr, "step {}: {} lanes\n", step, launched.lanes.size());
      std::exit(1);
    }
    if (step < 50) continue;  // prefill, and buffers that grow
    next_us.push_back(us(middle - begin));
    commit_us.push_back(us(end - middle));
    total_us.push_back(us(end - begin));
  }
  return {percentile(next_us, 0.5),    percentile(next_us, 0.99), percentile(commit_us, 0.5),
          percentile(commit_us, 0.99), percentile(total_us, 0.5), percentile(total_us, 0.99)};
}

int run(int argc, char** argv) {
  std::map<std::string, std::string> given;
  for (int i = 1; i + 1 < argc; i += 2) given[argv[i]] = argv[i + 1];
  const auto number = [&](const char* name, int32_t standard) {
    return given.contains(name) ? std::atoi(given[name].c_str()) : standard;
  };
  if (argc % 2 == 0) {
    fmt::print(stderr,
               "usage: scheduler_bench [--running N] [--waiting M] [--context TOKENS] [--page-size "
               "P] [--json FILE]\n");
    return 2;
  }
  std::vector<Options> cases;
  if (given.contains("--running")) {
    cases.push_back({});
  } else {
    for (const int32_t running : {1, 64, 256, 1024}) cases.push_back({.running = running});
    cases.push_back({.running = 256, .page_size = 16});
    cases.push_back({.running = 256, .waiting = 10000});
  }
  std::string json;
  fmt::print("{:>8} {:>8} {:>8} {:>9}   {:>15} {:>15} {:>15}   us a step, p50 / p99\n", "running",
             "waiting", "context", "page_size", "next", "commit", "total");
  for (Options& options : cases) {
    options.running = number("--running", options.running);
    options.waiting = number("--waiting", options.waiting);
    options.context = number("--context", options.context);
    options.page_size = std::max(number("--page-size", options.page_size), 1);
    const Timings t = measure(options);
    fmt::print("{:>8} {:>8} {:>8} {:>9}   {:>7.1f} {:>7.1f} {:>7.1f} {:>7.1f} {:>7.1f} {:>7.1f}\n",
               options.running, options.waiting, options.context, options.page_size, t.next_p50,
               t.next_p99, t.commit_p50, t.commit_p99, t.total_p50, t.total_p99);
    json += fmt::format(
        "{}{{\"running\": {}, \"waiting\": {}, \"context\": {}, \"page_size\": {}, "
        "\"host_us_per_step\": {{\"p50\": {:.2f}, \"p99\": {:.2f}}}}}",
        json.empty() ? "" : ",\n", options.running, options.waiting, options.context,
        options.page_size, t.total_p50, t.total_p99);
  }
  if (given.contains("--json")) std::ofstream(given["--json"]) << "[" << json << "]\n";
  return 0;
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) { return espalier::run(argc, argv); }
