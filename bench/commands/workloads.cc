// espalier_bench workloads: the SGLang paper's programs, with the prefix cache and without.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <boost/json.hpp>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <thread>

#include "apps/bench/report.h"
#include "apps/session.h"
#include "bench/commands/commands.h"
#include "bench/commands/partial_reuse.h"
#include "bench/commands/workload_plots.h"
#include "bench/workloads/plot.h"
#include "bench/workloads/programs.h"
#include "bench/workloads/recording_engine.h"
#include "lang/backends/engine_backend.h"

namespace espalier::bench {
using namespace apps;
namespace {

namespace json = boost::json;
using workloads::Call;
using workloads::Optimum;
using workloads::Workload;

struct WorkloadOptions {
  std::vector<std::string> only;
  double scale = 1;
  int concurrency = 16;
  bool ablations = false;
  std::filesystem::path data, plots, from;
  FigureOutput output;
};

// How one run differs from the default run.
struct Variant {
  std::string name;
  bool cache = true;
  int64_t pool_tokens = 0;  // 0: room for all
  std::string policy;       // empty: the configuration's
  PartialReuse reuse;
  bool parallel = true, hint = true;
  int num_programs = 0;  // 0: all, at full load; else so many, one after the other
};

struct WorkloadFigures {
  double seconds = 0, programs_per_second = 0;
  double latency = 0;  // of a program, mean
  double first_token = 0, batch_size = 0, hit_rate = 0, busy = 0;
  Optimum optimum;
};

double mean(double sum, double count) { return count > 0 ? sum / count : 0; }

class Bench {
 public:
  Bench(const AppConfig& config, const WorkloadOptions& options)
      : config_(config), options_(options) {}

  Result<WorkloadFigures> run(const Workload& workload, const Variant& variant) {
    AppConfig config = config_;
    EngineConfig& engine_config = config.engine;
    engine_config.cache.disable_radix_cache = !variant.cache;
    if (!variant.policy.empty()) engine_config.schedule.schedule_policy = variant.policy;
    if (!variant.cache) engine_config.schedule.schedule_policy = "fcfs";
    if (variant.pool_tokens > 0)
      engine_config.cache.max_total_tokens = static_cast<int32_t>(variant.pool_tokens);
    ESP_ASSIGN_OR_RETURN(auto started,
                         start_engine(config, make_partial_reuse_cache(variant.reuse)));
    const auto engine = std::make_shared<workloads::RecordingEngine>(std::move(started));
    ESP_ASSIGN_OR_RETURN(const auto backend, lang::engine_backend(engine));

    const std::vector<workloads::Job> jobs = workload.make(
        {.num_programs = std::max(1, static_cast<int>(workload.num_programs * options_.scale)),
         .data = options_.data,
         .parallel = variant.parallel});
    const bool alone = variant.num_programs > 0;
    const size_t num_jobs =
        alone ? std::min(jobs.size(), static_cast<size_t>(variant.num_programs)) : jobs.size();
    lang::RunOptions run_options;
    run_options.backend = backend;
    run_options.fork_hint = variant.hint;

    std::atomic<size_t> next{0};
    std::vector<double> latencies(num_jobs);
    std::vector<Status> failures(num_jobs);
    const SteadyClock clock;
    const TimePoint start = clock.now();
    const auto work = [&] {
      for (size_t i = next++; i < num_jobs; i = next++) {
        const TimePoint begin = clock.now();
        const lang::State state = lang::run(jobs[i], run_options);
        latencies[i] = to_seconds(clock.now() - begin);
        failures[i] = state.error();
      }
    };
    std::vector<std::thread> threads;
    for (int t = 0; t < (alone ? 1 : options_.concurrency); ++t) threads.emplace_back(work);
    for (std::thread& thread : threads) thread.join();
    WorkloadFigures m;
    m.seconds = to_seconds(clock.now() - start);
    for (const Status& failure : failures) ESP_RETURN_IF_ERROR(failure);
    m.programs_per_second = mean(static_cast<double>(num_jobs), m.seconds);
    for (const double latency : latencies) m.latency += latency / static_cast<double>(num_jobs);
    return add_counts(m, *engine);
  }

 private:
  static WorkloadFigures add_counts(WorkloadFigures m, const workloads::RecordingEngine& engine) {
    const std::vector<Call> calls = engine.calls();
    m.optimum = workloads::optimum_of(calls);
    int64_t cached = 0;
    for (const Call& call : calls) {
      cached += call.cached;
      m.first_token += call.first_token_seconds / static_cast<double>(calls.size());
    }
    m.hit_rate = mean(static_cast<double>(cached), static_cast<double>(m.optimum.prompt_tokens));
    const EngineStats stats = engine.stats();
    m.batch_size = mean(static_cast<double>(stats.steps.num_entries),
                        static_cast<double>(stats.steps.num_steps));
    return m;
  }

  const AppConfig& config_;
  const WorkloadOptions& options_;
};

json::object json_of(const WorkloadFigures& m) {
  return {{"throughput", m.programs_per_second},
          {"latency", m.latency},
          {"first_token_latency", m.first_token},
          {"batch_size", m.batch_size},
          {"hit_rate", m.hit_rate},
          {"hit_rate_optimal", m.optimum.hit_rate()}};
}

// The figures of one workload.
struct WorkloadRow {
  std::string name;
  WorkloadFigures on, off, alone_on, alone_off;
  std::vector<std::pair<double, WorkloadFigures>> pools;           // by share of the unique tokens
  std::vector<std::pair<std::string, WorkloadFigures>> ablations;  // with half of them
  std::vector<std::pair<double, WorkloadFigures>> shares;          // of each match that is used
};

constexpr int kProgramsAlone = 3;

Result<WorkloadRow> measure(Bench& bench, const Workload& workload,
                            const WorkloadOptions& options) {
  WorkloadRow row{.name = workload.name};
  ESP_ASSIGN_OR_RETURN(row.on, bench.run(workload, {}));
  ESP_ASSIGN_OR_RETURN(row.off, bench.run(workload, {.cache = false}));
  ESP_ASSIGN_OR_RETURN(row.alone_on, bench.run(workload, {.num_programs = kProgramsAlone}));
  ESP_ASSIGN_OR_RETURN(row.alone_off,
                       bench.run(workload, {.cache = false, .num_programs = kProgramsAlone}));
  // A pool of a share of the unique tokens, and of the longest call at least.
  const Optimum& best = row.on.optimum;
  const auto pool = [&](double share) {
    return std::max<int64_t>(static_cast<int64_t>(share * static_cast<double>(best.unique_tokens)),
                             best.longest + 1);
  };
  for (const double share : {0.25, 0.5, 1.0}) {
    ESP_ASSIGN_OR_RETURN(const WorkloadFigures m,
                         bench.run(workload, {.pool_tokens = pool(share)}));
    row.pools.emplace_back(share, m);
  }
  if (!options.ablations) return row;
  const int64_t half = pool(0.5);
  const Variant variants[] = {
      {.name = "full", .pool_tokens = half},
      {.name = "no cache", .cache = false, .pool_tokens = half},
      {.name = "table", .pool_tokens = half, .reuse = {.whole_prompts_only = true}},
      {.name = "fcfs", .pool_tokens = half, .policy = "fcfs"},
      {.name = "random", .pool_tokens = half, .policy = "random"},
      {.name = "no parallelism", .pool_tokens = half, .parallel = false},
      {.name = "no hint", .pool_tokens = half, .hint = false},
  };
  for (const Variant& variant : variants) {
    ESP_ASSIGN_OR_RETURN(const WorkloadFigures m, bench.run(workload, variant));
    row.ablations.emplace_back(variant.name, m);
  }
  for (const double share : {0.0, 0.25, 0.5, 0.75, 1.0}) {
    ESP_ASSIGN_OR_RETURN(const WorkloadFigures m,
                         bench.run(workload, {.reuse = {.match_share = share}}));
    row.shares.emplace_back(share, m);
  }
  return row;
}

json::object json_of(const WorkloadRow& row) {
  json::object out{{"name", row.name},
                   {"hit_rate", row.on.hit_rate},
                   {"hit_rate_optimal", row.on.optimum.hit_rate()},
                   {"throughput", row.on.programs_per_second},
                   {"throughput_cache_off", row.off.programs_per_second},
                   {"latency", row.alone_on.latency},
                   {"latency_cache_off", row.alone_off.latency},
                   {"first_token_latency", row.on.first_token},
                   {"first_token_latency_cache_off", row.off.first_token},
                   {"batch_size", row.on.batch_size},
                   {"batch_size_cache_off", row.off.batch_size},
                   {"prompt_tokens", row.on.optimum.prompt_tokens},
                   {"unique_tokens", row.on.optimum.unique_tokens}};
  json::array pools, ablations, shares;
  for (const auto& [share, m] : row.pools) {
    pools.push_back(json_of(m));
    pools.back().as_object()["pool_share"] = share;
  }
  for (const auto& [name, m] : row.ablations) {
    ablations.push_back(json_of(m));
    ablations.back().as_object()["name"] = name;
  }
  for (const auto& [share, m] : row.shares) {
    shares.push_back(json_of(m));
    shares.back().as_object()["match_share"] = share;
  }
  out["pools"] = std::move(pools);
  if (!row.ablations.empty()) {
    out["ablations"] = std::move(ablations);
    out["match_shares"] = std::move(shares);
  }
  return out;
}

void print_row(const WorkloadRow& row, const FigureOutput& output) {
  const auto percent = [](double part) { return fmt::format("{:.1f}", 100 * part); };
  output.print(
      "{:<20} {:>6} {:>6} {:>6} |{:>8.2f} {:>8.2f} {:>6.2f} |{:>8.3f} {:>8.3f} |{:>7.3f} "
      "{:>7.3f} |{:>6.1f} |",
      row.name, percent(row.on.hit_rate), percent(row.on.optimum.hit_rate()),
      percent(mean(row.on.hit_rate, row.on.optimum.hit_rate())), row.on.programs_per_second,
      row.off.programs_per_second, mean(row.on.programs_per_second, row.off.programs_per_second),
      row.alone_on.latency, row.alone_off.latency, row.on.first_token, row.off.first_token,
      row.on.batch_size);
  for (const auto& [share, m] : row.pools) output.print(" {:>5}", percent(m.hit_rate));
  output.print("\n");
  if (!row.ablations.empty()) {
    output.print("  half the pool, programs/s (hits %):");
    for (const auto& [name, m] : row.ablations)
      output.print("  {} {:.2f} ({})", name, m.programs_per_second, percent(m.hit_rate));
    output.print("\n  used of each match, programs/s (hits %, batch):");
    for (const auto& [share, m] : row.shares)
      output.print("  {:.2f} {:.2f} ({}, {:.1f})", share, m.programs_per_second,
                   percent(m.hit_rate), m.batch_size);
    output.print("\n");
  }
}

Result<std::vector<const Workload*>> chosen(const WorkloadOptions& options) {
  std::vector<const Workload*> found;
  std::vector<std::string> names;
  for (const Workload& workload : workloads::all_workloads()) {
    names.push_back(workload.name);
    if (options.only.empty() || std::ranges::count(options.only, workload.name) > 0)
      found.push_back(&workload);
  }
  for (const std::string& name : options.only)
    if (std::ranges::count(names, name) == 0)
      return fail(invalid_argument("there is no workload '{}'; there are {}", name,
                                   fmt::join(names, ", ")));
  return found;
}

int draw_again(const WorkloadOptions& options) {
  if (options.plots.empty())
    return report(invalid_argument("--from draws kept results: say where with --plots DIR"),
                  kExitUsage);
  std::ifstream file(options.from);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  boost::system::error_code failed;
  const json::value value = json::parse(text, failed);
  const json::value* const found =
      !failed && value.is_object() ? value.get_object().if_contains("workloads") : nullptr;
  if (found == nullptr || !found->is_array())
    return report(
        invalid_argument("{} holds no JSON that --json has written", options.from.string()),
        kExitUsage);
  const Status status = plot_workloads(found->get_array(), options.plots);
  return status.ok() ? kExitOk : report(status, kExitFailure);
}

}  // namespace

int run_workloads(const std::vector<std::string>& args) {
  AppConfig config;
  config.log_level = "warning";
  WorkloadOptions options;
  if (const char* data = std::getenv("ESPALIER_DATA"))
    options.data = data;
  else if (std::filesystem::exists("../shared/data"))
    options.data = "../shared/data";
  SettingTable table;
  table.group("Workloads");
  table.list("only", options.only, "NAME", "this workload; may be given several times");
  table.number("scale", options.scale, 0.01, 1000, "multiplies the number of programs");
  table.integer("concurrency", options.concurrency, 1, 1024, "programs at once");
  table.toggle("ablations", options.ablations,
               "also without the tree, the order, the parallelism, the hint, parts of matches");
  table.path("data", options.data, "folder with gsm8k_test.jsonl.xz").default_text =
      "ESPALIER_DATA, else ../shared/data";
  table.group("Output");
  options.output.add_setting(table);
  table.path("plots", options.plots, "draw them into this folder, as SVG and PNG");
  table.path("from", options.from, "run nothing: draw what --json wrote to this file");
  CommandLine command{
      "espalier_bench workloads",
      "Runs the SGLang paper's programs with the prefix cache and without it.",
      "Example:\n  espalier_bench workloads --only tree_of_thought --ablations --plots plots",
      "",
      {}};
  if (const auto exit_code = parse_engine_command(command, table, config, args)) return *exit_code;
  if (!options.plots.empty())  // before minutes of work
    if (const Status status = workloads::can_write_png(); !status.ok())
      return report(status, kExitFailure);
  if (!options.from.empty()) return draw_again(options);
  const Result<std::vector<const Workload*>> list = chosen(options);
  if (!list) return report(list.error(), kExitUsage);

  options.output.print("{:<20} {:>20} |{:>24} |{:>17} |{:>15} |{:>6} |{:>18}\n", "", "hits %",
                       "programs/s", "alone, s", "first token, s", "batch", "hits % by pool");
  options.output.print(
      "{:<20} {:>6} {:>6} {:>6} |{:>8} {:>8} {:>6} |{:>8} {:>8} |{:>7} {:>7} |{:>6} |{:>6} "
      "{:>5} {:>5}\n",
      "", "here", "best", "% of", "on", "off", "x", "on", "off", "on", "off", "", "25", "50",
      "100");
  Bench bench(config, options);
  json::array all;
  for (const Workload* workload : *list) {
    const Result<WorkloadRow> row = measure(bench, *workload, options);
    if (!row) return report(row.error(), kExitFailure);
    print_row(*row, options.output);
    all.push_back(json_of(*row));
  }
  if (!options.plots.empty())
    if (const Status status = plot_workloads(all, options.plots); !status.ok())
      return report(status, kExitFailure);
  return options.output.finish(json::serialize(json::object{{"workloads", std::move(all)}}));
}

}  // namespace espalier::bench
