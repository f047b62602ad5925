#include "grammar/masks/draft_masks.h"

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
  // Recursion is at most as deep as the draft is long: a few tokens.
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
  std::vector<std::vector<size_t>> children_;  // [row] its child rows
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

}  // namespace espalier::grammar
