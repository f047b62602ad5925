#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <cmath>
#include <optional>

#include "apps/top.h"

namespace espalier::apps {
namespace {

namespace json = boost::json;

// Adds text until a line is full. Every character of what is drawn is one column.
class Line {
 public:
  Line(int width, bool colours) : room_(std::max(0, width)), colours_(colours) {}
  Line& text(std::string_view text, std::string_view style = {}) {
    if (colours_ && !style.empty()) out_ += fmt::format("\x1b[{}m", style);
    for (size_t at = 0; at < text.size() && room_ > 0; --room_) {
      const size_t begin = at++;
      while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) ++at;
      out_.append(text.substr(begin, at - begin));
    }
    if (colours_ && !style.empty()) out_ += "\x1b[0m";
    return *this;
  }
  std::string take() { return std::move(out_); }
  int room() const { return room_; }

 private:
  std::string out_;
  int room_;
  const bool colours_;
};

constexpr std::string_view kBold = "1", kQuiet = "2", kGreen = "32", kYellow = "33", kRed = "31";

std::string count_text(double value) {
  if (value >= 1e6) return fmt::format("{:.1f}M", value / 1e6);
  if (value >= 1e4) return fmt::format("{:.0f}k", value / 1e3);
  return fmt::format("{:.0f}", value);
}

std::string seconds_text(double seconds) {
  if (seconds < 0) return "-";
  if (seconds < 1) return fmt::format("{:.0f}ms", seconds * 1e3);
  return seconds < 100 ? fmt::format("{:.1f}s", seconds) : fmt::format("{:.0f}s", seconds);
}

// In eighths of a character.
std::string bar_text(double share, int width) {
  constexpr std::string_view kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const auto eighths = static_cast<int>(std::lround(std::clamp(share, 0.0, 1.0) * width * 8));
  std::string out;
  for (int i = 0; i < eighths / 8; ++i) out += "█";
  out += kEighths[eighths % 8];
  for (int i = eighths / 8 + (eighths % 8 != 0 ? 1 : 0); i < width; ++i) out += "·";
  return out;
}

std::string spark_text(const std::vector<double>& values, int width) {
  constexpr std::string_view kLevels[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const size_t shown = std::min(values.size(), static_cast<size_t>(std::max(0, width)));
  const auto first = values.end() - static_cast<std::ptrdiff_t>(shown);
  const double top = shown == 0 ? 0 : *std::max_element(first, values.end());
  std::string out;
  for (auto at = first; at != values.end(); ++at)
    out += kLevels[top <= 0 ? 0 : std::min(7, static_cast<int>(*at / top * 7.999))];
  return out;
}

double rate(const TopReading& now, const TopReading* before, std::string_view name) {
  const double seconds = before == nullptr ? 0 : to_seconds(now.at - before->at);
  return seconds <= 0 ? 0 : std::max(0.0, now.metric(name) - before->metric(name)) / seconds;
}

std::string_view style_of(const TopRequest& request) {
  if (request.state == "error" || request.state == "abort") return kRed;
  if (request.ended) return kQuiet;
  return request.state == "answers" ? kGreen : kYellow;
}

void add_figures(std::vector<std::string>& lines, const TopView& view, const TopReading& now,
                 const TopReading* before, const std::vector<double>& throughput) {
  const auto line = [&] { return Line(view.width, view.colours); };
  const double prompt = rate(now, before, "sglang:prompt_tokens_total");
  const double cached = rate(now, before, "sglang:cached_tokens_total");
  lines.push_back(
      line()
          .text("requests  ", kQuiet)
          .text(fmt::format("{:>5} running {:>5} waiting {:>9} in all {:>6.1f} a second",
                            now.metric("sglang:num_running_reqs"),
                            now.metric("sglang:num_queue_reqs"),
                            count_text(now.metric("sglang:num_requests_total")),
                            rate(now, before, "sglang:num_requests_total")))
          .take());
  Line tokens = line();
  tokens.text("tokens/s  ", kQuiet)
      .text(fmt::format("{:>7.1f} ", throughput.empty() ? 0.0 : throughput.back()), kBold)
      .text(fmt::format("output  {:>7.1f} prompt  ", prompt));
  tokens.text(spark_text(throughput, tokens.room()), kGreen);
  lines.push_back(tokens.take());
  lines.push_back(line()
                      .text("cache     ", kQuiet)
                      .text(fmt::format("{:>5.1f} % of prompt tokens now, {:.1f} % in all",
                                        prompt > 0 ? cached / prompt * 100 : 0.0,
                                        now.metric("sglang:cache_hit_rate") * 100))
                      .take());
  const double total = std::max(1.0, now.metric("sglang:max_total_num_tokens"));
  const double used = now.metric("sglang:num_used_tokens");
  const double kept = now.metric("sglang:kv_evictable_tokens");
  const int width = std::clamp(view.width - 60, 10, 60);
  lines.push_back(line()
                      .text("memory    ", kQuiet)
                      .text(bar_text((used + kept) / total, width), kGreen)
                      .text(fmt::format(" {} in use, {} cached, of {} tokens", count_text(used),
                                        count_text(kept), count_text(total)))
                      .take());
}

std::string figure(double value, const char* unit) {
  return value < 0 ? "" : fmt::format("  {:.0f} {}", value, unit);
}

// A line for each GPU: memory, load, heat and power.
void add_gpus(std::vector<std::string>& lines, const TopView& view, const TopReading& now) {
  constexpr double kGB = 1e9, kHotCelsius = 85;
  for (const TopGpu& gpu : now.gpus) {
    const double total = std::max(1.0, gpu.memory_total_bytes);
    std::string power = figure(gpu.power_watts, "W");
    if (!power.empty() && gpu.power_limit_watts > 0)
      power = fmt::format("  {:.0f} of {:.0f} W", gpu.power_watts, gpu.power_limit_watts);
    Line line(view.width, view.colours);
    line.text(fmt::format("GPU {:<6}", gpu.index), kQuiet)
        .text(bar_text(gpu.memory_used_bytes / total, std::clamp(view.width - 80, 8, 40)), kGreen)
        .text(fmt::format(" {:.1f} of {:.1f} GB", gpu.memory_used_bytes / kGB, total / kGB))
        .text(gpu.utilization < 0 ? "" : fmt::format("  {:>3.0f} %", gpu.utilization * 100), kBold)
        .text(figure(gpu.temperature_celsius, "°C"),
              gpu.temperature_celsius >= kHotCelsius ? kRed : std::string_view())
        .text(power)
        .text("  " + gpu.name, kQuiet);
    lines.push_back(line.take());
  }
}

// The value of a label in `{gpu="0",gpu_name="NVIDIA H100"}`; names of GPUs have no quotes.
std::string label_of(std::string_view series, std::string_view label) {
  const std::string start = fmt::format("{}=\"", label);
  for (const char before : {'{', ','}) {
    const size_t at = series.find(before + start);
    if (at == std::string_view::npos) continue;
    const std::string_view rest = series.substr(at + 1 + start.size());
    return std::string(rest.substr(0, rest.find('"')));
  }
  return {};
}

// A line of the text, "name{labels} value", without the value; nothing where there is none.
std::optional<double> sample_value(std::string_view& line) {
  const size_t space = line.rfind(' ');
  if (line.empty() || line[0] == '#' || space == std::string_view::npos) return std::nullopt;
  double value = 0;
  const char* const end = line.data() + line.size();
  const auto [stop, failed] = std::from_chars(line.data() + space + 1, end, value);
  if (failed != std::errc() || stop != end) return std::nullopt;
  line = line.substr(0, space);
  return value;
}

std::string_view next_line(std::string_view& text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(text.size(), line.size() + 1));
  return line;
}

void add_requests(std::vector<std::string>& lines, const TopView& view, const TopReading& now) {
  const int rid_width = std::clamp(view.width - 62, 8, 40);
  lines.push_back(
      Line(view.width, view.colours)
          .text(fmt::format("{:<{}} {:<8} {:>8} {:>8} {:>8} {:>8} {:>8}", "REQUEST", rid_width,
                            "STATE", "PROMPT", "CACHED", "OUTPUT", "FIRST", "TIME"),
                "7")
          .take());
  if (!now.requests_hidden.empty())
    lines.push_back(Line(view.width, view.colours).text(now.requests_hidden, kYellow).take());
  for (const TopRequest& each : now.requests) {
    if (std::ssize(lines) >= view.height) return;
    lines.push_back(
        Line(view.width, view.colours)
            .text(fmt::format("{:<{}.{}} {:<8} {:>8} {:>8} {:>8} {:>8} {:>8}", each.rid, rid_width,
                              rid_width, each.state, each.prompt_tokens, each.cached_tokens,
                              each.completion_tokens, seconds_text(each.first_token_seconds),
                              seconds_text(each.seconds)),
                  style_of(each))
            .take());
  }
}

double number_of(const json::object& object, const char* name, double otherwise) {
  const json::value* const value = object.if_contains(name);
  return value != nullptr && value->is_number() ? value->to_number<double>() : otherwise;
}

TopRequest read_request(const json::object& object) {
  const auto text = [&](const char* name) {
    const json::value* const value = object.if_contains(name);
    return value != nullptr && value->is_string() ? std::string(value->get_string()) : "";
  };
  TopRequest out{.rid = text("rid"), .state = text("end")};
  out.prompt_tokens = static_cast<int64_t>(number_of(object, "prompt_tokens", 0));
  out.cached_tokens = static_cast<int64_t>(number_of(object, "cached_tokens", 0));
  out.completion_tokens = static_cast<int64_t>(number_of(object, "completion_tokens", 0));
  const double arrived = number_of(object, "arrived_s_ago", 0);
  const double first = number_of(object, "first_token_s_ago", -1);
  const double ended = number_of(object, "ended_s_ago", -1);
  out.ended = ended >= 0;
  out.seconds = arrived - std::max(0.0, ended);
  if (first >= 0) out.first_token_seconds = arrived - first;
  if (out.state.empty())
    out.state = first >= 0                                      ? "answers"
                : number_of(object, "scheduled_s_ago", -1) >= 0 ? "reads"
                                                                : "waits";
  return out;
}

}  // namespace

double TopReading::metric(std::string_view name) const {
  const auto at = metrics.find(name);
  return at == metrics.end() ? 0 : at->second;
}

std::map<std::string, double, std::less<>> parse_metrics(std::string_view text) {
  std::map<std::string, double, std::less<>> out;
  while (!text.empty()) {
    std::string_view line = next_line(text);
    const std::optional<double> value = sample_value(line);
    const std::string_view name = line.substr(0, line.find('{'));
    if (value && !name.ends_with("_bucket")) out[std::string(name)] += *value;
  }
  return out;
}

std::vector<TopGpu> parse_gpus(std::string_view text) {
  static constexpr std::pair<std::string_view, double TopGpu::*> kSeries[] = {
      {"espalier:gpu_memory_used_bytes", &TopGpu::memory_used_bytes},
      {"espalier:gpu_memory_total_bytes", &TopGpu::memory_total_bytes},
      {"espalier:gpu_utilization", &TopGpu::utilization},
      {"espalier:gpu_temperature_celsius", &TopGpu::temperature_celsius},
      {"espalier:gpu_power_watts", &TopGpu::power_watts},
      {"espalier:gpu_power_limit_watts", &TopGpu::power_limit_watts},
  };
  std::map<int, TopGpu> found;
  while (!text.empty()) {
    std::string_view line = next_line(text);
    if (!line.starts_with("espalier:gpu_")) continue;
    const std::optional<double> value = sample_value(line);
    const std::string number = label_of(line, "gpu");
    int index = 0;
    const char* const end = number.data() + number.size();
    const bool numbered = std::from_chars(number.data(), end, index).ptr == end && !number.empty();
    if (!value || !numbered) continue;
    for (const auto& [name, member] : kSeries) {
      if (line.substr(0, line.find('{')) != name) continue;
      TopGpu& gpu = found[index];
      gpu.index = index;
      gpu.name = label_of(line, "gpu_name");
      gpu.*member = *value;
    }
  }
  std::vector<TopGpu> out;
  for (auto& [index, gpu] : found) out.push_back(std::move(gpu));
  return out;
}

Result<std::vector<TopRequest>> parse_requests(std::string_view text) {
  boost::system::error_code wrong;
  const json::value value = json::parse(text, wrong);
  const json::value* const list =
      !wrong && value.is_object() ? value.get_object().if_contains("requests") : nullptr;
  if (list == nullptr || !list->is_array())
    return fail(error(StatusCode::kDataLoss, "the server's answer is no list of requests"));
  std::vector<TopRequest> out;
  for (const json::value& each : list->get_array())
    if (each.is_object()) out.push_back(read_request(each.get_object()));
  std::ranges::reverse(out);
  std::ranges::stable_partition(out, [](const TopRequest& each) { return !each.ended; });
  return out;
}

std::vector<std::string> draw_top(const TopView& view, const TopReading& now,
                                  const TopReading* before, const std::vector<double>& throughput) {
  std::vector<std::string> lines;
  Line title(view.width, view.colours);
  title.text("espalier top", kBold).text("  " + view.model, kBold).text("  " + view.url, kQuiet);
  if (view.paused) title.text("  paused", kYellow);
  lines.push_back(title.take());
  if (!view.problem.empty())
    lines.push_back(Line(view.width, view.colours).text(view.problem, kRed).take());
  add_figures(lines, view, now, before, throughput);
  add_gpus(lines, view, now);
  lines.emplace_back();
  add_requests(lines, view, now);
  if (std::ssize(lines) > view.height) lines.resize(static_cast<size_t>(std::max(0, view.height)));
  return lines;
}

}  // namespace espalier::apps
