#include "tensor/collective.h"

#include <algorithm>
#include <numeric>

namespace espalier {
namespace {

std::span<float> whole(const Collective::RankParts& parts) {
  const int64_t rows = std::reduce(parts.counts.begin(), parts.counts.end());
  return {parts.all, static_cast<size_t>(rows * parts.columns)};
}

}  // namespace

std::span<float> Collective::part_of_all(const RankParts& parts) const {
  const auto own = parts.counts.begin() + ranks().rank;
  const int64_t before = std::reduce(parts.counts.begin(), own);
  return {parts.all + before * parts.columns, static_cast<size_t>(*own * parts.columns)};
}

// A sum of which every element has one rank that is not zero.
void Collective::gather_rows(const RankParts& parts) {
  std::ranges::fill(whole(parts), 0.0f);
  const std::span<float> own = part_of_all(parts);
  std::copy_n(parts.own, own.size(), own.begin());
  all_reduce(whole(parts));
}

void Collective::scatter_sums(const RankParts& parts) {
  all_reduce(whole(parts));
  std::ranges::copy(part_of_all(parts), parts.own);
}

}  // namespace espalier
