// espalier bench overhead: what the radix cache costs where nothing is shared. Two engines, one
// with the cache and one without, answer the same unrelated prompts in turn, so that what else the
// machine does falls on both; the tree's work is counted in the scheduler's own processor time.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <condition_variable>
#include <mutex>

#include "apps/bench/report.h"
#include "apps/commands.h"
#include "apps/session.h"
#include "base/clock.h"
#include "base/rng.h"

namespace espalier::apps {
namespace {

constexpr double kTreeShareAsked = 0.003, kThroughputLostAsked = 0.005;

struct Options {
  int32_t requests = 32, prompt = 256, output = 32, repeats = 11;
  std::filesystem::path json;
};

// One engine's part of all repeats.
struct Side {
  std::unique_ptr<Engine> engine;
  double seconds = 0;
};

// Counts ends.
class Gate {
 public:
  explicit Gate(int32_t count) : left_(count) {}
  void end(const FinishReason& reason) {
    std::lock_guard lock(mutex_);
    if (reason.type == FinishReason::Type::kError && failed_.ok()) failed_ = reason.status;
    if (--left_ == 0) done_.notify_all();
  }
  Status wait() {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return left_ == 0; });
    return failed_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  int32_t left_;
  Status failed_;
};

// Seconds for all requests at once. Prompts are drawn anew from `seed`: no two share a prefix, here
// or in any repeat.
Result<double> run_once(Side& side, const Options& options, uint64_t seed) {
  Rng rng(seed);
  const auto vocab = static_cast<uint64_t>(side.engine->model_info().vocab_size);
  std::vector<GenerateRequest> requests(static_cast<size_t>(options.requests));
  for (GenerateRequest& request : requests) {
    for (int32_t i = 0; i < options.prompt; ++i)
      request.input_ids.push_back(static_cast<TokenId>(rng.below(vocab)));
    request.sampling = {.max_new_tokens = options.output, .temperature = 0.0f, .ignore_eos = true};
  }
  const auto gate = std::make_shared<Gate>(options.requests);  // shared with the sinks
  const SteadyClock clock;
  const TimePoint start = clock.now();
  for (GenerateRequest& request : requests)
    ESP_RETURN_IF_ERROR([&]() -> Status {
      const auto rid = side.engine->submit(std::move(request), [gate](TokenEvent&& event) {
        if (event.finish) gate->end(*event.finish);
      });
      return rid ? Status() : rid.error();
    }());
  ESP_RETURN_IF_ERROR(gate->wait());
  const double seconds = to_seconds(clock.now() - start);
  side.seconds += seconds;
  return seconds;
}

double quantile(std::vector<double> sorted, double share) {
  std::ranges::sort(sorted);
  return sorted[static_cast<size_t>(share * static_cast<double>(sorted.size() - 1) + 0.5)];
}

struct Measured {
  std::vector<double> ratios;  // seconds without the cache, to seconds with it: of each repeat
  double tree_seconds = 0, run_seconds = 0;
  double seconds_on = 0, seconds_off = 0;
};

Result<Measured> measure(AppConfig config, const Options& options) {
  Side on, off;
  config.engine.time_tree_work = true;
  config.engine.disable_radix_cache = false;
  ESP_ASSIGN_OR_RETURN(on.engine, start_engine(config));
  config.engine.disable_radix_cache = true;
  config.engine.schedule_policy = "fcfs";
  ESP_ASSIGN_OR_RETURN(off.engine, start_engine(config));
  for (Side* side : {&on, &off})  // pages are backed and threads are warm
    if (const auto warm = run_once(*side, options, 1); !warm) return fail(warm.error());
  on.seconds = off.seconds = 0;
  const double tree_before = on.engine->stats().tree_seconds_total;
  Measured m;
  for (int32_t i = 0; i < options.repeats; ++i) {
    const auto seed = static_cast<uint64_t>(i) + 2;
    double seconds[2] = {};  // on, off; who goes first changes
    for (const int turn : {i % 2, 1 - i % 2}) {
      ESP_ASSIGN_OR_RETURN(seconds[turn], run_once(turn == 0 ? on : off, options, seed));
    }
    m.ratios.push_back(seconds[1] / seconds[0]);
  }
  m.tree_seconds = on.engine->stats().tree_seconds_total - tree_before;
  m.run_seconds = m.seconds_on = on.seconds;
  m.seconds_off = off.seconds;
  if (on.engine->stats().cached_tokens_total > on.engine->stats().prompt_tokens_total / 100)
    return fail(error(StatusCode::kInternal, "prompts shared what they should not"));
  return m;
}

}  // namespace

int run_bench_overhead(const std::vector<std::string>& args) {
  AppConfig config;
  config.log_level = "warning";
  Options options;
  SettingTable table;
  table.group("Load");
  table.integer("requests", options.requests, 1, 4096, "unrelated prompts at once");
  table.integer("prompt-len", options.prompt, 1, 1 << 18, "tokens of each");
  table.integer("output-len", options.output, 1, 1 << 18, "tokens of each answer");
  table.integer("repeats", options.repeats, 1, 10000, "pairs of runs, cache on and off");
  table.group("Output");
  table.path("json", options.json, "write the figures to this file too");
  CommandLine command{"espalier bench overhead",
                      "Measures what the radix cache costs where nothing is shared.",
                      "Example:\n  espalier bench overhead --repeats 31 --json overhead.json",
                      "",
                      {}};
  if (const auto exit_code = parse_engine_command(command, table, config, args)) return *exit_code;
  const Result<Measured> m = measure(config, options);
  if (!m) return report(m.error(), kExitFailure);
  const double share = m->tree_seconds / m->run_seconds;
  const double lost = 1 - quantile(m->ratios, 0.5);
  const double low = 1 - quantile(m->ratios, 0.75), high = 1 - quantile(m->ratios, 0.25);
  const double tokens =
      static_cast<double>(options.requests) * (options.prompt + options.output) * options.repeats;
  fmt::print("{} prompts of {} tokens, {} out, nothing shared; {} repeats, on and off in turn\n",
             options.requests, options.prompt, options.output, options.repeats);
  fmt::print("tree work        {:>8.4f} % of run time (asked: at most {} %); processor time\n",
             100 * share, 100 * kTreeShareAsked);
  fmt::print("throughput lost  {:>8.2f} % (quartiles {:.2f} to {:.2f}; asked: at most {} %)\n",
             100 * lost, 100 * low, 100 * high, 100 * kThroughputLostAsked);
  fmt::print("tokens a second  {:>8.0f} with the cache, {:.0f} without\n", tokens / m->seconds_on,
             tokens / m->seconds_off);
  const boost::json::object json{{"requests", options.requests},
                                 {"prompt_len", options.prompt},
                                 {"output_len", options.output},
                                 {"repeats", options.repeats},
                                 {"tree_seconds", m->tree_seconds},
                                 {"run_seconds", m->run_seconds},
                                 {"tree_share", share},
                                 {"tree_share_asked", kTreeShareAsked},
                                 {"throughput", tokens / m->seconds_on},
                                 {"throughput_cache_off", tokens / m->seconds_off},
                                 {"throughput_lost", lost},
                                 {"throughput_lost_quartiles", boost::json::array{low, high}},
                                 {"throughput_lost_asked", kThroughputLostAsked}};
  return write_file(boost::json::serialize(json) + "\n", options.json);
}

}  // namespace espalier::apps
