#include "grammar/masks/budget_masks.h"

#include <algorithm>
#include <string>
#include <utility>

#include "grammar/automata/held_bytes.h"

namespace espalier::grammar {
namespace {

// A byte of the edge, a letter or a digit where the edge has one, so that tokens of several
// characters spell it.
uint8_t byte_of(const Network::ByteEdge& edge) {
  for (const uint8_t wanted : {uint8_t{'a'}, uint8_t{'0'}})
    if (edge.low <= wanted && wanted <= edge.high) return wanted;
  return edge.low;
}

bool is_set(std::span<const uint32_t> words, TokenId token) {
  return (words[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0;
}

}  // namespace

BudgetMasks::Step& BudgetMasks::step_at(SetId set) {
  if (set >= steps_.size()) steps_.resize(std::max<size_t>(earley_.num_sets() + 1, set + 1));
  return steps_[set];
}

uint32_t BudgetMasks::bytes_to_end(SetId set) {
  if (earley_.accepting(set)) return 0;
  uint32_t least = kNone;
  for (const EarleyItem& item : earley_.sets().kernel(set))
    least = std::min(least, bytes_behind(item));
  return least;
}

uint32_t BudgetMasks::bytes_behind(const EarleyItem& item) {
  const uint32_t rest = return_distance(item.return_id);
  return std::min(kNone, distances_.to_rule_end(item.node, item.count) + rest);
}

uint32_t BudgetMasks::return_distance(ReturnId id) {
  if (id == ReturnStates::kRoot) return 0;
  if (id == ReturnStates::kUnknown) return kNone;
  if (id >= returns_.size() || returns_[id] == kUnknown) settle_return(id);
  return returns_[id];
}

// Callers first, with a stack of its own: texts may be nested deeply. A return state among its own
// callers (left recursion) adds nothing to the least distance.
void BudgetMasks::settle_return(ReturnId wanted) {
  constexpr uint32_t kVisited = kUnknown - 1;
  pending_.assign(1, wanted);
  while (!pending_.empty()) {
    const ReturnId id = pending_.back();
    if (id >= returns_.size()) returns_.resize(size_t{id} + 1, kUnknown);
    if (returns_[id] < kVisited) {
      pending_.pop_back();
      continue;
    }
    const bool first = std::exchange(returns_[id], kVisited) == kUnknown;
    const ReturnStates::State origin = earley_.closure().returns()[id];
    uint32_t least = kNone;
    bool waits = false;
    for (const EarleyCall& call : earley_.sets().calls_of(origin.set, origin.rule)) {
      const ReturnId next = call.return_id;
      if (next == ReturnStates::kUnknown) continue;
      const bool root = next == ReturnStates::kRoot;
      const uint32_t behind = root ? 0 : next < returns_.size() ? returns_[next] : kUnknown;
      if (first && behind == kUnknown) {
        pending_.push_back(next);
        waits = true;
      } else if (behind < kVisited) {
        least = std::min(least, distances_.to_rule_end(call.target, call.count) + behind);
      }
    }
    if (waits) continue;
    returns_[id] = std::min(least, kNone);
    pending_.pop_back();
  }
}

// Chooses the byte that leads to the end most shortly. Returns false where none is known to.
bool BudgetMasks::plan_step(SetId set) {
  const Network& network = earley_.network();
  uint32_t least = kNone;
  uint8_t byte = 0;
  for (const EarleyItem& item : earley_.sets().scanning(set)) {
    const uint32_t rest = return_distance(item.return_id);
    for (const Network::ByteEdge& edge : network.bytes_of(item.node)) {
      const uint32_t bytes = 1 + rest + distances_.to_rule_end(edge.target, item.count);
      if (bytes >= least || !network.has_room(edge.target, item.count)) continue;
      least = bytes;
      byte = byte_of(edge);
    }
  }
  if (least >= kNone) return false;
  const SetId next = earley_.step_without_text(set, byte);
  if (!EarleySets::leads_on(next) || bytes_to_end(next) >= bytes_to_end(set)) return false;
  step_at(set).next = next;
  step_at(set).byte = byte;
  return true;
}

// Counts the fewest tokens of the text that is planned from the set: those of what is behind each
// token with which it may begin, and one.
void BudgetMasks::count_tokens(SetId set) {
  const TrieWalk& walk = trie_.all();
  uint32_t least = kNone;
  size_t row = 0;
  for (SetId at = set; step_at(at).next != EarleySets::kDead; at = step_at(at).next) {
    const auto begin = walk.child_bytes.begin() + walk.children_begin[row];
    const auto end = walk.child_bytes.begin() + walk.children_begin[row + 1];
    const auto found = std::lower_bound(begin, end, step_at(at).byte);
    if (found == end || *found != step_at(at).byte) break;
    const uint32_t node = walk.children[static_cast<size_t>(found - walk.child_bytes.begin())];
    if (walk.nodes[node].tokens_begin != walk.nodes[node + 1].tokens_begin)
      least = std::min(least, step_at(step_at(at).next).tokens + 1);
    row = size_t{node} + 1;
  }
  step_at(set).tokens = std::min(least, kNone);
}

uint32_t BudgetMasks::tokens_to_end(SetId set) {
  path_.clear();
  for (SetId at = set; step_at(at).tokens == kUnknown; at = step_at(at).next) {
    if (earley_.accepting(at)) {
      step_at(at).tokens = 0;
      break;
    }
    if (!plan_step(at)) {
      step_at(at).tokens = bytes_to_end(at);
      break;
    }
    path_.push_back(at);
  }
  for (; !path_.empty(); path_.pop_back()) count_tokens(path_.back());
  return step_at(set).tokens;
}

// Calls visit(token, set behind the token) for every token of the mask that has bytes.
template <typename Visit>
void BudgetMasks::for_each_target(SetId set, std::string_view text, std::span<const uint32_t> words,
                                  Visit visit) {
  const TrieWalk& walk = trie_.all();
  const bool checked = earley_.has_checks();
  sets_.assign(static_cast<size_t>(walk.depth_max) + 1, set);
  text_ = text;
  const size_t num_nodes = walk.nodes.size() - 1;  // without the sentinel
  for (size_t i = 0; i < num_nodes;) {
    const TrieWalk::Node& node = walk.nodes[i];
    earley_.begin_call();
    if (checked) text_.resize(text.size() + node.depth);
    const SetId to = earley_.step(sets_[node.depth], node.byte, text_);
    if (to == EarleySets::kDead) {
      i = node.skip;
      continue;
    }
    if (checked) text_.push_back(static_cast<char>(node.byte));
    sets_[size_t{node.depth} + 1] = to;
    for (uint32_t t = node.tokens_begin; t < walk.nodes[i + 1].tokens_begin; ++t)
      if (is_set(words, walk.token_ids[t])) visit(walk.token_ids[t], to);
    ++i;
  }
}

void BudgetMasks::keep_within(SetId set, std::string_view text, uint32_t tokens_left,
                              std::span<uint32_t> words) {
  const uint32_t after = tokens_left - std::min(tokens_left, 1u);
  if (const auto known = need_max_.find(set); known != need_max_.end() && known->second <= after)
    return;
  uint32_t least = kUnknown, most = 0;
  needs_.assign(static_cast<size_t>(trie_.vocab_size()), kUnknown);
  const auto note = [&](TokenId token, uint32_t need) {
    needs_[static_cast<size_t>(token)] = need;
    least = std::min(least, need);
    most = std::max(most, need);
  };
  for_each_target(set, text, words,
                  [&](TokenId token, SetId to) { note(token, tokens_to_end(to)); });
  for (const TokenId token : trie_.eos_ids())
    if (is_set(words, token)) note(token, 0);
  if (!earley_.has_checks() && !earley_.exhausted()) need_max_[set] = most;
  if (least == kUnknown || most <= after) return;
  const uint32_t bound = std::max(least, after);
  for (size_t token = 0; token < needs_.size(); ++token)
    if (needs_[token] > bound) words[token / 32] &= ~(1u << (token % 32));
}

// One token opens few rules, so its bytes add no more than kOpened times what one edge adds.
uint32_t BudgetMasks::next_check(SetId set, uint32_t tokens_left) {
  constexpr uint64_t kOpened = 16, kMargin = 64;
  const uint64_t reserve = uint64_t{bytes_to_end(set)} + kMargin;
  if (tokens_left <= reserve) return tokens_left;
  const uint64_t per_token = kOpened * distances_.increase_max() + 1;
  return tokens_left - static_cast<uint32_t>((tokens_left - reserve) / per_token);
}

size_t BudgetMasks::num_bytes() const {
  return distances_.num_bytes() + held_bytes(steps_) + held_bytes(returns_) +
         held_bytes_of_map(need_max_) + held_bytes(pending_) + held_bytes(path_) +
         held_bytes(sets_) + held_bytes(needs_);
}

}  // namespace espalier::grammar
