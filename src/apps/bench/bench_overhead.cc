// espalier bench overhead: what the radix cache costs where nothing is shared. Two engines, one
// with the cache and one without, answer the same unrelated prompts in short slices that alternate,
// and what is compared is processor time, so that whatever else the machine does falls on neither;
// the median of many pairs is told with its interval of confidence. A third engine then times the
// tree's work itself, which costs too much to do it meanwhile.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <condition_variable>
#include <ctime>
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
  int32_t requests = 8, prompt = 128, output = 16, repeats = 200, rounds = 5;
  bool control = false;
  std::filesystem::path json;
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

double processor_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

struct Slice {
  double seconds = 0, processor_seconds = 0;
};

// All requests at once: the engine stands still until it has them, so that a slice is the same
// steps every time. Prompts are drawn anew from `seed`: no two share a prefix, here or in any other
// slice.
Result<Slice> run_slice(Engine& engine, const Options& options, uint64_t seed) {
  Rng rng(seed);
  const auto vocab = static_cast<uint64_t>(engine.model_info().vocab_size);
  std::vector<GenerateRequest> requests(static_cast<size_t>(options.requests));
  for (GenerateRequest& request : requests) {
    for (int32_t i = 0; i < options.prompt; ++i)
      request.input_ids.push_back(static_cast<TokenId>(rng.below(vocab)));
    request.sampling = {.max_new_tokens = options.output, .temperature = 0.0f, .ignore_eos = true};
  }
  const auto gate = std::make_shared<Gate>(options.requests);  // shared with the sinks
  ESP_RETURN_IF_ERROR(engine.pause_generation(Engine::PauseMode::kInPlace));
  const SteadyClock clock;
  const TimePoint start = clock.now();
  const double processor_start = processor_seconds();
  for (GenerateRequest& request : requests) {
    const auto rid = engine.submit(std::move(request), [gate](TokenEvent&& event) {
      if (event.finish) gate->end(*event.finish);
    });
    if (!rid) return fail(rid.error());
  }
  ESP_RETURN_IF_ERROR(engine.continue_generation());
  ESP_RETURN_IF_ERROR(gate->wait());
  return Slice{to_seconds(clock.now() - start), processor_seconds() - processor_start};
}

double quantile(std::vector<double> values, double share) {
  std::ranges::sort(values);
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1) + 0.5)];
}

// What the cache takes, of pairs of slices with it and without: a share of the throughput.
struct Lost {
  double median = 0;
  double low = 0, high = 0;  // 95 % confidence of the median, whatever the distribution
};
Lost lost_of(const std::vector<double>& on_over_off) {
  // Of n draws the number below the median is binomial: n/2 and sqrt(n)/2.
  const double half_width = 0.98 / std::sqrt(static_cast<double>(on_over_off.size()));
  const auto lost = [&](double share) {
    return 1 - 1 / quantile(on_over_off, std::clamp(share, 0.0, 1.0));
  };
  return {lost(0.5), lost(0.5 - half_width), lost(0.5 + half_width)};
}

struct Measured {
  std::vector<double> processor_ratios, wall_ratios;  // on over off, of each pair
  double processor_on = 0, processor_off = 0;         // seconds a slice: medians
  double wall_on = 0, wall_off = 0;
  double tree = 0;             // processor seconds a slice
  int32_t num_threads = 1;     // that compute
  std::vector<double> rounds;  // throughput lost, of each round's own pairs
};

Result<std::unique_ptr<Engine>> start_warm(AppConfig config, const Options& options, uint64_t& seed,
                                           bool cache_on, bool time_tree) {
  config.engine.time_tree_work = time_tree;
  config.engine.disable_radix_cache = !cache_on;
  if (!cache_on) config.engine.schedule_policy = "fcfs";
  ESP_ASSIGN_OR_RETURN(auto engine, start_engine(config));
  // Pages are backed, threads are warm, and the cache is full, so that each page is evicted for.
  const int32_t num_slices =
      std::min(engine->stats().kv_tokens_total /
                   std::max(1, options.requests * (options.prompt + options.output)),
               64) +
      2;
  for (int32_t i = 0; i < num_slices; ++i)
    if (const auto warm = run_slice(*engine, options, ++seed); !warm) return fail(warm.error());
  return engine;
}

Result<Measured> measure(AppConfig config, const Options& options) {
  if (config.engine.max_total_tokens == 0)
    config.engine.max_total_tokens = 6 * options.requests * (options.prompt + options.output);
  uint64_t seed = 0;
  Measured m;
  std::vector<double> cpu[2], wall[2];  // on, off
  // Two engines are never quite the same: their weights and buffers lie elsewhere, for better or
  // worse. So each round starts new ones, in turn the one and the other first.
  for (int32_t round = 0, done = 0; round < options.rounds; ++round) {
    std::unique_ptr<Engine> engines[2];
    for (const int turn : {round % 2, 1 - round % 2}) {
      ESP_ASSIGN_OR_RETURN(engines[turn],
                           start_warm(config, options, seed, turn == 0 && !options.control, false));
    }
    m.num_threads = std::max(1, engines[0]->config().num_threads);
    std::vector<double> ratios;
    for (const int32_t end = options.repeats * (round + 1) / options.rounds; done < end; ++done) {
      ++seed;
      for (const int turn : {done % 2, 1 - done % 2}) {  // who goes first changes
        ESP_ASSIGN_OR_RETURN(const Slice slice, run_slice(*engines[turn], options, seed));
        cpu[turn].push_back(slice.processor_seconds);
        wall[turn].push_back(slice.seconds);
      }
      ratios.push_back(cpu[0].back() / cpu[1].back());
      m.wall_ratios.push_back(wall[0].back() / wall[1].back());
    }
    m.processor_ratios.insert(m.processor_ratios.end(), ratios.begin(), ratios.end());
    if (!ratios.empty()) m.rounds.push_back(1 - 1 / quantile(std::move(ratios), 0.5));
    const EngineStats stats = engines[0]->stats();
    if (stats.cached_tokens_total > stats.prompt_tokens_total / 100)
      return fail(error(StatusCode::kInternal, "prompts shared what they should not"));
  }
  m.processor_on = quantile(cpu[0], 0.5), m.processor_off = quantile(cpu[1], 0.5);
  m.wall_on = quantile(wall[0], 0.5), m.wall_off = quantile(wall[1], 0.5);
  ESP_ASSIGN_OR_RETURN(const auto timed, start_warm(config, options, seed, true, true));
  const double before = timed->stats().tree_seconds_total;
  const int32_t num_slices = std::max(options.repeats / 4, 1);
  for (int32_t i = 0; i < num_slices; ++i)
    if (const auto slice = run_slice(*timed, options, ++seed); !slice) return fail(slice.error());
  m.tree = (timed->stats().tree_seconds_total - before) / num_slices;
  return m;
}

}  // namespace

int run_bench_overhead(const std::vector<std::string>& args) {
  AppConfig config;
  config.log_level = "warning";
  Options options;
  SettingTable table;
  table.group("Load");
  table.integer("requests", options.requests, 1, 4096, "unrelated prompts at once: a slice");
  table.integer("prompt-len", options.prompt, 1, 1 << 18, "tokens of each");
  table.integer("output-len", options.output, 1, 1 << 18, "tokens of each answer");
  table.integer("repeats", options.repeats, 1, 100000, "pairs of slices, cache on and off");
  table.integer("rounds", options.rounds, 1, 1000, "of the pairs, each with new engines");
  table.toggle("control", options.control,
               "both engines without the cache: what the method shows where there is nothing");
  table.group("Output");
  table.path("json", options.json, "write the figures to this file too");
  CommandLine command{
      "espalier bench overhead",
      "Measures what the radix cache costs where nothing is shared, in processor time.",
      "Example:\n  espalier bench overhead --repeats 1000 --json overhead.json",
      "",
      {}};
  if (const auto exit_code = parse_engine_command(command, table, config, args)) return *exit_code;
  const Result<Measured> m = measure(config, options);
  if (!m) return report(m.error(), kExitFailure);
  // The time a slice takes when its threads have a processor each.
  const double run_seconds = m->processor_on / m->num_threads;
  const double share = m->tree / run_seconds;
  const Lost lost = lost_of(m->processor_ratios), wall = lost_of(m->wall_ratios);
  const double tokens = static_cast<double>(options.requests) * (options.prompt + options.output);
  fmt::print(
      "{} prompts of {} tokens, {} out, nothing shared, every page evicted for; {} pairs of "
      "slices, "
      "cache on and off\n",
      options.requests, options.prompt, options.output, options.repeats);
  fmt::print(
      "tree work        {:>8.3f} % of run time (asked: at most {} %); {:.0f} us of {:.1f} ms\n",
      100 * share, 100 * kTreeShareAsked, 1e6 * m->tree, 1e3 * run_seconds);
  fmt::print(
      "throughput lost  {:>8.2f} % of processor time, 95 % sure {:.2f} to {:.2f} (asked: at "
      "most {} %)\n",
      100 * lost.median, 100 * lost.low, 100 * lost.high, 100 * kThroughputLostAsked);
  std::string each;
  for (const double of_round : m->rounds) each += fmt::format(" {:.2f}", 100 * of_round);
  fmt::print("  of each round {} %\n", each);
  fmt::print("                 {:>8.2f} % by the clock, {:.2f} to {:.2f}\n", 100 * wall.median,
             100 * wall.low, 100 * wall.high);
  fmt::print("tokens a second  {:>8.0f} with the cache, {:.0f} without, by the clock\n",
             tokens / m->wall_on, tokens / m->wall_off);
  const boost::json::object json{
      {"requests", options.requests},
      {"prompt_len", options.prompt},
      {"output_len", options.output},
      {"repeats", options.repeats},
      {"num_threads", m->num_threads},
      {"tree_seconds", m->tree},
      {"rounds", boost::json::array(m->rounds.begin(), m->rounds.end())},
      {"processor_seconds", m->processor_on},
      {"processor_seconds_cache_off", m->processor_off},
      {"tree_share", share},
      {"tree_share_asked", kTreeShareAsked},
      {"throughput", tokens / m->wall_on},
      {"throughput_cache_off", tokens / m->wall_off},
      {"throughput_lost", lost.median},
      {"throughput_lost_interval", boost::json::array{lost.low, lost.high}},
      {"throughput_lost_by_clock", wall.median},
      {"throughput_lost_by_clock_interval", boost::json::array{wall.low, wall.high}},
      {"throughput_lost_asked", kThroughputLostAsked}};
  return write_file(boost::json::serialize(json) + "\n", options.json);
}

}  // namespace espalier::apps
