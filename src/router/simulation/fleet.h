// A fleet in a computer's memory: discrete events, a clock and a network that are simulated, and
// the router's own dispatcher, policies and trees. The same options give the same result, bit by
// bit, on every computer with the same floating-point arithmetic.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/status.h"
#include "router/policy.h"
#include "router/simulation/sim_worker.h"

namespace espalier::router {

struct FleetOptions {
  uint64_t seed = 1;
  int32_t num_workers = 1000;
  int64_t num_conversations = 1000000;
  PolicyOptions policy;
  WorkerSpeed speed;

  // Conversations arrive evenly at random (a Poisson process), so many that this many requests a
  // second come to each worker.
  double requests_per_worker_second = 12;
  double turns_mean = 4;  // geometric
  // Each begins with one of these prompts, the i-th with a probability as 1 / i (Zipf).
  int32_t num_system_prompts = 500;
  int64_t system_tokens_min = 512, system_tokens_max = 2048;
  int64_t user_tokens_mean = 128, answer_tokens_mean = 200;  // exponential, at least 16
  double think_seconds_mean = 10;                            // exponential

  double network_seconds = 0.0005;      // from router to worker, at most; uniform
  double failures_per_worker_hour = 1;  // a worker dies and loses its cache
  double restart_seconds = 20;
  double health_check_seconds = 1;
  double warm_up = 0.1;  // part of the conversations before loads are measured
  std::function<void(int64_t)> progress;  // called now and then with the conversations that began
};

struct FleetResult {
  int64_t requests = 0;
  int64_t prompt_units = 0, cached_units = 0;
  int64_t ideal_units = 0;  // cached, had one cache of no bound all workers' prefixes
  int64_t failures = 0;     // workers that died
  int64_t retried = 0;      // requests that had not begun when their worker died
  int64_t cut = 0;          // that had begun; their clients send them again
  int64_t lost = 0;         // requests that no worker took
  // A worker's load is the number of its requests over time; of the fullest worker over the mean of
  // those that never died. And at one moment, sampled each second: the median of those ratios.
  double load_max_over_mean = 0, in_flight_max_over_mean = 0;
  double utilisation = 0;             // of the workers' time
  double in_flight_mean = 0;          // requests, of a worker
  double ttft_p50 = 0, ttft_p99 = 0;  // seconds to the first token
  double simulated_seconds = 0;
  size_t tree_nodes = 0;
  uint64_t digest = 0;  // of every choice, in order

  double hit_rate() const { return ratio(cached_units, prompt_units); }
  double ideal_hit_rate() const { return ratio(ideal_units, prompt_units); }
  double of_ideal() const { return ratio(cached_units, ideal_units); }

 private:
  static double ratio(int64_t part, int64_t whole) {
    return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
  }
};

// kInvalidArgument names the option that is wrong.
Result<FleetResult> simulate_fleet(const FleetOptions& options);

}  // namespace espalier::router
