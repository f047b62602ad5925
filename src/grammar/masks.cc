#include "grammar/masks.h"

#include <algorithm>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "base/rng.h"

namespace espalier::grammar {
namespace {

// What the masks of one grammar may take, bytes; beyond it they are dropped and made again.
constexpr size_t kKeptBytesMax = size_t{64} << 20;

// More changes than this are kept as words.
constexpr size_t kChangesMax = 512;

// States that the characters of a string's inside may lead to, and places of an automaton, to be
// looked at as a whole.
constexpr size_t kInsideStatesMax = 8;
constexpr size_t kInsidePlacesMax = 8000;

bool leads_on(SetId to) { return to != Machine::kDead && to != Machine::kDepends; }

constexpr uint32_t allowed(TokenId token) { return static_cast<uint32_t>(token) * 2 + 1; }

void set_bit(std::span<uint32_t> words, uint32_t token, bool on) {
  const uint32_t bit = 1u << (token % 32);
  words[token / 32] = on ? words[token / 32] | bit : words[token / 32] & ~bit;
}

// What a string's inside asks of a place in it: between characters (0), or amid one, by the bytes
// that it still needs. Bytes low to high lead to a place of the kind `to`.
struct InsideStep {
  uint8_t low, high, to;
};
std::span<const InsideStep> inside_steps(uint8_t kind) {
  static constexpr InsideStep kBetween[] = {{0x20, 0x21, 0}, {0x23, 0x5b, 0}, {0x5d, 0x7f, 0},
                                            {0xc2, 0xdf, 1}, {0xe0, 0xe0, 4}, {0xe1, 0xec, 2},
                                            {0xed, 0xed, 5}, {0xee, 0xef, 2}, {0xf0, 0xf0, 6},
                                            {0xf1, 0xf3, 3}, {0xf4, 0xf4, 7}};
  static constexpr InsideStep kAmid[] = {{0x80, 0xbf, 0}, {0x80, 0xbf, 1}, {0x80, 0xbf, 2},
                                         {0xa0, 0xbf, 1}, {0x80, 0x9f, 1}, {0x90, 0xbf, 2},
                                         {0x80, 0x8f, 2}};
  if (kind == 0) return kBetween;
  return {kAmid + kind - 1, 1};
}

}  // namespace

size_t Masks::TailHash::operator()(const TailKey& key) const {
  return mix64(reinterpret_cast<uintptr_t>(key.masks) ^ mix64(key.after));
}

Masks::Masks(Machine& machine, const TokenTrie& trie) : machine_(machine), trie_(trie) {
  path_.resize(static_cast<size_t>(trie.all().depth_max) + 1);
  other_path_.resize(path_.size());
  scratch_.resize(static_cast<size_t>(trie.words_per_mask()));
}

// One scan of the trie: a refused byte skips its subtree; a check's verdict is left to be asked.
template <typename Allow, typename Ask>
void Masks::walk(const TrieWalk& walk, SetId from, Allow allow, Ask ask) {
  path_[0] = from;
  const TrieWalk::Node* const nodes = walk.nodes.data();
  const size_t end = walk.nodes.size() - 1;
  for (size_t i = 0; i < end;) {
    const TrieWalk::Node& node = nodes[i];
    const SetId to = step(path_[node.depth], node.byte);
    if (to == Machine::kDead || to == Machine::kDepends) {
      if (to == Machine::kDepends) {
        for (uint32_t t = node.tokens_begin; t < nodes[node.skip].tokens_begin; ++t) ask(t);
      }
      i = node.skip;
      continue;
    }
    path_[node.depth + 1] = to;
    for (uint32_t t = node.tokens_begin; t < nodes[i + 1].tokens_begin; ++t) allow(t);
    ++i;
  }
}

void Masks::walk_into(const TrieWalk& tokens, SetId from, Mask& mask) {
  walk(
      tokens, from, [&](uint32_t t) { mask.changes.push_back(allowed(tokens.token_ids[t])); },
      [&](uint32_t t) { mask.asked.push_back(tokens.token_ids[t]); });
}

// Tries the tokens whose verdict depends on the text; those with the same bytes up to a check share
// its answer.
bool Masks::ask(const Mask& mask, SetId set, std::string_view text, std::span<uint32_t> words) {
  bool any = false;
  std::string read(text);
  std::string_view last;
  size_t known = 0;  // bytes of `last` whose states are in path_
  path_[0] = set;
  for (TokenId token : mask.asked) {
    const std::string_view bytes = trie_.bytes(token);
    const auto [differs, _] = std::ranges::mismatch(last.substr(0, known), bytes);
    known = static_cast<size_t>(differs - last.begin());
    for (; known < bytes.size() && path_[known] != Machine::kDead; ++known) {
      read.resize(text.size() + known);
      path_[known + 1] = machine_.step(path_[known], static_cast<uint8_t>(bytes[known]), read);
      read.push_back(bytes[known]);
    }
    const bool on = known == bytes.size() && path_[known] != Machine::kDead;
    set_bit(words, static_cast<uint32_t>(token), on);
    any |= on;
    last = bytes;
  }
  return any;
}

// Which tokens that end a lexeme may come, by what they have after it: known for each state that
// may follow the lexeme.
const Masks::Found& Masks::tails_of(const LexemeMasks& masks, SetId after) {
  const auto [it, added] = tails_.try_emplace({&masks, after});
  Found& found = it->second;
  if (!added) return found;
  const bool depends = after == Machine::kDepends;
  std::vector<uint32_t>& at_once = depends ? found.asked : found.allowed;
  const uint32_t all = depends ? static_cast<uint32_t>(masks.tails.token_ids.size())
                               : masks.tails.nodes[0].tokens_begin;
  for (uint32_t t = 0; t < all; ++t) at_once.push_back(t);
  if (depends) return found;
  walk(
      masks.tails, after, [&](uint32_t t) { found.allowed.push_back(t); },
      [&](uint32_t t) { found.asked.push_back(t); });
  return found;
}

// One place inside a lexeme: the vocabulary knows which tokens stay inside, and what the others
// have after its end is few bytes.
bool Masks::by_lexeme(SetId set, Mask& mask) {
  const Machine::Inside inside = machine_.inside(set);
  if (inside.tag == 0) return false;
  const LexemeTag tag = to_tag(inside.tag);
  const LexemeAutomaton& automaton = lexeme_automaton(tag.lexeme);
  if (tag.state == automaton.end) return false;
  const LexemeMasks& masks = trie_.lexeme(tag.lexeme)[tag.state];
  const Found& tails = tails_of(masks, machine_.after_lexeme(set));
  if (inside.most >= (masks.inside_characters.empty() ? 0 : masks.inside_characters.back())) {
    mask.base = &masks.inside;
  } else {
    const auto end = std::ranges::upper_bound(masks.inside_characters, inside.most);
    size_t first = 0;
    const auto& up_to = trie_.string_up_to();
    if (tag.lexeme == Lexeme::kString && tag.state == automaton.inside) {
      const size_t characters = std::min<size_t>(inside.most, up_to.size() - 1);
      mask.base = &up_to[characters];
      first = static_cast<size_t>(std::ranges::upper_bound(masks.inside_characters, characters) -
                                  masks.inside_characters.begin());
    }
    const auto last = static_cast<size_t>(end - masks.inside_characters.begin());
    for (size_t i = first; i < last; ++i) mask.changes.push_back(allowed(masks.inside_ids[i]));
  }
  const auto fits = [&](uint32_t t) {
    const uint32_t characters = masks.tail_characters[t];
    return inside.least <= characters && characters <= inside.most;
  };
  for (uint32_t t : tails.allowed) {
    if (fits(t)) mask.changes.push_back(allowed(masks.tails.token_ids[t]));
  }
  for (uint32_t t : tails.asked) {
    if (fits(t)) mask.asked.push_back(masks.tails.token_ids[t]);
  }
  return true;
}

// The states that the characters which may stand in a JSON string's inside lead to, each once.
// False where some character leads nowhere, or to more than kInsideStatesMax states.
bool Masks::inside_successors(SetId set, std::vector<SetId>& out) {
  struct Tail {
    int lead_low, lead_high, low, high, more;  // lead bytes, the second byte, bytes after it
  };
  constexpr Tail kTails[] = {{0xc2, 0xdf, 0x80, 0xbf, 0}, {0xe0, 0xe0, 0xa0, 0xbf, 1},
                             {0xe1, 0xec, 0x80, 0xbf, 1}, {0xed, 0xed, 0x80, 0x9f, 1},
                             {0xee, 0xef, 0x80, 0xbf, 1}, {0xf0, 0xf0, 0x90, 0xbf, 2},
                             {0xf1, 0xf3, 0x80, 0xbf, 2}, {0xf4, 0xf4, 0x80, 0x8f, 2}};
  const auto lead_to = [&](auto&& self, SetId from, int low, int high, int more) -> bool {
    SetId last = Machine::kDead;
    for (int b = low; b <= high; ++b) {
      const SetId to = step(from, b);
      if (!leads_on(to)) return false;
      if (to == last) continue;
      last = to;
      if (more > 0) {
        if (!self(self, to, 0x80, 0xbf, more - 1)) return false;
      } else if (std::ranges::find(out, to) == out.end()) {
        if (out.size() == kInsideStatesMax) return false;
        out.push_back(to);
      }
    }
    return true;
  };
  // Letters first: most sets that are no string's inside end here.
  if (!leads_on(step(set, 'a')) || !leads_on(step(set, ' '))) return false;
  for (const auto& [low, high] : {std::pair{0x20, 0x21}, {0x23, 0x5b}, {0x5d, 0x7f}}) {
    if (!lead_to(lead_to, set, low, high, 0)) return false;
  }
  for (const Tail& tail : kTails) {
    SetId last = Machine::kDead;
    for (int lead = tail.lead_low; lead <= tail.lead_high; ++lead) {
      const SetId to = step(set, lead);
      if (!leads_on(to)) return false;
      if (to != last && !lead_to(lead_to, to, tail.low, tail.high, tail.more)) return false;
      last = to;
    }
  }
  return true;
}

// The one state that all these characters lead to, or kDead; remembered.
SetId Masks::next_inside(SetId set) {
  const auto [it, added] = next_inside_.try_emplace(set, Machine::kDead);
  if (!added) return it->second;
  std::vector<SetId> next;
  const bool one = inside_successors(set, next) && next.size() == 1;
  return next_inside_[set] = one ? next[0] : Machine::kDead;
}

// Whether a string's inside goes on for ever from this node of the network, by nodes of its rule:
// what must come somewhere in it may still come. The greatest set of places that lead to such
// places by every character.
bool Masks::inside_for_ever(NodeId start) {
  const Network& network = machine_.network();
  const auto key = [](NodeId node, uint8_t kind) { return uint64_t{node} << 3 | kind; };
  if (const auto it = for_ever_.find(key(start, 0)); it != for_ever_.end()) return it->second;
  std::vector<uint64_t> places = {key(start, 0)};
  std::unordered_map<uint64_t, bool> holds = {{places[0], true}};
  for (size_t i = 0; i < places.size(); ++i) {
    const auto node = static_cast<NodeId>(places[i] >> 3);
    if (network.nodes[node].counter >= 0 || places.size() > kInsidePlacesMax) {
      return for_ever_[places[0]] = false;
    }
    for (const InsideStep& step : inside_steps(places[i] & 7)) {
      for (const Network::ByteEdge& edge : network.bytes_of(node)) {
        if (edge.high < step.low || step.high < edge.low) continue;
        if (holds.emplace(key(edge.target, step.to), true).second) {
          places.push_back(key(edge.target, step.to));
        }
      }
    }
  }
  const auto covered = [&](NodeId node, const InsideStep& step) {
    int next = step.low;
    for (bool more = true; more && next <= step.high;) {
      more = false;
      for (const Network::ByteEdge& edge : network.bytes_of(node)) {
        if (next > step.high || edge.low > next || edge.high < next ||
            !holds.at(key(edge.target, step.to)))
          continue;
        next = edge.high + 1;
        more = true;
      }
    }
    return next > step.high;
  };
  for (bool changed = true; changed && holds.at(places[0]);) {
    changed = false;
    for (size_t i = places.size(); i-- > 0;) {
      bool& now = holds.at(places[i]);
      if (!now) continue;
      now = std::ranges::all_of(inside_steps(places[i] & 7), [&](const InsideStep& step) {
        return covered(static_cast<NodeId>(places[i] >> 3), step);
      });
      changed |= !now;
    }
  }
  if (!holds.at(places[0])) return for_ever_[places[0]] = false;
  for_ever_.insert(holds.begin(), holds.end());
  return true;
}

// Whether no character of a string's inside leads on. REQUIRES: no bytes but those of characters
// do.
bool Masks::inside_ends(SetId set) {
  for (int b = 0x20; b < 0x100; ++b) {
    if (b == '"' || b == '\\') continue;
    if (step(set, b) != Machine::kDead) return false;
  }
  return true;
}

// Where a string's inside that no lexeme is goes on as it was, or goes on from state to state until
// it must end: its tokens at once, and the rests of the others. False where it does neither.
bool Masks::inside_string(SetId set, Mask& mask) {
  const SetId next = next_inside(set);
  if (next == Machine::kDead) return false;
  if (next == set || machine_.canonical(next) == set) {
    mask.base = &trie_.string_inside_mask();
    walk_into(trie_.rests(), set, mask);
  } else {
    // The states after so many characters, as far as tokens reach.
    const std::vector<TrieWalk>& rests = trie_.rests_after();
    const size_t longest = std::max(trie_.inside_characters_max(), rests.size());
    std::vector<SetId> chain = {set};
    while (chain.size() <= longest) {
      const SetId now = next_inside(chain.back());
      if (now == Machine::kDead) break;
      chain.push_back(now);
    }
    if (chain.size() <= longest && !inside_ends(chain.back())) return false;
    for (size_t i = 0; i < std::min(chain.size(), rests.size()); ++i)
      walk_into(rests[i], chain[i], mask);
    mask.words.assign(scratch_.size(), 0);
    trie_.add_string_inside(chain.size() - 1, mask.words);
  }
  return true;
}

// Where a string's inside goes on for ever, its tokens at once; the others are walked.
bool Masks::by_inside_for_ever(SetId set, Mask& mask) {
  const auto node = machine_.only_node(set);
  if (!node || !inside_for_ever(*node)) return false;
  mask.base = &trie_.string_inside_mask();
  walk_into(trie_.not_string_inside(), set, mask);
  return true;
}

// The states between characters that one character of the kind leads to, added to absorbing_;
// false where some such character leads nowhere. `any`: set where some byte leads on.
bool Masks::lead_by_kind(int kind, SetId from, bool& any) {
  const std::vector<KindEdge>& edges = kind_edges_[static_cast<size_t>(kind)];
  bool all = true;
  amid_.clear();
  const auto follow = [&](auto&& self, uint8_t place, SetId at) -> void {
    SetId last = Machine::kDead;
    for (const KindEdge& edge : edges) {
      if (edge.from != place) continue;
      const SetId to = step(at, edge.byte);
      if (!leads_on(to)) {
        all = false;
        continue;
      }
      any = true;
      if (edge.to != CharKindAutomaton::kWhole) {
        if (std::ranges::find(amid_, std::pair(edge.to, to)) != amid_.end()) continue;
        amid_.emplace_back(edge.to, to);
        self(self, edge.to, to);
      } else if (to != last) {
        last = to;
        const SetId next = machine_.canonical(to);
        if (absorb_rounds_.size() <= next) absorb_rounds_.resize(machine_.num_sets() + next, 0);
        if (std::exchange(absorb_rounds_[next], absorb_round_) != absorb_round_) {
          absorbing_.push_back(next);
        }
      }
    }
  };
  follow(follow, CharKindAutomaton::kStart, from);
  return all;
}

// The kinds of characters that lead on from the state, whatever they are and however often they
// come; or up to so many `characters`, after which none of them may come.
CharKinds Masks::absorbed(SetId set, size_t& characters) {
  constexpr size_t kStatesMax = 300;
  const auto longest = static_cast<size_t>(trie_.all().depth_max);
  characters = std::string_view::npos;
  for (CharKinds kinds = kAllCharKinds; kinds != 0;) {
    ++absorb_round_;
    absorbing_ = {set};
    CharKinds failed = 0;
    size_t begin = 0;
    for (size_t level = 0; begin < absorbing_.size() && level <= longest; ++level) {
      bool any = false;
      for (const size_t end = absorbing_.size(); begin < end; ++begin) {
        for (int kind = 0; kind < kNumCharKinds; ++kind) {
          if (kinds >> kind & 1 && !lead_by_kind(kind, absorbing_[begin], any)) failed |= 1 << kind;
        }
      }
      if (level > 0 && !any) {
        // Tokens of ASCII are told apart by their lengths; others are walked.
        failed = kinds & ~kAsciiCharKinds;
        if (failed != 0) break;
        characters = level;
        return kinds;
      }
      if (absorbing_.size() > kStatesMax) return 0;
      if (failed != 0) break;
    }
    if (failed == 0) return kinds;
    kinds &= ~failed;
  }
  return 0;
}

// Where some kinds of characters lead on whatever they are (a pattern's classes), the tokens of
// nothing else at once; the others are walked.
bool Masks::by_kinds(SetId set, Mask& mask) {
  if (kind_edges_[0].empty()) make_kind_edges();
  size_t characters = 0;
  const CharKinds kinds = absorbed(set, characters);
  if (kinds == 0) return false;
  if (characters == std::string_view::npos) {
    mask.base = &trie_.of_kinds(kinds);
  } else {
    mask.words.assign(scratch_.size(), 0);
    trie_.add_of_kinds(kinds, characters, mask.words);
  }
  const TrieWalk& all = trie_.all();
  const std::vector<CharKinds>& below = trie_.kinds_below();
  path_[0] = set;
  const size_t end = all.nodes.size() - 1;
  for (size_t i = 0; i < end;) {
    const TrieWalk::Node& node = all.nodes[i];
    const bool known = (below[i] & ~kinds) == 0;
    const SetId to = known ? Machine::kDead : step(path_[node.depth], node.byte);
    if (to == Machine::kDepends) {
      const auto first = all.token_ids.begin();
      mask.asked.insert(mask.asked.end(), first + node.tokens_begin,
                        first + all.nodes[node.skip].tokens_begin);
    }
    if (!leads_on(to)) {
      i = node.skip;
      continue;
    }
    path_[node.depth + 1] = to;
    for (uint32_t t = node.tokens_begin; t < all.nodes[i + 1].tokens_begin; ++t) {
      mask.changes.push_back(allowed(all.token_ids[t]));
    }
    ++i;
  }
  return true;
}

void Masks::make_kind_edges() {
  const Network& network = machine_.network();
  for (int kind = 0; kind < kNumCharKinds; ++kind) {
    const CharKindAutomaton& automaton = char_kind_automaton(kind);
    for (size_t from = 0; from < automaton.next.size(); ++from) {
      std::set<std::pair<uint8_t, uint8_t>> known;  // (class, to)
      for (size_t b = 0; b < 256; ++b) {
        const uint8_t to = automaton.next[from][b];
        if (to == CharKindAutomaton::kDead) continue;
        if (!known.emplace(network.byte_class[b], to).second) continue;
        kind_edges_[static_cast<size_t>(kind)].push_back(
            {static_cast<uint8_t>(from), static_cast<uint8_t>(b), to});
      }
    }
  }
}

// The mask of a state of several items: what any of them allows. They are shared by many states.
bool Masks::by_parts(SetId set, Mask& mask) {
  constexpr size_t kPartsMax = 8;
  const size_t count = machine_.num_parts(set);
  if (count < 2 || count > kPartsMax) return false;
  for (size_t i = 0; i < count; ++i) {
    const SetId part = machine_.canonical(machine_.part(set, i));
    add_part(mask_of(part), mask);
  }
  return true;
}

// The mask of a place in a closed rule is that of the same place wherever the rule was called, but
// for tokens that reach the rule's end.
bool Masks::by_place(SetId set, Mask& mask) {
  const SetId open = machine_.opened(set);
  if (open == Machine::kDead) return false;
  const Mask& place = mask_of(open);
  mask.base = place.words.empty() ? place.base : &place.words;
  mask.changes = place.changes;
  std::string_view last;
  size_t known = 0;  // bytes of `last` whose states are in path_
  path_[0] = set;
  for (TokenId token : place.asked) {
    const std::string_view bytes = trie_.bytes(token);
    const auto [differs, _] = std::ranges::mismatch(last.substr(0, known), bytes);
    known = static_cast<size_t>(differs - last.begin());
    for (; known < bytes.size() && leads_on(path_[known]); ++known) {
      path_[known + 1] = step(path_[known], static_cast<uint8_t>(bytes[known]));
    }
    last = bytes;
    if (path_[known] == Machine::kDepends) {
      mask.asked.push_back(token);
    } else if (path_[known] != Machine::kDead) {
      mask.changes.push_back(allowed(token));
    }
  }
  return true;
}

const Masks::Mask& Masks::mask_of(SetId set) {
  const auto known = kept_.find(set);
  if (known != kept_.end()) return known->second;
  Mask made;
  make(set, made);
  return keep(set, std::move(made));
}

// Allows what the part allows. Its asked tokens are asked of the whole.
void Masks::add_part(const Mask& part, Mask& mask) {
  mask.asked.insert(mask.asked.end(), part.asked.begin(), part.asked.end());
  const auto plain = [](const Mask& m) {
    return m.base == nullptr && m.words.empty() &&
           std::ranges::all_of(m.changes, [](uint32_t c) { return c % 2 == 1; });
  };
  if (plain(part)) {
    mask.changes.insert(mask.changes.end(), part.changes.begin(), part.changes.end());
    return;
  }
  if (plain(mask)) {
    const std::vector<uint32_t> own = std::move(mask.changes);
    mask.base = part.base;
    mask.words = part.words;
    mask.changes = part.changes;
    mask.changes.insert(mask.changes.end(), own.begin(), own.end());
    return;
  }
  std::vector<uint32_t> words(scratch_.size());
  write(mask, words);
  write(part, scratch_);
  for (size_t i = 0; i < words.size(); ++i) words[i] |= scratch_[i];
  mask.base = nullptr;
  mask.words = std::move(words);
  mask.changes.clear();
}

const Masks::Mask& Masks::keep(SetId set, Mask mask) {
  settle(mask);
  kept_bytes_ += size_of(mask);
  return kept_.emplace(set, std::move(mask)).first->second;
}

// The mask of a state inside a string, where it is one.
const Masks::Mask* Masks::known_inside(SetId set) {
  if (const auto it = kept_.find(set); it != kept_.end()) return &it->second;
  Mask mask;
  if (machine_.accepting(set) || (!by_lexeme(set, mask) && !inside_string(set, mask))) {
    return nullptr;
  }
  return &keep(set, std::move(mask));
}

// Where most characters lead to a state that a string's inside leaves as it is (a key that is none
// of those declared so far), the mask is that state's but for what goes on differently: both are
// followed side by side, and left where they meet.
bool Masks::by_difference(SetId set, Mask& mask) {
  constexpr int kMost = 48;  // of the 93 characters that are looked at
  std::vector<std::pair<SetId, int>> counts;
  for (int b = 0x20; b < 0x7f; ++b) {
    if (b == '"' || b == '\\') continue;
    const SetId to = step(set, b);
    const auto known = std::ranges::find(counts, to, &std::pair<SetId, int>::first);
    if (known == counts.end()) {
      counts.emplace_back(to, 1);
    } else {
      ++known->second;
    }
  }
  const auto [other, count] = *std::ranges::max_element(counts, {}, &std::pair<SetId, int>::second);
  if (count < kMost || !leads_on(other) || other == set || step(other, 'a') != other) return false;
  const Mask* const base = known_inside(other);
  if (base == nullptr) return false;
  mask.base = base->base;
  mask.words = base->words;
  mask.changes = base->changes;
  mask.asked = base->asked;
  const TrieWalk& tokens = trie_.all();
  path_[0] = set;
  other_path_[0] = other;
  const size_t end = tokens.nodes.size() - 1;
  const auto assign = [&](uint32_t from, uint32_t to, bool on) {
    for (uint32_t t = from; t < to; ++t) {
      mask.changes.push_back(static_cast<uint32_t>(tokens.token_ids[t]) * 2 + (on ? 1 : 0));
    }
  };
  for (size_t i = 0; i < end;) {
    const TrieWalk::Node& node = tokens.nodes[i];
    const SetId here = step(path_[node.depth], node.byte);
    const SetId there = step(other_path_[node.depth], node.byte);
    if (here == Machine::kDepends) {
      const auto tokens_of =
          std::span(tokens.token_ids)
              .subspan(node.tokens_begin, tokens.nodes[node.skip].tokens_begin - node.tokens_begin);
      mask.asked.insert(mask.asked.end(), tokens_of.begin(), tokens_of.end());
      i = node.skip;
      continue;
    }
    if (here == there) {
      i = node.skip;
      continue;
    }
    if (here == Machine::kDead) {
      assign(node.tokens_begin, tokens.nodes[node.skip].tokens_begin, false);
      i = node.skip;
      continue;
    }
    path_[node.depth + 1] = here;
    other_path_[node.depth + 1] = leads_on(there) ? there : Machine::kDead;
    assign(node.tokens_begin, tokens.nodes[i + 1].tokens_begin, true);
    ++i;
  }
  return true;
}

// Whether enough characters may come that a walk would take long.
bool Masks::is_wide(SetId set) {
  constexpr int kNarrow = 16;
  int wide = 0;
  for (int b = 0x20; b < 0x7f; ++b) wide += leads_on(step(set, b)) ? 1 : 0;
  return wide > kNarrow;
}

void Masks::make(SetId set, Mask& mask) {
  if (set == Machine::kDead) return;
  const bool fast = by_lexeme(set, mask) ||
                    (is_wide(set) &&
                     (inside_string(set, mask) || by_parts(set, mask) || by_difference(set, mask) ||
                      by_place(set, mask) || by_inside_for_ever(set, mask) || by_kinds(set, mask)));
  if (!fast) walk_into(trie_.all(), set, mask);
  if (!machine_.accepting(set)) return;
  for (TokenId id : trie_.eos_ids()) {
    if (id >= 0 && id < trie_.vocab_size()) mask.changes.push_back(allowed(id));
  }
}

void Masks::write(const Mask& mask, std::span<uint32_t> words) const {
  if (mask.base != nullptr) {
    std::ranges::copy(*mask.base, words.begin());
  } else if (!mask.words.empty()) {
    std::ranges::copy(mask.words, words.begin());
  } else {
    std::ranges::fill(words, 0);
  }
  for (uint32_t change : mask.changes) set_bit(words, change / 2, change % 2 == 1);
}

// Gives a new mask the form in which it is kept.
void Masks::settle(Mask& mask) {
  const bool plain = std::ranges::all_of(mask.changes, [](uint32_t c) { return c % 2 == 1; });
  const bool many = mask.changes.size() > kChangesMax;
  if (many || !plain || mask.changes.empty()) write(mask, scratch_);
  if (plain && !mask.changes.empty()) {
    mask.empty = false;
  } else if (mask.changes.empty() && mask.base == nullptr && mask.words.empty()) {
    mask.empty = true;
  } else {
    mask.empty = std::ranges::none_of(scratch_, [](uint32_t w) { return w != 0; });
  }
  if (many) {
    mask.base = nullptr;
    mask.words = scratch_;
    mask.changes = {};
  }
  const auto by_bytes = [&](TokenId id) { return trie_.rank(id); };
  if (!std::ranges::is_sorted(mask.asked, {}, by_bytes))
    std::ranges::sort(mask.asked, {}, by_bytes);
}

size_t Masks::size_of(const Mask& mask) const {
  return sizeof(Mask) +
         (mask.words.size() + mask.changes.size() + mask.asked.size()) * sizeof(uint32_t);
}

bool Masks::fill(SetId exact, std::string_view text, std::span<uint32_t> words) {
  const SetId set = machine_.canonical(exact);
  if (kept_bytes_ > kKeptBytesMax) {
    kept_.clear();
    tails_.clear();
    kept_bytes_ = 0;
  }
  const Mask& mask = mask_of(set);
  write(mask, words);
  const bool asked = !mask.asked.empty() && ask(mask, set, text, words);
  return asked || !mask.empty;
}

}  // namespace espalier::grammar
