#include "lang/recorder.h"

#include <algorithm>
#include <map>

#include "lang/json_text.h"

namespace espalier::lang {
namespace {

double micros(Duration d) { return std::chrono::duration<double, std::micro>(d).count(); }

std::string title(const Span& span) {
  return span.name.empty() ? span.kind : span.kind + " " + span.name;
}

}  // namespace

void Recorder::add(Span span) {
  std::lock_guard lock(mutex_);
  spans_.push_back(std::move(span));
}

std::vector<Span> Recorder::spans() const {
  std::vector<Span> all;
  {
    std::lock_guard lock(mutex_);
    all = spans_;
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Span& a, const Span& b) { return a.begin < b.begin; });
  return all;
}

// The "complete" events ("ph":"X") of the Trace Event Format; times in microseconds.
std::string Recorder::chrome_trace() const {
  const std::vector<Span> all = spans();
  if (all.empty()) return R"({"traceEvents":[]})";
  TimePoint zero = all.front().begin;
  for (const Span& s : all)
    if (s.submitted != TimePoint{}) zero = std::min(zero, s.submitted);
  std::string out = R"({"displayTimeUnit":"ms","traceEvents":[)";
  const size_t start = out.size();
  for (const Span& s : all) {
    if (s.submitted != TimePoint{} && s.begin - s.submitted > std::chrono::microseconds(1))
      out += fmt::format(
          R"({}{{"name":{},"cat":"wait","ph":"X","pid":1,"tid":{},"ts":{:.3f},"dur":{:.3f}}})",
          out.size() > start ? "," : "", json_quoted("wait for " + title(s)), s.stream,
          micros(s.submitted - zero), micros(s.begin - s.submitted));
    out += fmt::format(
        R"({}{{"name":{},"cat":{},"ph":"X","pid":1,"tid":{},"ts":{:.3f},"dur":{:.3f},"args":)"
        R"({{"where":{},"prompt_tokens":{},"cached_tokens":{},"completion_tokens":{},"status":{}}}}})",
        out.size() > start ? "," : "", json_quoted(title(s)), json_quoted(s.kind), s.stream,
        micros(s.begin - zero), micros(s.end - s.begin), json_quoted(to_string(s.where)),
        s.prompt_tokens, s.cached_tokens, s.completion_tokens, json_quoted(s.status.to_string()));
  }
  return out + "]}";
}

std::string Recorder::tree() const {
  const std::vector<Span> all = spans();
  if (all.empty()) return "";
  std::map<int32_t, std::vector<const Span*>> by_stream;
  std::map<int32_t, std::vector<int32_t>> branches;
  for (const Span& s : all) {
    if (!by_stream.contains(s.stream)) branches[s.parent_stream].push_back(s.stream);
    by_stream[s.stream].push_back(&s);
  }
  const TimePoint zero = all.front().begin;
  std::string out;
  const auto print = [&](const auto& self, int32_t stream, int depth) -> void {
    const std::string indent(static_cast<size_t>(depth) * 2, ' ');
    out += fmt::format("{}stream {}\n", indent, stream);
    for (const Span* s : by_stream[stream]) {
      out += fmt::format("{}  {:>9.3f} ms {:>9.3f} ms  {}", indent, micros(s->begin - zero) / 1e3,
                         micros(s->end - s->begin) / 1e3, json_quoted(title(*s)));
      if (s->prompt_tokens > 0)
        out += fmt::format("  {} prompt ({} cached) + {} new tokens", s->prompt_tokens,
                           s->cached_tokens, s->completion_tokens);
      if (!s->status.ok()) out += "  " + s->status.to_string();
      out += fmt::format("  {}\n", to_string(s->where));
    }
    for (int32_t branch : branches[stream]) self(self, branch, depth + 1);
  };
  for (int32_t root : branches[-1]) print(print, root, 0);
  return out;
}

}  // namespace espalier::lang
