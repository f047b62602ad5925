#include "apps/bench/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <numeric>

#include "apps/command_line.h"

namespace espalier::apps {
namespace {

constexpr size_t kErrorsShown = 5;

// The nearest rank: a value that was measured, never one between two. REQUIRES: not empty, 0 < part
// <= 1.
double percentile(const std::vector<double>& sorted, double part) {
  const auto rank = static_cast<size_t>(std::ceil(part * static_cast<double>(sorted.size())));
  return sorted[std::clamp<size_t>(rank, 1, sorted.size()) - 1];
}

std::string row(std::string_view name, const std::string& value) {
  return fmt::format("{:<34}{:>14}\n", name, value);
}

std::string times(std::string_view name, const Distribution& d) {
  return fmt::format("{:<26}{:>10.2f}{:>10.2f}{:>10.2f}{:>10.2f}{:>10.2f}{:>10.2f}\n", name,
                     d.mean * 1e3, d.median * 1e3, d.p90 * 1e3, d.p95 * 1e3, d.p99 * 1e3,
                     d.max * 1e3);
}

void add_times(boost::json::object& out, std::string_view name, const Distribution& d) {
  const auto put = [&](std::string_view statistic, double value) {
    out[fmt::format("{}_{}_ms", statistic, name)] = value * 1e3;
  };
  put("mean", d.mean);
  put("median", d.median);
  put("p90", d.p90);
  put("p95", d.p95);
  put("p99", d.p99);
  put("max", d.max);
}

}  // namespace

Distribution distribution(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  Distribution out;
  out.mean =
      std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  out.median = percentile(values, 0.5);
  out.p90 = percentile(values, 0.9);
  out.p95 = percentile(values, 0.95);
  out.p99 = percentile(values, 0.99);
  out.max = values.back();
  return out;
}

// Requests that failed count as failed alone: their tokens and times would make the others look
// better or worse. The mean concurrency follows from Little's law, the sum of latencies over the
// time of the run.
BenchReport summarize(const std::vector<RequestRecord>& records, double seconds) {
  BenchReport report;
  report.seconds = seconds;
  std::vector<double> first, per_token, gaps, latencies;
  for (const RequestRecord& record : records) {
    if (!record.ok) {
      ++report.failed;
      if (report.errors.size() < kErrorsShown) report.errors.push_back(record.error);
      continue;
    }
    ++report.completed;
    report.prompt_tokens += record.prompt_tokens;
    report.cached_tokens += record.cached_tokens;
    report.output_tokens += record.output_tokens;
    first.push_back(record.time_to_first_token);
    latencies.push_back(record.latency);
    if (record.output_tokens > 1)
      per_token.push_back((record.latency - record.time_to_first_token) /
                          (record.output_tokens - 1));
    gaps.insert(gaps.end(), record.gaps.begin(), record.gaps.end());
  }
  if (seconds > 0)
    report.mean_concurrency = std::accumulate(latencies.begin(), latencies.end(), 0.0) / seconds;
  report.time_to_first_token = distribution(std::move(first));
  report.time_per_output_token = distribution(std::move(per_token));
  report.inter_token = distribution(std::move(gaps));
  report.latency = distribution(std::move(latencies));
  return report;
}

std::string table(const BenchReport& report) {
  const double s = std::max(report.seconds, 1e-9);
  std::string out;
  for (const auto& [name, value] : report.settings) out += row(name, value);
  out += row("Requests completed", fmt::format("{}", report.completed));
  out += row("Requests failed", fmt::format("{}", report.failed));
  out += row("Duration (s)", fmt::format("{:.2f}", report.seconds));
  out += row("Input tokens", fmt::format("{}", report.prompt_tokens));
  out += row("Output tokens", fmt::format("{}", report.output_tokens));
  out += row("Request throughput (1/s)",
             fmt::format("{:.2f}", static_cast<double>(report.completed) / s));
  out += row("Input throughput (tok/s)",
             fmt::format("{:.1f}", static_cast<double>(report.prompt_tokens) / s));
  out += row("Output throughput (tok/s)",
             fmt::format("{:.1f}", static_cast<double>(report.output_tokens) / s));
  out += row("Mean concurrency", fmt::format("{:.2f}", report.mean_concurrency));
  out += row("Cache hit rate (%)", fmt::format("{:.1f}", report.cache_hit_rate() * 100));
  out += fmt::format("\n{:<26}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}\n", "milliseconds", "mean",
                     "median", "p90", "p95", "p99", "max");
  out += times("Time to first token", report.time_to_first_token);
  out += times("Time per output token", report.time_per_output_token);
  out += times("Inter-token latency", report.inter_token);
  out += times("End-to-end latency", report.latency);
  for (const std::string& error : report.errors) out += fmt::format("failed: {}\n", error);
  return out;
}

// Members are named as SGLang's bench_serving names them, so that scripts which read its results
// read these.
std::string to_json(const BenchReport& report) {
  const double s = std::max(report.seconds, 1e-9);
  boost::json::object out;
  for (const auto& [name, value] : report.settings) out[name] = value;
  out["completed"] = report.completed;
  out["failed"] = report.failed;
  out["duration"] = report.seconds;
  out["total_input_tokens"] = report.prompt_tokens;
  out["total_cached_tokens"] = report.cached_tokens;
  out["total_output_tokens"] = report.output_tokens;
  out["request_throughput"] = static_cast<double>(report.completed) / s;
  out["input_throughput"] = static_cast<double>(report.prompt_tokens) / s;
  out["output_throughput"] = static_cast<double>(report.output_tokens) / s;
  out["concurrency"] = report.mean_concurrency;
  out["cache_hit_rate"] = report.cache_hit_rate();
  add_times(out, "ttft", report.time_to_first_token);
  add_times(out, "tpot", report.time_per_output_token);
  add_times(out, "itl", report.inter_token);
  add_times(out, "e2e_latency", report.latency);
  out["errors"] = boost::json::value_from(report.errors);
  return boost::json::serialize(out);
}

void FigureOutput::add_setting(SettingTable& settings) {
  settings.result("json", json_instead_, file_,
                  "JSON instead of the table, or, with FILE, written to it beside the table");
}

int FigureOutput::finish(const std::string& json) const {
  if (json_instead_) fmt::print("{}\n", json);
  if (file_.empty()) return kExitOk;
  const Status status = write_file(file_, json + "\n");
  return status.ok() ? kExitOk : report(status, kExitFailure);
}

// A failed request fails the command, for figures of a run with failures are no figures; they are
// printed and written all the same.
int publish(const BenchReport& report, const FigureOutput& output,
            const std::filesystem::path& file) {
  output.print("{}", table(report));
  const std::string json = to_json(report);
  if (!file.empty()) {
    if (Status status = write_file(file, json + "\n", WriteMode::kAppend); !status.ok())
      return espalier::apps::report(status, kExitFailure);
  }
  const int written = output.finish(json);
  return report.failed == 0 ? written : kExitFailure;
}

}  // namespace espalier::apps
