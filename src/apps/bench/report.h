// What a benchmark measured: one record a request, summed up as a table and as JSON. The functions
// are pure; a FigureOutput is used by one thread.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "apps/settings.h"
#include "base/status.h"

namespace espalier::apps {

// One request. Times in seconds.
struct RequestRecord {
  bool ok = false;
  std::string error;  // when not ok
  int32_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
  double started = 0;  // since the benchmark's start
  double time_to_first_token = 0;
  double latency = 0;       // to the last token
  std::vector<float> gaps;  // between tokens; tokens that came together share their gap
};

struct Distribution {
  double mean = 0, median = 0, p90 = 0, p95 = 0, p99 = 0, max = 0;
};
// Nearest-rank percentiles; all zero for no values.
Distribution distribution(std::vector<double> values);

struct BenchReport {
  std::vector<std::pair<std::string, std::string>> settings;  // what was run
  double seconds = 0;
  int64_t completed = 0, failed = 0;
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
  double mean_concurrency = 0;
  Distribution time_to_first_token, time_per_output_token, inter_token, latency;  // seconds
  std::vector<std::string> errors;                                                // the first few

  double cache_hit_rate() const {
    return prompt_tokens == 0
               ? 0
               : static_cast<double>(cached_tokens) / static_cast<double>(prompt_tokens);
  }
};

BenchReport summarize(const std::vector<RequestRecord>& records, double seconds);
std::string table(const BenchReport& report);

// Where the figures of every benchmark go: a table to standard output, JSON in its place with
// --json, JSON to a file beside it with --json FILE.
class FigureOutput {
 public:
  void add_setting(SettingTable& settings);
  // A part of the table, seen at once.
  template <typename... Args>
  void print(fmt::format_string<Args...> format, Args&&... args) const {
    if (json_instead_) return;
    fmt::print(format, std::forward<Args>(args)...);
    std::fflush(stdout);
  }
  // At the end. An exit code: kExitFailure when the file could not be written.
  int finish(const std::string& json) const;

 private:
  bool json_instead_ = false;
  std::filesystem::path file_;
};

// Prints the report, appends it as a line of JSON to `file` unless that is empty. An exit code:
// kExitFailure when a request failed or a file could not be written.
int publish(const BenchReport& report, const FigureOutput& output,
            const std::filesystem::path& file);

std::string to_json(const BenchReport& report);  // SGLang's key names where it has the same figure

}  // namespace espalier::apps
