#include "grammar/draft.h"

#include <algorithm>

#include "base/check.h"

namespace espalier::grammar {
namespace {

class TreeWalk {
 public:
  TreeWalk(Matcher& matcher, const DraftTree& tree, std::span<uint32_t> masks)
      : matcher_(matcher), tree_(tree), masks_(masks), children_(tree.tokens.size() + 1) {
    for (size_t i = 0; i < tree.tokens.size(); ++i) {
      ESP_CHECK(tree.parents[i] >= -1 && tree.parents[i] < static_cast<int32_t>(i));
      children_[static_cast<size_t>(tree.parents[i] + 1)].push_back(i);
    }
    taken_.assign(tree.tokens.size(), false);
  }

  std::vector<bool> run() {
    std::ranges::fill(masks_, 0);
    visit(0);
    return std::move(taken_);
  }

 private:
  // A draft is as deep as it is long at most: a few tokens.
  void visit(size_t row) {
    const auto words = static_cast<size_t>(matcher_.words_per_mask());
    matcher_.fill_mask(masks_.subspan(row * words, words));
    for (const size_t child : children_[row]) {
      if (!matcher_.accept_token(tree_.tokens[child])) continue;
      taken_[child] = true;
      visit(child + 1);
      matcher_.rollback(1);
    }
  }

  Matcher& matcher_;
  const DraftTree& tree_;
  const std::span<uint32_t> masks_;
  std::vector<std::vector<size_t>> children_;  // [row]
  std::vector<bool> taken_;
};

}  // namespace

std::vector<bool> fill_draft_masks(Matcher& matcher, const DraftTree& tree,
                                   std::span<uint32_t> masks) {
  const size_t rows = tree.tokens.size() + 1;
  ESP_CHECK(tree.parents.size() == tree.tokens.size());
  ESP_CHECK(masks.size() == rows * static_cast<size_t>(matcher.words_per_mask()));
  return TreeWalk(matcher, tree, masks).run();
}

std::vector<std::string> few_ways_on(Matcher& matcher, size_t ways_max, size_t bytes_max) {
  std::vector<std::string> open = {""}, out;
  if (matcher.ended() || matcher.can_end()) return out;
  while (!open.empty()) {
    std::string way = std::move(open.back());
    open.pop_back();
    const size_t steps = matcher.steps();
    ESP_CHECK(way.empty() || matcher.accept_bytes(way));
    const std::string forced = matcher.forced_bytes(bytes_max - way.size());
    if (!forced.empty()) {
      ESP_CHECK(matcher.accept_bytes(forced));
      way += forced;
    }
    std::vector<char> next;
    const bool told = way.size() >= bytes_max || matcher.can_end();
    for (int b = 0; b < 256 && !told && out.size() + open.size() + next.size() <= ways_max; ++b) {
      const char byte = static_cast<char>(b);
      if (!matcher.accept_bytes({&byte, 1})) continue;
      matcher.rollback(1);
      next.push_back(byte);
    }
    matcher.rollback(matcher.steps() - steps);
    const bool too_many = out.size() + open.size() + next.size() > ways_max;
    if (too_many && way.empty()) return {};
    if (told || too_many || next.empty()) {
      out.push_back(std::move(way));
    } else {
      for (const char byte : next) open.push_back(way + byte);
    }
  }
  std::ranges::sort(out);
  return out;
}

}  // namespace espalier::grammar
