// The picture of a server that `espalier top` draws: figures read over HTTP, laid out for a
// terminal of any size. Pure; the command itself reads keys and sockets.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace espalier::apps {

struct TopRequest {
  std::string rid, state;  // "waits", "reads", "answers", or how it ended
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  double first_token_seconds = -1;  // from arrival; below 0: there is none yet
  double seconds = 0;               // from arrival to its end, or to now
  bool ended = false;
};

// The figures of a GPU of the server's computer; below 0: it does not report this one.
struct TopGpu {
  int index = 0;
  std::string name;
  double memory_used_bytes = -1, memory_total_bytes = -1;
  double utilization = -1, temperature_celsius = -1, power_watts = -1, power_limit_watts = -1;
};

// One reading of a server.
struct TopReading {
  TimePoint at{};
  std::map<std::string, double, std::less<>> metrics;  // summed over labels
  std::vector<TopRequest> requests;  // in flight first, then the last that ended, newest first
  std::vector<TopGpu> gpus;          // by their indices; empty where the processor computes
  std::string requests_hidden;       // why there are none: no key, say
  double metric(std::string_view name) const;  // 0 where there is none
};

// Samples of a text in Prometheus' format; buckets of histograms are left out.
std::map<std::string, double, std::less<>> parse_metrics(std::string_view text);
// The series espalier:gpu_* of such a text.
std::vector<TopGpu> parse_gpus(std::string_view text);
// Of the answer of GET /requests.
Result<std::vector<TopRequest>> parse_requests(std::string_view json);

struct TopView {
  std::string url, model;
  int width = 80, height = 24;  // characters
  bool colours = true;
  bool paused = false;
  std::string problem;  // why the figures are old; empty: they are not
};

// The lines of the picture, at most `height`, none longer than `width` characters but for escape
// sequences. Rates are of what happened between two readings; before: null at first.
// throughput: output tokens a second of earlier readings, oldest first.
std::vector<std::string> draw_top(const TopView& view, const TopReading& now,
                                  const TopReading* before, const std::vector<double>& throughput);

}  // namespace espalier::apps
