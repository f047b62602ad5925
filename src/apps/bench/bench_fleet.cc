// espalier bench fleet: the router's policies over a simulated fleet of workers.
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <chrono>
#include <limits>
#include <memory>

#include "apps/bench/report.h"
#include "apps/command_line.h"
#include "apps/commands.h"
#include "apps/progress.h"
#include "apps/route_settings.h"
#include "base/log.h"
#include "router/simulation/fleet.h"

namespace espalier::apps {
namespace {

namespace json = boost::json;
using router::FleetOptions;
using router::FleetResult;

struct FleetCommand {
  FleetOptions fleet;
  std::vector<std::string> policies;
  size_t max_tree_size = size_t{16} << 30;
  FigureOutput output;
};

void add_fleet_settings(SettingTable& table, FleetCommand& command) {
  FleetOptions& fleet = command.fleet;
  table.group("Fleet");
  table.integer("workers", fleet.num_workers, 1, static_cast<int64_t>(kMaxWorkers),
                "servers of an 8 B model on one H200 each, by its measured step times");
  table.integer("cache-units", fleet.speed.cache_units, 1, int64_t{1} << 40,
                "of each worker's prefix cache, of 16 tokens");
  table.number("failures", fleet.failures_per_worker_hour, 0, 10000,
               "deaths of a worker in an hour; its cache is lost");
  table.number("restart-seconds", fleet.restart_seconds, 0.001, 1e6, "until a dead worker is back");
  table.group("Load");
  table.integer("conversations", fleet.num_conversations, 1, int64_t{1} << 40, "in all");
  table.number("request-rate", fleet.requests_per_worker_second, 0.001, 10000,
               "requests a second, of each worker");
  table.number("turns", fleet.turns_mean, 1, 1000, "of a conversation, on average");
  table.integer("system-prompts", fleet.num_system_prompts, 1, 1 << 24,
                "that conversations begin with; the i-th is drawn as often as 1 / i");
  table.integer("seed", fleet.seed, 0, std::numeric_limits<int64_t>::max(),
                "of everything that is drawn");
  table.group("Policies");
  Setting& policies = table.list("policy", command.policies, "NAME",
                                 "to be simulated, each with the same conversations");
  policies.takes_several = true;
  policies.default_text = "cache_aware, round_robin";
  add_policy_option_rows(table, fleet.policy, command.max_tree_size);
  command.output.add_setting(table);
}

json::object row_json(const std::string& policy, const FleetResult& r, double seconds) {
  return {{"policy", policy},
          {"requests", r.requests},
          {"hit_rate", r.hit_rate()},
          {"ideal_hit_rate", r.ideal_hit_rate()},
          {"of_ideal", r.of_ideal()},
          {"load_max_over_mean", r.load_max_over_mean},
          {"in_flight_max_over_mean", r.in_flight_max_over_mean},
          {"in_flight_mean", r.in_flight_mean},
          {"utilisation", r.utilisation},
          {"ttft_p50_ms", r.ttft_p50 * 1e3},
          {"ttft_p99_ms", r.ttft_p99 * 1e3},
          {"failures", r.failures},
          {"retried", r.retried},
          {"cut", r.cut},
          {"lost", r.lost},
          {"tree_nodes", r.tree_nodes},
          {"simulated_seconds", r.simulated_seconds},
          {"seconds", seconds},
          {"digest", fmt::format("{:016x}", r.digest)}};
}

void print_row(const FigureOutput& output, const std::string& policy, const FleetResult& r,
               double seconds) {
  output.print(
      "{:<13} {:>9} {:>6.1f} {:>6.1f} {:>6.1f} {:>6.2f} {:>7.2f} {:>6.1f} {:>5.0f} {:>6.0f} "
      "{:>6.0f} "
      "{:>5} {:>6} {:>5} {:>4} {:>6.0f}\n",
      policy, r.requests, 100 * r.hit_rate(), 100 * r.ideal_hit_rate(), 100 * r.of_ideal(),
      r.load_max_over_mean, r.in_flight_max_over_mean, r.in_flight_mean, 100 * r.utilisation,
      r.ttft_p50 * 1e3, r.ttft_p99 * 1e3, r.failures, r.retried, r.cut, r.lost, seconds);
}

}  // namespace

int run_bench_fleet(const std::vector<std::string>& args) {
  FleetCommand bench;
  SettingTable table;
  add_fleet_settings(table, bench);
  CommandLine command{
      "espalier bench fleet",
      "Simulates a fleet of workers behind the router: discrete events, the router's own policies "
      "and trees, deterministic from a seed.",
      "Example:\n  espalier bench fleet --workers 100 --conversations 100000 --policy cache_aware "
      "prefix_hash",
      "",
      {}};
  const SettingTable none;
  if (const auto exit_code = parse_command_line(command, table, none, args)) return *exit_code;
  set_log_level(LogLevel::kWarning);  // workers that die and come back are counted, not listed
  if (bench.policies.empty()) bench.policies = {"cache_aware", "round_robin"};
  bench.fleet.policy.tree = tree_options(bench.max_tree_size);

  bench.output.print(
      "{} workers, {} conversations, {} requests a second each, {} deaths of a worker an hour, "
      "seed "
      "{}\nhits: prompt tokens found in a worker's cache, in %, beside one cache of no bound; of: "
      "their ratio;\nload, fullest: the fullest worker's requests over the mean, over time and at "
      "one "
      "moment; flight: requests of a worker, mean;\nutil in %; first token p50, p99 in ms; s: of "
      "this computer\n",
      bench.fleet.num_workers, bench.fleet.num_conversations,
      bench.fleet.requests_per_worker_second, bench.fleet.failures_per_worker_hour,
      bench.fleet.seed);
  bench.output.print(
      "{:<13} {:>9} {:>6} {:>6} {:>6} {:>6} {:>7} {:>6} {:>5} {:>6} {:>6} {:>5} "
      "{:>6} {:>5} {:>4} {:>6}\n",
      "policy", "requests", "hits", "ideal", "of", "load", "fullest", "flight", "util", "p50",
      "p99", "died", "again", "cut", "lost", "s");
  json::array rows;
  for (const std::string& policy : bench.policies) {
    bench.fleet.policy.name = policy;
    auto bar = std::make_unique<ProgressBar>(policy, bench.fleet.num_conversations);
    bench.fleet.progress = [&bar](int64_t begun) { bar->set(begun); };
    const auto begin = std::chrono::steady_clock::now();
    const Result<FleetResult> result = simulate_fleet(bench.fleet);
    bar.reset();
    if (!result) return report(result.error(), kExitUsage);
    const double seconds = to_seconds(std::chrono::steady_clock::now() - begin);
    print_row(bench.output, policy, *result, seconds);
    rows.push_back(row_json(policy, *result, seconds));
  }
  return bench.output.finish(json::serialize(json::object{{"fleet", std::move(rows)}}));
}

}  // namespace espalier::apps
