#include "grammar/masks/item_lookahead.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "grammar/masks/stored_mask.h"

namespace espalier::grammar {
namespace {

bool is_json_space(uint8_t byte) {
  return byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t';
}

// Returns whether the byte makes another spelling of numbers that plain digits spell as well: an
// exponent, and zeros behind zeros of a fraction.
bool only_respells(std::string_view number, uint8_t byte) {
  if (number.empty()) return false;
  if (byte == 'e' || byte == 'E') return true;
  return byte == '0' && number.find('.') != std::string_view::npos && number.ends_with("00");
}

bool is_comparison(const IrRules::Check& check) {
  return check.checker->compares_items(check.number);
}

}  // namespace

ItemLookahead::ItemLookahead(EarleyRecogniser& earley, const TokenTrie& trie)
    : earley_(earley),
      trie_(trie),
      only_items_(std::ranges::all_of(earley.network().checks, is_comparison)) {}

bool ItemLookahead::needed(const Network& network) {
  return std::ranges::any_of(network.checks, is_comparison);
}

// Returns whether the node's rule calls, from the node on, a rule that compares items.
bool ItemLookahead::calls_comparison(NodeId node) {
  const Network& network = earley_.network();
  constexpr size_t kNodesMax = 256;  // what leads to more may compare items
  std::vector<NodeId> found = {node};
  const auto add = [&](NodeId target) {
    if (std::ranges::find(found, target) == found.end()) found.push_back(target);
  };
  for (size_t i = 0; i < found.size() && found.size() < kNodesMax; ++i) {
    for (const Network::ByteEdge& edge : network.bytes_of(found[i])) add(edge.target);
    for (const Network::CallEdge& edge : network.calls_of(found[i])) {
      if (edge.rule != Network::kNoRule) {
        const NodeId start = network.starts[edge.rule];
        if (start == Network::kNotBuilt || network.nodes[start].check >= 0) return true;
      }
      add(edge.target);
    }
    const Network::Node& at = network.nodes[found[i]];
    for (uint32_t e = at.counts_begin; e < at.counts_end; ++e) add(network.count_edges[e].target);
  }
  return found.size() >= kNodesMax;
}

// Returns whether the node is in a rule that compares items, or before a call of one.
bool ItemLookahead::compares_at(NodeId node) {
  if (node_compares_.size() <= node) node_compares_.resize(earley_.network().nodes.size(), 0);
  if (node_compares_[node] == 0)
    node_compares_[node] =
        earley_.network().nodes[node].check >= 0 || calls_comparison(node) ? 1 : 2;
  return node_compares_[node] == 1;
}

// Returns whether an item of the set, or one that it returns to, is at such a node.
bool ItemLookahead::compares(SetId set) {
  if (compares_.size() <= set) compares_.resize(earley_.num_sets() + 1, 0);
  if (compares_[set] != 0) return compares_[set] == 1;
  const EarleySets& sets = earley_.sets();
  std::vector<ReturnId> returns;
  bool found = false;
  const auto visit = [&](NodeId node, ReturnId to) {
    found |= compares_at(node);
    if (to > ReturnStates::kUnknown && std::ranges::find(returns, to) == returns.end())
      returns.push_back(to);
  };
  for (const auto& items : {sets.kernel(set), sets.scanning(set)}) {
    for (const EarleyItem& item : items) visit(item.node, item.return_id);
  }
  for (size_t i = 0; i < returns.size() && !found; ++i) {
    const ReturnStates::State origin = earley_.closure().returns()[returns[i]];
    for (const EarleyCall& call : sets.calls_of(origin.set, origin.rule))
      visit(call.target, call.return_id);
  }
  compares_[set] = found ? 1 : 2;
  return found;
}

SetId ItemLookahead::step(SetId from, uint8_t byte, std::string_view text, std::string_view read) {
  const SetId to = earley_.step_without_text(from, byte);
  spend(1);
  if (to != EarleySets::kNeedsText) return to;
  spend(text.size() / kBytesCopied + text.size() / kBytesChecked);
  whole_.assign(text);
  whole_ += read;
  return earley_.step(from, byte, whole_);
}

bool ItemLookahead::leads_on(SetId set, const OpenItems& items, std::string_view text) {
  work_left_ = kWorkMax;
  return search(set, items, text);
}

bool ItemLookahead::search(SetId set, const OpenItems& items, std::string_view text) {
  if (items.all_differ() || !compares(set) || earley_.accepting(set)) return true;
  Search ways{.text = text, .soon = {}, .late = {}};
  ways.soon.push_back({set, items, {}});
  for (size_t steps = 0; !ways.soon.empty(); ++steps) {
    if (steps == kStepsMax || work_left_ == 0 || earley_.closure().near_limit()) return true;
    const Ahead from = std::move(ways.soon.front());
    ways.soon.pop_front();
    if (found_way(from, ways)) return true;
  }
  return earley_.exhausted();
}

// Returns whether one more byte suffices; else adds the continuations by one byte. White space and
// other spellings of a number lead to no other values, so they are followed where nothing else is.
bool ItemLookahead::found_way(const Ahead& from, Search& search) {
  const Network& network = earley_.network();
  std::array<uint8_t, 256> dead{};  // [class] whether its bytes lead nowhere
  search.late.clear();
  bool any = false;
  for (int i = 0; i < 256; ++i) {
    const auto byte = static_cast<uint8_t>(i ^ 0x60);  // letters come first
    if (dead[network.byte_class[byte]] != 0) continue;
    const SetId to = step(from.set, byte, search.text, from.read);
    if (to == EarleySets::kDead) {
      dead[network.byte_class[byte]] = 1;
      continue;
    }
    if (earley_.accepting(to)) return true;
    const bool space = !from.items.in_string() && is_json_space(byte);
    if (space && to == from.set) continue;
    const bool late = space || only_respells(from.items.number(), byte);
    Ahead next{to, from.items, from.read};
    const auto c = static_cast<char>(byte);
    next.items.read({&c, 1});
    if (!late && next.items.all_differ()) return true;
    next.read += c;
    any |= !late;
    (late ? search.late : search.soon).push_back(std::move(next));
  }
  if (!any) std::ranges::move(search.late, std::back_inserter(search.soon));
  return false;
}

// What a walk of the vocabulary reads and changes.
struct ItemLookahead::Walk {
  std::string_view text;
  std::span<uint32_t> words;
};

// Walks the tokens behind which the item under way may equal an earlier one. Behind the others it
// differs, whatever follows within them; those that end an item are conditional.
void ItemLookahead::restrict_below(Walk& walk, uint32_t row, const Ahead& from) {
  const TrieWalk& tokens = trie_.all();
  const auto allowed = [&](uint32_t t) {
    const auto id = static_cast<size_t>(tokens.token_ids[t]);
    return (walk.words[id / 32] >> (id % 32) & 1) != 0;
  };
  for (uint32_t c = tokens.children_begin[row]; c < tokens.children_begin[row + 1]; ++c) {
    if (work_left_ == 0) return;
    spend(1);
    const uint32_t node = tokens.children[c];
    const SetId to = earley_.step_without_text(from.set, tokens.nodes[node].byte);
    if (!EarleySets::leads_on(to)) continue;
    Ahead next{to, from.items, from.read};
    const auto byte = static_cast<char>(tokens.nodes[node].byte);
    next.items.read({&byte, 1});
    if (next.items.all_differ_inside()) continue;
    next.read += byte;
    const uint32_t begin = tokens.nodes[node].tokens_begin;
    const uint32_t end = tokens.nodes[node + 1].tokens_begin;
    bool some = false;
    for (uint32_t t = begin; t < end; ++t) some |= allowed(t);
    if (some) {
      spend(walk.text.size() / kBytesCopied);
      std::string text(walk.text);
      text += next.read;
      if (!search(to, next.items, text)) {
        const uint32_t last = tokens.nodes[tokens.nodes[node].skip].tokens_begin;
        for (uint32_t t = begin; t < last; ++t) set_token(walk.words, tokens.token_ids[t], false);
        continue;
      }
    }
    restrict_below(walk, node + 1, next);
  }
}

// Follows a token's bytes; returns false where a check refuses them.
bool ItemLookahead::follow(TokenId token, std::string_view text, Ahead& at) {
  for (const char c : trie_.bytes(token)) {
    at.set = step(at.set, static_cast<uint8_t>(c), text, at.read);
    if (at.set == EarleySets::kDead) return false;
    at.read += c;
  }
  at.items.read(trie_.bytes(token));
  return true;
}

void ItemLookahead::restrict(SetId set, const OpenItems& items, std::string_view text,
                             std::span<const TokenId> conditional, std::span<uint32_t> words) {
  work_left_ = kWorkMax;
  std::string whole(text);
  const bool innermost_alone = only_items_ && !items.any_complete_outside();
  for (const TokenId token : conditional) {
    const auto id = static_cast<size_t>(token);
    if ((words[id / 32] >> (id % 32) & 1) == 0) continue;
    // The token ends an item. Without a comma or a bracket no other one is under way behind it.
    if (innermost_alone && trie_.bytes(token).find_first_of(",[") == std::string_view::npos)
      continue;
    if (work_left_ == 0) return;
    Ahead at{set, items, {}};
    if (!follow(token, text, at)) continue;
    whole.resize(text.size());
    whole += at.read;
    if (!search(at.set, at.items, whole)) set_token(words, token, false);
  }
  if (!items.any_complete() || items.all_differ_inside() || !compares(set)) return;
  Walk walk{text, words};
  restrict_below(walk, 0, {set, items, {}});
}

}  // namespace espalier::grammar
