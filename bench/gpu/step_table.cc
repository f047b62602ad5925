#include "step_table.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>

#include "base/clock.h"
#include "engine/speculation/step_cost.h"

namespace espalier::bench {
namespace {

struct TimedStep {
  const StepProfile::Step* step = nullptr;
  double seconds = 0, host_seconds = 0;

  int32_t rows() const { return step->entries + step->draft_tokens; }
  bool decodes() const { return step->tokens == rows(); }
};

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Steps end when the loop has waited for them.
std::vector<TimedStep> time_steps(const StepProfile& profile) {
  std::vector<TimedStep> out;
  auto phase = profile.phases.begin();
  for (size_t i = 1; i < profile.steps.size(); ++i) {
    const TimePoint begin = profile.steps[i - 1].end, end = profile.steps[i].end;
    Duration host{};
    while (phase != profile.phases.end() && phase->end <= begin) ++phase;
    for (auto at = phase; at != profile.phases.end() && at->begin < end; ++at)
      if (at->phase != LoopPhase::kWait)
        host += std::max(Duration{}, std::min(at->end, end) - std::max(at->begin, begin));
    out.push_back({&profile.steps[i], to_seconds(end - begin), to_seconds(host)});
  }
  return out;
}

// By the range of entries, of steps without draft tokens whose graph was there.
std::map<size_t, double> plain_seconds(const std::vector<TimedStep>& steps) {
  std::map<size_t, std::vector<double>> times;
  for (const TimedStep& s : steps)
    if (s.decodes() && s.step->draft_tokens == 0 && s.step->graph_use != GraphUse::kRecorded)
      times[StepCost::range_of(s.step->entries)].push_back(s.seconds);
  std::map<size_t, double> out;
  for (auto& [range, of_range] : times) out[range] = median_of(std::move(of_range));
  return out;
}

StepGroup summarize(const std::vector<const TimedStep*>& steps, double plain) {
  StepGroup g{.num_steps = std::ssize(steps)};
  std::vector<double> times, host;
  const auto count = static_cast<double>(steps.size());
  for (const TimedStep* s : steps) {
    const StepProfile::Step& step = *s->step;
    if (s->decodes()) g.num_entries = std::max(g.num_entries, step.entries);
    g.num_rows = std::max(g.num_rows, step.tokens);
    g.num_recorded += step.graph_use == GraphUse::kRecorded ? 1 : 0;
    g.draft_tokens += step.draft_tokens / count;
    g.accepted += step.accepted_draft_tokens / count;
    times.push_back(s->seconds);
    host.push_back(s->host_seconds);
    if (plain > 0) {
      const double tokens = 1 + static_cast<double>(step.accepted_draft_tokens) / step.entries;
      g.saved_seconds += plain * tokens - s->seconds;
    }
  }
  g.seconds = median_of(std::move(times));
  g.host_seconds = median_of(std::move(host));
  if (plain > 0) g.of_plain = g.seconds / plain;
  return g;
}

}  // namespace

std::vector<StepGroup> group_steps(const StepProfile& profile) {
  const std::vector<TimedStep> steps = time_steps(profile);
  const std::map<size_t, double> plain = plain_seconds(steps);
  constexpr std::pair<size_t, int32_t> kPrompts{0, -1};
  std::map<std::pair<size_t, int32_t>, std::vector<const TimedStep*>> groups;
  for (const TimedStep& s : steps) {
    const std::pair key{StepCost::range_of(s.step->entries),
                        s.step->draft_tokens == 0 ? 0 : StepCost::next_edge(s.rows())};
    groups[s.decodes() ? key : kPrompts].push_back(&s);
  }
  std::vector<StepGroup> out;
  for (const auto& [key, of_group] : groups) {
    const auto found = key == kPrompts ? plain.end() : plain.find(key.first);
    out.push_back(summarize(of_group, found == plain.end() ? 0 : found->second));
  }
  return out;
}

double busy_tokens_per_second(const StepProfile& profile, int32_t num_entries) {
  double seconds = 0, tokens = 0, busy_seconds = 0, busy_tokens = 0;
  bool has_begun = false;
  for (const TimedStep& s : time_steps(profile)) {
    const bool is_busy = s.step->entries >= num_entries;
    if (!std::exchange(has_begun, has_begun || (is_busy && s.decodes()))) continue;
    seconds += s.seconds;
    tokens += s.step->entries + s.step->accepted_draft_tokens;
    if (!is_busy) continue;
    busy_seconds = seconds;
    busy_tokens = tokens;
  }
  return busy_seconds > 0 ? busy_tokens / busy_seconds : 0;
}

void print_steps(const std::vector<StepGroup>& groups) {
  std::printf("%10s %6s %7s %9s %8s %9s %9s %9s %8s %9s\n", "entries", "rows", "steps", "recorded",
              "drafts", "accepted", "step ms", "of plain", "host us", "saved ms");
  double saved = 0;
  for (const StepGroup& g : groups) {
    std::printf("%10d %6d %7lld %9lld %8.2f %9.2f %9.3f %9.3f %8.0f %9.1f\n", g.num_entries,
                g.num_rows, static_cast<long long>(g.num_steps),
                static_cast<long long>(g.num_recorded), g.draft_tokens, g.accepted, g.seconds * 1e3,
                g.of_plain, g.host_seconds * 1e6, g.saved_seconds * 1e3);
    saved += g.saved_seconds;
  }
  std::printf("%92s %9.1f\n", "all", saved * 1e3);
}

boost::json::array steps_json(const StepProfile& profile) {
  boost::json::array out;
  for (const TimedStep& s : time_steps(profile))
    out.push_back(boost::json::array{
        s.step->entries, s.step->tokens, s.step->draft_tokens, s.step->accepted_draft_tokens,
        s.step->graph_use == GraphUse::kRecorded ? 1 : 0, static_cast<int64_t>(s.seconds * 1e6),
        static_cast<int64_t>(s.host_seconds * 1e6)});
  return out;
}

}  // namespace espalier::bench
