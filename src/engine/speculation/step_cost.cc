#include "engine/speculation/step_cost.h"

#include <bit>
#include <limits>

namespace espalier {

namespace {
// Of a step of n entries a draft token is assumed to cost this much over n, where nothing has been
// measured. It is little, so that draft tokens are tried: decode reads weights, a draft token does
// not.
constexpr double kAssumedCost = 0.05;
// Rows beyond the largest that were measured cost at least this much over n.
constexpr double kLeastSlope = 0.01;
constexpr double kOptimism = 0.5;
// What was measured once is not believed, for the system may have interrupted the step.
constexpr int32_t kMeasuredLeast = 2;
}  // namespace

int32_t StepCost::next_edge(int32_t rows) {
  const auto n = static_cast<uint32_t>(std::max(rows, 1));
  if (n <= 8) return static_cast<int32_t>(n);
  const uint32_t step = std::bit_floor(n - 1) / 4;
  return static_cast<int32_t>((n + step - 1) / step * step);
}

void StepCost::observe(int32_t num_entries, int32_t num_draft_tokens, double seconds) {
  if (num_entries < 1 || !(seconds > 0)) return;
  ++num_steps_;
  const size_t range = entry_range(num_entries);
  if (num_draft_tokens == 0) {
    plain_.observe(num_entries, seconds, num_steps_);
    return;
  }
  const double plain = plain_seconds(num_entries);
  if (plain <= 0) return;
  Cell& cell = cells_[range][row_range(num_entries, num_draft_tokens)];
  if (num_steps_ - cell.last_step > kStaleSteps) cell.ratio.clear();
  move_mean(cell.draft_tokens, num_draft_tokens, cell.ratio.size() == 0);
  cell.ratio.add(seconds / plain);
  cell.last_step = num_steps_;
}

double StepCost::aged_ratio(const Cell& cell) const {
  const auto age = static_cast<double>(num_steps_ - cell.last_step);
  const double kept = 1 - kOptimism * std::min(1.0, age / static_cast<double>(kStaleSteps));
  return 1 + std::max(0.0, cell.ratio.value() - 1) * kept;
}

StepCost::Curve StepCost::curve(int32_t num_entries) const {
  Curve curve;
  const size_t range = entry_range(num_entries);
  curve.num_entries_ = std::max(num_entries, 1);
  curve.nodes_[0] = {.range = range_of(num_entries)};
  for (size_t i = 0; i < kRowRanges; ++i) {
    const Cell& cell = cells_[range][i];
    const Curve::Node& last = curve.nodes_[curve.num_nodes_ - 1];
    if (cell.ratio.size() < kMeasuredLeast || cell.draft_tokens <= last.draft_tokens) continue;
    curve.nodes_[curve.num_nodes_++] = {
        .draft_tokens = cell.draft_tokens, .ratio = aged_ratio(cell), .range = range + i};
  }
  const double largest = curve.nodes_[curve.num_nodes_ - 1].draft_tokens;
  curve.most_ = num_steps_ == 0 ? std::numeric_limits<int32_t>::max()
                                : curve.num_entries_ + 2 * static_cast<int32_t>(largest);
  // More rows never take less time: what was measured above its successors is noise.
  for (size_t i = curve.num_nodes_ - 1; i > 0; --i)
    curve.nodes_[i - 1].ratio = std::min(curve.nodes_[i - 1].ratio, curve.nodes_[i].ratio);
  return curve;
}

double StepCost::Curve::ratio(int32_t num_draft_tokens) const {
  const double x = num_draft_tokens;
  const double n = num_entries_;
  const Node& last = nodes_[num_nodes_ - 1];
  if (num_nodes_ == 1) return 1 + kAssumedCost * x / n;
  if (x >= last.draft_tokens) {
    const Node& before = nodes_[num_nodes_ - 2];
    const double slope =
        (last.ratio - before.ratio) / std::max(1.0, last.draft_tokens - before.draft_tokens);
    // Within the range of the last node nothing is unknown but the exact slope.
    const size_t range = range_of(num_entries_ + num_draft_tokens);
    const double taken = range == last.range ? slope : std::max(kOptimism * slope, kLeastSlope / n);
    return last.ratio + taken * (x - last.draft_tokens);
  }
  size_t i = 1;
  while (nodes_[i].draft_tokens < x) ++i;
  const Node &left = nodes_[i - 1], &right = nodes_[i];
  const double line = on_line(x, left.draft_tokens, left.ratio, right.draft_tokens, right.ratio);
  const size_t range = range_of(num_entries_ + num_draft_tokens);
  if (range == right.range || (range == left.range && i > 1)) return line;
  return left.ratio + kOptimism * (line - left.ratio);
}

}  // namespace espalier
