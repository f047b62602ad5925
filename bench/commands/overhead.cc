// espalier_bench overhead: what the radix cache costs where nothing is shared. Two engines, one
// with the cache and one without, answer the same unrelated prompts in short slices that alternate,
// and their processor time is compared, which other load on the system does not change. The median
// of many pairs is reported with its confidence interval. The tree's own work is timed by replaying
// a slice's operations on a cache of the same size, because timing them inside an engine costs more
// than the operations.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <ctime>

#include "apps/bench/report.h"
#include "apps/progress.h"
#include "apps/session.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/rng.h"
#include "bench/commands/commands.h"
#include "bench/pending_requests.h"
#include "cache/prefix_cache.h"
#include "engine/executor/executor.h"
#include "engine/startup/start_cpu.h"
#include "engine/startup/system_info.h"

namespace espalier::bench {
using namespace apps;
namespace {

constexpr double kTreeShareAsked = 0.003, kThroughputLostAsked = 0.005;

struct Options {
  int32_t requests = 8, prompt = 128, output = 16, repeats = 200;
  bool control = false;
  FigureOutput figures;
};

double processor_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// One executor for several engines, of which one runs at a time. Each engine has a Turn, which maps
// the engine's step numbers to the executor's.
struct SharedExecutor {
  std::unique_ptr<Executor> executor;
  uint64_t step = 0;
};
class Turn final : public Executor {
 public:
  explicit Turn(std::shared_ptr<SharedExecutor> shared) : shared_(std::move(shared)) {}

  void launch(const ForwardBatch& batch) override {
    ForwardBatch& launched = launched_[batch.step % kMaxInFlight];
    launched = batch;
    launched.step = ++shared_->step;
    shared_->executor->launch(launched);
  }
  void provide_masks(uint64_t, const MaskView&) override {}  // no request here has a grammar
  const StepResult& wait(uint64_t step) override {
    result_ = shared_->executor->wait(launched_[step % kMaxInFlight].step);
    result_.step = step;
    return result_;
  }

 private:
  const std::shared_ptr<SharedExecutor> shared_;  // of all turns, the last of which ends it
  ForwardBatch launched_[kMaxInFlight];
  StepResult result_;
};

struct Slice {
  double seconds = 0, processor_seconds = 0;
};

// Runs all requests at once. The engine is paused until it has all of them, so that every slice has
// the same steps, and again afterwards, so that another engine can use the executor. Prompts are
// drawn from `seed`; no two share a prefix, also across slices that are still cached.
Result<Slice> run_slice(Engine& engine, const Options& options, uint64_t seed) {
  Rng rng(seed);
  const auto vocab = static_cast<uint64_t>(engine.model_info().vocab_size);
  std::vector<GenerateRequest> requests(static_cast<size_t>(options.requests));
  for (size_t r = 0; r < requests.size(); ++r) {
    GenerateRequest& request = requests[r];
    request.input_ids.push_back(static_cast<TokenId>((seed * requests.size() + r) % vocab));
    while (request.input_ids.size() < static_cast<size_t>(options.prompt))
      request.input_ids.push_back(static_cast<TokenId>(rng.below(vocab)));
    request.sampling = {.max_new_tokens = options.output, .temperature = 0.0f, .ignore_eos = true};
  }
  // Shared with the sinks, because a failed submission returns before the others have ended.
  const auto pending = std::make_shared<PendingRequests>(options.requests);
  const SteadyClock clock;
  const TimePoint start = clock.now();
  const double processor_start = processor_seconds();
  for (GenerateRequest& request : requests) {
    const auto rid =
        engine.submit(std::move(request), [pending](TokenEvent&& event) { pending->add(event); });
    if (!rid) return fail(rid.error());
  }
  ESP_RETURN_IF_ERROR(engine.continue_generation());
  ESP_RETURN_IF_ERROR(pending->wait());
  ESP_RETURN_IF_ERROR(engine.pause_generation(Engine::PauseMode::kInPlace));
  return Slice{to_seconds(clock.now() - start), processor_seconds() - processor_start};
}

double quantile(std::vector<double> values, double share) {
  std::ranges::sort(values);
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1) + 0.5)];
}

// The share of the throughput that the cache costs, over pairs of slices with it and without.
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

// The parts that all engines share.
struct Ground {
  std::shared_ptr<SharedExecutor> shared;
  ModelInfo info;
  EngineConfig config;  // effective
};

Result<Ground> prepare(AppConfig& app, const Options& options) {
  EngineConfig& config = app.engine;
  if (config.compute.device == "cuda")
    return fail(invalid_argument("this is measured on the CPU: leave --device out"));
  config.compute.device = "cpu";
  config.model.skip_tokenizer_init = true;
  if (config.cache.max_total_tokens == 0)
    config.cache.max_total_tokens = 6 * options.requests * (options.prompt + options.output);
  ESP_ASSIGN_OR_RETURN(config.model.model_path, resolve_model_path(config.model.model_path));
  ESP_ASSIGN_OR_RETURN(StartedExecutor started, start_cpu_executor(config, read_system_info()));
  return Ground{std::make_shared<SharedExecutor>(std::move(started.executor)),
                std::move(started.info), std::move(started.config)};
}

// A paused engine after a warm-up: its pages are backed by memory, its threads are warm, and its
// cache is full, so that each further page needs an eviction.
Result<std::unique_ptr<Engine>> start_warm(const Ground& ground, const Options& options, bool cache,
                                           uint64_t& seed) {
  EngineConfig config = ground.config;
  config.cache.disable_radix_cache = !cache;
  if (!cache) config.schedule.schedule_policy = "fcfs";
  ESP_ASSIGN_OR_RETURN(auto engine,
                       Engine::create(config, {.executor = std::make_unique<Turn>(ground.shared),
                                               .info = ground.info}));
  ESP_RETURN_IF_ERROR(engine->pause_generation(Engine::PauseMode::kInPlace));
  const int32_t tokens = options.requests * (options.prompt + options.output);
  const int32_t num_slices = std::min(config.cache.max_total_tokens / tokens, 64) + 2;
  for (int32_t i = 0; i < num_slices; ++i)
    if (const auto warm = run_slice(*engine, options, ++seed); !warm) return fail(warm.error());
  return engine;
}

// The scheduler's calls to the cache for one prompt and its answer without a shared prefix.
void replay_prompt(PrefixCache& cache, std::span<const TokenId> tokens, const Options& options) {
  const auto prompt = tokens.first(static_cast<size_t>(options.prompt));
  static_cast<void>(cache.match({}, prompt));
  SequencePages pages = cache.begin({}, prompt.first(prompt.size() - 1));
  DetachedPages replaced;
  ESP_CHECK(cache.grow(pages, options.prompt));
  cache.share(pages, prompt, replaced);
  for (int32_t i = 1; i <= options.output; ++i) ESP_CHECK(cache.grow(pages, options.prompt + i));
  cache.finish(std::move(pages), tokens);
}

// Processor seconds of a slice's cache operations, in a cache as large as the engines' that is
// full.
Result<double> tree_seconds_of_slice(const Ground& ground, const Options& options, uint64_t seed) {
  const EngineConfig& config = ground.config;
  ESP_ASSIGN_OR_RETURN(auto cache, make_prefix_cache({.num_pages = config.cache.max_total_tokens /
                                                                   config.cache.page_size,
                                                      .page_size = config.cache.page_size}));
  Rng rng(seed);
  const int32_t length = options.prompt + options.output;
  const int32_t num_fill = config.cache.max_total_tokens / length + 1;
  const int32_t num_timed = options.requests * std::max(options.repeats / 4, 1);
  std::vector<std::vector<TokenId>> prompts(static_cast<size_t>(num_fill + num_timed));
  for (std::vector<TokenId>& tokens : prompts)
    for (int32_t i = 0; i < length; ++i)
      tokens.push_back(static_cast<TokenId>(
          rng.below(static_cast<uint64_t>(std::max(ground.info.vocab_size, 1)))));
  double start = 0;
  for (int32_t i = 0; i < num_fill + num_timed; ++i) {
    if (i == num_fill) start = processor_seconds();
    replay_prompt(*cache, prompts[static_cast<size_t>(i)], options);
  }
  return (processor_seconds() - start) * options.requests / num_timed;
}

Result<Measured> measure(AppConfig& app, const Options& options) {
  ESP_ASSIGN_OR_RETURN(const Ground ground, prepare(app, options));
  uint64_t seed = 0;
  Measured m;
  m.num_threads = std::max(1, ground.config.compute.num_threads);
  std::unique_ptr<Engine> engines[2];  // with the cache and without
  for (const int which : {0, 1}) {
    const bool cache = which == 0 && !options.control;
    ESP_ASSIGN_OR_RETURN(engines[which], start_warm(ground, options, cache, seed));
  }
  std::vector<double> cpu[2], wall[2];
  ProgressBar progress("pairs of slices", options.repeats);
  for (int32_t i = 0; i < options.repeats; ++i) {
    ++seed;
    for (const int which : {i % 2, 1 - i % 2}) {  // who goes first changes
      ESP_ASSIGN_OR_RETURN(const Slice slice, run_slice(*engines[which], options, seed));
      cpu[which].push_back(slice.processor_seconds);
      wall[which].push_back(slice.seconds);
    }
    m.processor_ratios.push_back(cpu[0].back() / cpu[1].back());
    m.wall_ratios.push_back(wall[0].back() / wall[1].back());
    progress.advance();
  }
  m.processor_on = quantile(cpu[0], 0.5), m.processor_off = quantile(cpu[1], 0.5);
  m.wall_on = quantile(wall[0], 0.5), m.wall_off = quantile(wall[1], 0.5);
  const EngineStats stats = engines[0]->stats();
  if (stats.tokens.cached > stats.tokens.prompt / 100)
    return fail(error(StatusCode::kInternal, "prompts shared what they should not"));

  ESP_ASSIGN_OR_RETURN(m.tree, tree_seconds_of_slice(ground, options, seed));
  return m;
}

}  // namespace

int run_overhead(const std::vector<std::string>& args) {
  AppConfig config;
  config.log_level = "warning";
  Options options;
  SettingTable table;
  table.group("Load");
  table.integer("requests", options.requests, 1, 4096, "unrelated prompts at once: a slice");
  table.integer("prompt-len", options.prompt, 1, 1 << 18, "tokens of each");
  table.integer("output-len", options.output, 1, 1 << 18, "tokens of each answer");
  table.integer("repeats", options.repeats, 1, 100000, "pairs of slices, cache on and off");
  table.toggle("control", options.control,
               "both engines without the cache: what the method shows where there is nothing");
  table.group("Output");
  options.figures.add_setting(table);
  CommandLine command{
      "espalier_bench overhead",
      "Measures what the radix cache costs where nothing is shared, in processor time.",
      "Example:\n  espalier_bench overhead --repeats 1000 --json overhead.json",
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
  options.figures.print(
      "{} prompts of {} tokens, {} out, nothing shared, every page evicted for; {} pairs of "
      "slices, "
      "cache on and off\n",
      options.requests, options.prompt, options.output, options.repeats);
  options.figures.print(
      "tree work        {:>8.3f} % of run time (asked: at most {} %); {:.0f} us of {:.1f} ms\n",
      100 * share, 100 * kTreeShareAsked, 1e6 * m->tree, 1e3 * run_seconds);
  options.figures.print(
      "throughput lost  {:>8.2f} % of processor time, 95 % sure {:.2f} to {:.2f} (asked: at "
      "most {} %)\n",
      100 * lost.median, 100 * lost.low, 100 * lost.high, 100 * kThroughputLostAsked);
  options.figures.print("                 {:>8.2f} % by the clock, {:.2f} to {:.2f}\n",
                        100 * wall.median, 100 * wall.low, 100 * wall.high);
  options.figures.print("tokens a second  {:>8.0f} with the cache, {:.0f} without, by the clock\n",
                        tokens / m->wall_on, tokens / m->wall_off);
  const boost::json::object json{
      {"requests", options.requests},
      {"prompt_len", options.prompt},
      {"output_len", options.output},
      {"repeats", options.repeats},
      {"num_threads", m->num_threads},
      {"tree_seconds", m->tree},
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
  return options.figures.finish(boost::json::serialize(json));
}

}  // namespace espalier::bench
