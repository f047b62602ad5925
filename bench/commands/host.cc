// espalier_bench host: the host's time for a step. The whole engine runs without a model: its
// executor returns results at once, so the time between one step's result and the wait for the next
// is the loop's own work (inbox, scheduling, launch, commit, emission of events).
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "apps/bench/report.h"
#include "apps/command_line.h"
#include "base/rng.h"
#include "bench/commands/commands.h"
#include "engine/engine.h"
#include "engine/executor/executor.h"

namespace espalier::bench {
using namespace apps;
namespace {

constexpr TokenId kToken = 7;
constexpr int32_t kVocabSize = 100000;
constexpr size_t kGroup = 64;  // waiting prompts that share a prefix

struct Options {
  int32_t running = 256, waiting = 0;
  int32_t context = 512;   // prompt tokens of what runs
  int32_t output_len = 0;  // 0: what runs never ends; else ends are followed by admissions
  int32_t page_size = 1;
  int32_t steps = 2000;
  std::string policy = "lpm";
  int32_t tenants = 0;  // in turn, with fair shares; 0: without
};

double now_us() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Returns the same token for each step and records the host's time from that result to the wait for
// the next step. It blocks until all requests that should run have arrived, and, when all of them
// decode, again until all requests that should wait have arrived.
class StopWatch final : public Executor {
 public:
  StopWatch(int32_t num_running, int32_t num_steps)
      : num_running_(static_cast<size_t>(num_running)), num_steps_(static_cast<size_t>(num_steps)) {
    host_us_.reserve(num_steps_);
  }

  void run_until_full() {
    go_on(Stage::kFilling, [this] { return full_; });
  }
  void run_timed() {
    go_on(Stage::kTiming, [this] { return host_us_.size() == num_steps_; });
  }
  Distribution host_us() const { return distribution(host_us_); }

  void launch(const ForwardBatch& batch) override {
    StepResult& result = results_[batch.step % kMaxInFlight];
    result.step = batch.step;
    result.entries.resize(batch.entries.size());
    for (size_t i = 0; i < batch.entries.size(); ++i)
      result.entries[i].token = batch.entries[i].sample ? kToken : -1;
  }
  void provide_masks(uint64_t, const MaskView&) override {}

  const StepResult& wait(uint64_t step) override {
    const double host_us = now_us() - answered_us_;
    const StepResult& result = results_[step % kMaxInFlight];
    std::unique_lock lock(mutex_);
    if (result.entries.size() >= num_running_ && !full_) {
      full_ = true;
      changed_.notify_all();
    }
    changed_.wait(
        lock, [&] { return stage_ == Stage::kTiming || (stage_ == Stage::kFilling && !full_); });
    if (stage_ == Stage::kTiming && ++num_steps_timed_ > kWarmSteps &&
        host_us_.size() < num_steps_) {
      host_us_.push_back(host_us);
      if (host_us_.size() == num_steps_) changed_.notify_all();
    }
    lock.unlock();
    answered_us_ = now_us();
    return result;
  }

 private:
  static constexpr int64_t kWarmSteps = 50;
  enum class Stage { kHeld, kFilling, kTiming };

  template <typename Done>
  void go_on(Stage stage, const Done& done) {
    std::unique_lock lock(mutex_);
    stage_ = stage;
    changed_.notify_all();
    changed_.wait(lock, done);
  }

  const size_t num_running_, num_steps_;
  StepResult results_[kMaxInFlight];
  double answered_us_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  Stage stage_ = Stage::kHeld;
  bool full_ = false;
  int64_t num_steps_timed_ = 0;
  std::vector<double> host_us_;
};

struct Row {
  Options options;
  Distribution host_us;
  EngineStats stats;
};

Result<Row> measure(const Options& options) {
  const bool steady = options.output_len == 0;
  const int32_t max_new_tokens = steady ? options.steps + 200 : options.output_len;
  const int32_t num_pages_each = (options.context + max_new_tokens) / options.page_size + 2;
  EngineConfig config;
  config.model.skip_tokenizer_init = true;
  config.model.context_length = 1 << 20;
  config.cache.page_size = options.page_size;
  config.sampling.random_seed = 1;
  config.schedule.schedule_policy = options.policy;
  if (options.tenants > 0) config.schedule.fair_share = "tenant";
  config.schedule.chunked_prefill_size = -1;  // all begin to decode in the same step
  config.schedule.max_queued_requests = options.waiting + options.running + 1;
  // Steady: a slot is free and memory is not, so each step tries an admission, which fails.
  // Otherwise waiting requests are admitted when others end.
  config.schedule.max_running_requests = options.running + (steady ? 1 : 0);
  config.cache.max_total_tokens = options.running * num_pages_each * options.page_size;
  config.schedule.schedule_conservativeness = steady ? 10 : 1;
  auto executor = std::make_unique<StopWatch>(options.running, options.steps);
  StopWatch& watch = *executor;
  Engine::Parts parts{.executor = std::move(executor),
                      .info = {.vocab_size = kVocabSize, .context_length = 1 << 20}};
  ESP_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                       Engine::create(config, std::move(parts)));

  Rng rng(1);
  std::vector<TokenId> shared;
  int64_t num_submitted = 0;
  const auto submit = [&](int32_t num_tokens, int32_t num_new) -> Status {
    GenerateRequest request;
    request.input_ids.assign(shared.begin(), shared.end());
    while (request.input_ids.size() < static_cast<size_t>(num_tokens))
      request.input_ids.push_back(static_cast<TokenId>(rng.below(kVocabSize)));
    if (options.tenants > 0) request.tenant = std::to_string(num_submitted++ % options.tenants);
    request.sampling.max_new_tokens = num_new;
    request.sampling.ignore_eos = true;
    const Result<std::string> rid = engine->submit(std::move(request), [](TokenEvent&&) {});
    return rid ? Status() : rid.error();
  };
  // Outputs have different lengths, so that requests do not end in the same step.
  const auto output_len = [&] {
    return steady
               ? max_new_tokens
               : static_cast<int32_t>(rng.between(std::max(1, max_new_tokens / 2), max_new_tokens));
  };
  for (int32_t i = 0; i < options.running; ++i)
    ESP_RETURN_IF_ERROR(submit(options.context, output_len()));
  watch.run_until_full();
  for (int32_t i = 0; i < options.waiting; ++i) {
    if (static_cast<size_t>(i) % kGroup == 0) {
      shared.clear();
      for (int32_t t = 0; t < 3 * options.context / 4; ++t)
        shared.push_back(static_cast<TokenId>(rng.below(kVocabSize)));
    }
    ESP_RETURN_IF_ERROR(submit(options.context, output_len()));
  }
  watch.run_timed();
  const EngineStats stats = engine->stats();
  engine->abort("", Engine::AbortScope::kAll);
  return Row{options, watch.host_us(), stats};
}

boost::json::object json_of(const Row& row) {
  return {{"running", row.options.running},
          {"waiting", row.options.waiting},
          {"context", row.options.context},
          {"output_len", row.options.output_len},
          {"page_size", row.options.page_size},
          {"schedule_policy", row.options.policy},
          {"tenants", row.options.tenants},
          {"steps", row.options.steps},
          {"retractions", row.stats.requests.num_retractions},
          {"host_us_per_step",
           {{"p50", row.host_us.median},
            {"p90", row.host_us.p90},
            {"p99", row.host_us.p99},
            {"max", row.host_us.max}}}};
}

std::vector<Options> usual_cases(const Options& base) {
  std::vector<Options> cases;
  const auto add = [&](int32_t running, int32_t waiting, int32_t output_len) {
    cases.push_back(base);
    cases.back().running = running;
    cases.back().waiting = waiting;
    cases.back().output_len = output_len;
  };
  for (const int32_t running : {1, 64, 256, 1024}) add(running, 0, 0);
  add(256, 100000, 0);
  add(256, 100000, 128);
  return cases;
}

}  // namespace

int run_host(const std::vector<std::string>& args) {
  Options options;
  FigureOutput output;
  SettingTable table;
  table.group("Load");
  Setting& running = table.integer("running", options.running, 1, 8192, "sequences that run");
  running.default_text = "1, 64, 256 and 1024 in turn";
  Setting& waiting = table.integer("waiting", options.waiting, 0, 1000000, "sequences that wait");
  waiting.default_text = "0, and 100000 with 256 running";
  table.integer("context", options.context, 4, 1 << 18, "prompt tokens of each");
  table.integer("output-len", options.output_len, 0, 1 << 18,
                "output tokens of each, so that some end and others are admitted; 0: none ends");
  table.integer("page-size", options.page_size, 1, 1024, "tokens of a page");
  table.integer("steps", options.steps, 1, 1000000, "steps that are timed");
  table.text("schedule-policy", options.policy, "NAME", "as of the engine");
  table.integer("tenants", options.tenants, 0, 10000,
                "whose sequences come in turn, with fair shares; 0: without");
  table.group("Output");
  output.add_setting(table);
  CommandLine command{
      "espalier_bench host",
      "Times the host's work a step: the whole engine over an executor that answers at once.",
      "Examples:\n  espalier_bench host\n  espalier_bench host --running 256 --waiting 100000",
      "",
      {}};
  if (const auto exit_code = parse_command_line(command, table, SettingTable(), args))
    return *exit_code;
  const bool one = running.given() || waiting.given();
  // The bound keeps some requests waiting until the last step, even with short outputs.
  const int64_t num_ends_max =
      options.output_len == 0
          ? 0
          : int64_t{options.running} * (options.steps + 100) / std::max(options.output_len / 2, 1) +
                options.running;
  if (one && options.waiting < num_ends_max)
    return report(invalid_argument("outputs of {} tokens end so often that {} sequences must wait: "
                                   "give --waiting {}, or fewer --steps",
                                   options.output_len, num_ends_max, num_ends_max),
                  kExitUsage);

  boost::json::array rows;
  output.print("{:>8} {:>8} {:>8} {:>10} {:>9}   {:>8} {:>8} {:>8} {:>8}   us a step\n", "running",
               "waiting", "context", "output len", "page size", "p50", "p90", "p99", "max");
  for (const Options& c : one ? std::vector<Options>{options} : usual_cases(options)) {
    const Result<Row> row = measure(c);
    if (!row) return report(row.error(), kExitFailure);
    const Distribution& us = row->host_us;
    output.print("{:>8} {:>8} {:>8} {:>10} {:>9}   {:>8.1f} {:>8.1f} {:>8.1f} {:>8.1f}\n",
                 c.running, c.waiting, c.context,
                 c.output_len == 0 ? "no end" : fmt::format("{}", c.output_len), c.page_size,
                 us.median, us.p90, us.p99, us.max);
    rows.push_back(json_of(*row));
  }
  const boost::json::value json = one ? rows[0] : boost::json::value{{"cases", rows}};
  return output.finish(boost::json::serialize(json));
}

}  // namespace espalier::bench
