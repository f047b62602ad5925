#include "engine/requests/join.h"

#include <algorithm>

namespace espalier {

Status check_join(const JoinRequest& request) {
  if (request.prefix.empty())
    return invalid_argument("branches are joined behind a common prefix of one token or more");
  if (request.branches.size() < 2)
    return invalid_argument("a join needs two branches or more, not {}", request.branches.size());
  if (std::ranges::any_of(request.branches, [](const auto& b) { return b.empty(); }))
    return invalid_argument("a branch without a token cannot be joined: leave it out");
  return {};
}

JoinedPrompt joined_prompt(const JoinRequest& request) {
  // Keys that users give hold no control characters by custom; how the tokens are cut into branches
  // is part of what they stand for.
  JoinedPrompt joined{
      .extra_key = fmt::format("{}\x1f{}", request.extra_key, request.prefix.size()),
      .input_ids = request.prefix};
  for (const std::vector<TokenId>& branch : request.branches) {
    joined.extra_key += fmt::format("+{}", branch.size());
    joined.input_ids.insert(joined.input_ids.end(), branch.begin(), branch.end());
  }
  return joined;
}

}  // namespace espalier
