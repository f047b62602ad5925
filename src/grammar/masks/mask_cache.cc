#include "grammar/masks/mask_cache.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

#include "grammar/automata/held_bytes.h"
#include "grammar/masks/follow_tokens.h"

namespace espalier::grammar {
namespace {

// Bytes that the masks of one grammar may hold; beyond it they are dropped and made again.
constexpr size_t kKeptBytesMax = size_t{64} << 20;
constexpr size_t kNodeBytes = 48;  // of a hash map's node and bucket, beside the mask

}  // namespace

MaskCache::MaskCache(EarleyRecogniser& earley, const TokenTrie& trie)
    : earley_(earley),
      trie_(trie),
      positions_(earley),
      walk_(positions_),
      comparison_(positions_),
      tails_(walk_),
      insides_(positions_),
      char_classes_(earley, static_cast<size_t>(trie.all().depth_max)),
      class_walk_(char_classes_, trie, walk_) {
  scratch_.resize(static_cast<size_t>(trie.words_per_mask()));
}

void MaskCache::walk_into(const TrieWalk& tokens, SetId from, WalkSteps steps, StoredMask& mask) {
  const auto allow = [&](uint32_t t) { mask.allow(tokens.token_ids[t]); };
  const auto ask = [&](uint32_t begin, uint32_t end) { mask.add_conditional(tokens, begin, end); };
  if (steps == WalkSteps::kByStates)
    return walk_.scan(tokens, from, allow, ask, [](uint32_t) { return false; });
  walk_.run(
      tokens, from, allow, [&](const TokenRun& run) { mask.allow_run(run.whole_ids); }, ask,
      &tokens == &trie_.all() ? &trie_.string_runs() : nullptr);
}

// Tries the tokens whose verdict depends on the text. Tokens that are equal up to a check share its
// verdict.
bool MaskCache::try_conditional(const StoredMask& mask, SetId set, std::string_view text,
                                std::span<uint32_t> words) {
  bool any = false;
  std::string read(text);
  follow_tokens(
      trie_, std::span(mask.conditional()), set,
      [&](SetId at, std::string_view before, char byte) -> std::optional<SetId> {
        read.resize(text.size());
        read += before;
        const SetId to = earley_.step(at, static_cast<uint8_t>(byte), read);
        return to == EarleySets::kDead ? std::nullopt : std::optional(to);
      },
      [&](TokenId token, const std::vector<SetId>&, bool on) {
        set_token(words, token, on);
        any |= on;
      });
  return any;
}

// The mask of a set of several items is the union of their masks, which many sets share.
bool MaskCache::by_parts(SetId set, StoredMask& mask) {
  constexpr size_t kPartsMax = 8;
  const size_t count = earley_.num_parts(set);
  if (count < 2 || count > kPartsMax) return false;
  for (size_t i = 0; i < count; ++i) {
    const SetId part = earley_.canonical(earley_.part(set, i));
    mask.add_part(mask_of(part));
  }
  return true;
}

// The mask of an item in a closed rule is independent of the caller, except for tokens that reach
// the end of the rule.
bool MaskCache::by_closed_rule(SetId set, StoredMask& mask) {
  const SetId open = earley_.opened(set);
  if (open == EarleySets::kDead) return false;
  const StoredMask& inside = mask_of(open);
  mask.refer_to(inside);
  // kNeedsText counts as a position: the rest of such a token is conditional.
  follow_tokens(
      trie_, std::span(inside.conditional()), positions_.position_of(set),
      [&](const EarleyPosition& at, std::string_view, char byte) -> std::optional<EarleyPosition> {
        if (at.set == EarleySets::kNeedsText) return std::nullopt;
        const EarleyPosition to = positions_.step(at, static_cast<uint8_t>(byte));
        return to.set == EarleySets::kDead ? std::nullopt : std::optional(to);
      },
      [&](TokenId token, const std::vector<EarleyPosition>& path, bool on) {
        if (path.back().set == EarleySets::kNeedsText) {
          mask.add_conditional(token);
        } else if (on) {
          mask.allow(token);
        }
      });
  return true;
}

// One item in a rule whose texts are JSON strings: the mask inside the rule, and of the tokens that
// end it those whose rest leads on behind it, which the vocabulary lists by their rests.
bool MaskCache::by_pattern(SetId from, StoredMask& mask) {
  const auto node = earley_.only_node(from);
  if (!node) return false;
  const uint8_t state = earley_.network().nodes[*node].string_state;
  if (state == Network::Node::kNoState) return false;
  const SetId open = earley_.opened(from);
  if (open == EarleySets::kDead) return false;
  const StoredMask& inside = mask_of(open);
  const LexemeMasks& masks = trie_.lexeme(Lexeme::kString)[state];
  const LexemeTails::Found& tails = tails_.find(masks, earley_.after_lexeme(from));
  mask.refer_to(inside);
  // Calls use(token) for the conditional tokens inside whose bit scratch_ has.
  const auto for_each_set = [&](auto use) {
    for (const TokenId token : inside.conditional()) {
      const auto index = static_cast<uint32_t>(token);
      if (scratch_[index / 32] >> (index % 32) & 1) use(token);
    }
  };
  const auto set = [&](uint32_t t) { set_token(scratch_, masks.tails.token_ids[t], true); };
  std::ranges::fill(scratch_, 0);
  for (const uint32_t t : tails.allowed) set(t);
  for (uint32_t t = 0; tails.whole_ends && t < masks.num_whole_ends(); ++t) set(t);
  for_each_set([&](TokenId token) { mask.allow(token); });
  if (tails.conditional.empty()) return true;
  std::ranges::fill(scratch_, 0);
  for (const uint32_t t : tails.conditional) set(t);
  for_each_set([&](TokenId token) { mask.add_conditional(token); });
  return true;
}

bool MaskCache::by_char_classes(SetId set, StoredMask& mask) {
  const CharClassSet kinds = char_classes_.absorbed(set);
  class_walk_.fill(set, kinds, char_classes_.live(set), mask);
  return true;
}

const StoredMask& MaskCache::mask_of(SetId set) {
  const auto known = kept_.find(set);
  if (known != kept_.end()) return known->second;
  StoredMask made;
  make(set, made);
  return keep(set, std::move(made));
}

const StoredMask& MaskCache::keep(SetId set, StoredMask mask) {
  mask.settle(trie_, scratch_, earley_.exhausted());
  kept_bytes_ += mask.num_bytes() + kNodeBytes;
  search_bytes_.store(tails_.num_bytes() + insides_.num_bytes() + positions_.num_bytes() +
                          char_classes_.num_bytes() + class_walk_.num_bytes() +
                          held_bytes(scratch_),
                      std::memory_order_relaxed);
  const std::lock_guard lock(kept_mutex_);
  return kept_.emplace(set, std::move(mask)).first->second;
}

bool MaskCache::make_ahead(NodeId node) {
  const SetId open = earley_.opened_at(node);
  if (open == EarleySets::kDead || kept_.contains(open)) return false;
  const EarleyPosition position = positions_.position_of(open);
  if (!is_wide(position) && !leads_to_wide(position)) return false;
  mask_of(open);
  return true;
}

void MaskCache::drop_unusable() {
  tails_.clear();
  insides_.clear();
  char_classes_.clear();
  const std::lock_guard lock(kept_mutex_);
  const auto drop = [this](const auto& kept) {
    if (kept.second.unusable()) kept_bytes_ -= kept.second.num_bytes() + kNodeBytes;
    return kept.second.unusable();
  };
  std::erase_if(kept_, drop);
}

// Returns whether so many characters may follow that a walk would be slow.
bool MaskCache::is_wide(const EarleyPosition& position) const {
  constexpr int kNarrow = 20;  // bytes: any JSON value begins with one of 18
  ByteMask bytes;
  positions_.add_bytes(position, bytes);
  bytes.remove(0x00, 0x1f);
  bytes.remove(0x7f, 0xff);
  return bytes.count() > kNarrow;
}

// Returns whether a byte that begins many tokens leads to where many characters may follow. Quotes
// and digits do so in every grammar, and walks take what follows them at once.
bool MaskCache::leads_to_wide(const EarleyPosition& from) {
  ByteMask bytes;
  positions_.add_bytes(from, bytes);
  for (const uint8_t byte : trie_.all().frequent_bytes) {
    if (bytes.has(byte) && is_wide(positions_.step(from, byte))) return true;
  }
  return false;
}

void MaskCache::make(SetId set, StoredMask& mask) {
  if (set == EarleySets::kDead) return;
  if (!by_lexeme(set, mask)) {
    const EarleyPosition position = positions_.position_of(set);
    const bool wide = is_wide(position) || leads_to_wide(position);
    const bool fast =
        wide && (by_pattern(set, mask) || by_parts(set, mask) || by_difference(set, mask) ||
                 inside_string(set, mask) || by_closed_rule(set, mask) ||
                 by_staying_inside(set, mask) || by_char_classes(set, mask));
    if (!fast) walk_into(trie_.all(), set, WalkSteps::kInRules, mask);
  }
  if (!earley_.accepting(set)) return;
  for (const TokenId id : trie_.eos_ids()) {
    if (id >= 0 && id < trie_.vocab_size()) mask.allow(id);
  }
}

bool MaskCache::fill(SetId exact, std::string_view text, std::span<uint32_t> words) {
  const SetId set = earley_.canonical(exact);
  if (kept_bytes_ > kKeptBytesMax) {
    const std::lock_guard lock(kept_mutex_);
    kept_.clear();
    tails_.clear();
    kept_bytes_ = 0;
  }
  const StoredMask& mask = mask_of(set);
  mask.write(words);
  const bool conditional = !mask.conditional().empty();
  const bool any = conditional && try_conditional(mask, set, text, words);
  if (mask.unusable() || (conditional && earley_.exhausted())) {
    std::ranges::fill(words, 0);
    return false;
  }
  return any || !mask.empty();
}

std::span<const TokenId> MaskCache::conditional(SetId set) {
  return mask_of(earley_.canonical(set)).conditional();
}

std::optional<bool> MaskCache::fill_known(SetId exact, std::span<uint32_t> words) const {
  const SetId set = earley_.known_canonical(exact);
  if (set == EarleySets::kUnknown) return std::nullopt;
  const std::shared_lock lock(kept_mutex_);
  const auto known = kept_.find(set);
  if (known == kept_.end() || !known->second.conditional().empty() || known->second.unusable())
    return std::nullopt;
  known->second.write(words);
  return !known->second.empty();
}

}  // namespace espalier::grammar
