#include "grammar/masks/mask_cache.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/rng.h"

namespace espalier::grammar {
namespace {

// Bytes that the masks of one grammar may hold; beyond it they are dropped and made again.
constexpr size_t kKeptBytesMax = size_t{64} << 20;

// A mask with more changes than this is stored as words.
constexpr size_t kChangesMax = 512;

void set_bit(std::span<uint32_t> words, uint32_t token, bool on) {
  const uint32_t bit = 1u << (token % 32);
  words[token / 32] = on ? words[token / 32] | bit : words[token / 32] & ~bit;
}

}  // namespace

size_t MaskCache::TailHash::operator()(const TailKey& key) const {
  return mix64(reinterpret_cast<uintptr_t>(key.masks) ^ mix64(key.after));
}

MaskCache::MaskCache(EarleyRecogniser& earley, const TokenTrie& trie)
    : earley_(earley), trie_(trie), walk_(earley) {
  scratch_.resize(static_cast<size_t>(trie.words_per_mask()));
}

void MaskCache::walk_into(const TrieWalk& tokens, SetId from, TokenWalk::Steps steps, Mask& mask) {
  walk_.run(
      tokens, from, steps, [&](uint32_t t) { mask.allow(tokens.token_ids[t]); },
      [&](uint32_t begin, uint32_t end) { mask.ask(tokens, begin, end); },
      [](uint32_t) { return false; });
}

// Follows tokens in the order of their bytes, each from where the previous token differs. `step`
// maps (position, byte) to the next position, or to nothing.
template <typename At, typename Step, typename Use>
void MaskCache::along(std::span<const TokenId> tokens, const At& from, Step step, Use use) {
  std::vector<At> path = {from};  // [byte of `last`] the position after it, as far as it leads on
  std::string_view last;
  for (const TokenId token : tokens) {
    const std::string_view bytes = trie_.bytes(token);
    const auto [differs, _] = std::ranges::mismatch(last.substr(0, path.size() - 1), bytes);
    path.resize(static_cast<size_t>(differs - last.begin()) + 1, from);
    while (path.size() <= bytes.size()) {
      const std::optional<At> to =
          step(path.back(), bytes.substr(0, path.size() - 1), bytes[path.size() - 1]);
      if (!to) break;
      path.push_back(*to);
    }
    use(token, path, path.size() == bytes.size() + 1);
    last = bytes;
  }
}

// Tries the tokens whose verdict depends on the text. Tokens that are equal up to a check share its
// verdict.
bool MaskCache::ask(const Mask& mask, SetId set, std::string_view text, std::span<uint32_t> words) {
  bool any = false;
  std::string read(text);
  along(
      std::span(mask.asked), set,
      [&](SetId at, std::string_view before, char byte) -> std::optional<SetId> {
        read.resize(text.size());
        read += before;
        const SetId to = earley_.step(at, static_cast<uint8_t>(byte), read);
        return to == EarleyRecogniser::kDead ? std::nullopt : std::optional(to);
      },
      [&](TokenId token, const std::vector<SetId>&, bool on) {
        set_bit(words, static_cast<uint32_t>(token), on);
        any |= on;
      });
  return any;
}

// The mask of a set of several items is the union of their masks, which many sets share.
bool MaskCache::by_parts(SetId set, Mask& mask) {
  constexpr size_t kPartsMax = 8;
  const size_t count = earley_.num_parts(set);
  if (count < 2 || count > kPartsMax) return false;
  for (size_t i = 0; i < count; ++i) {
    const SetId part = earley_.canonical(earley_.part(set, i));
    add_part(mask_of(part), mask);
  }
  return true;
}

// The mask of an item in a closed rule is independent of the caller, except for tokens that reach
// the end of the rule.
bool MaskCache::by_closed_rule(SetId set, Mask& mask) {
  const SetId open = earley_.opened(set);
  if (open == EarleyRecogniser::kDead) return false;
  const Mask& position = mask_of(open);
  mask.base = position.words.empty() ? position.base : &position.words;
  mask.changes = position.changes;
  // kNeedsText counts as a position: the rest of such a token is conditional.
  along(
      std::span(position.asked), earley_.position_of(set),
      [&](const EarleyRecogniser::Position& at, std::string_view,
          char byte) -> std::optional<EarleyRecogniser::Position> {
        if (at.set == EarleyRecogniser::kNeedsText) return std::nullopt;
        const EarleyRecogniser::Position to =
            earley_.step_without_text(at, static_cast<uint8_t>(byte));
        return to.set == EarleyRecogniser::kDead ? std::nullopt : std::optional(to);
      },
      [&](TokenId token, const std::vector<EarleyRecogniser::Position>& path, bool on) {
        if (path.back().set == EarleyRecogniser::kNeedsText) {
          mask.asked.push_back(token);
        } else if (on) {
          mask.allow(token);
        }
      });
  return true;
}

const MaskCache::Mask& MaskCache::mask_of(SetId set) {
  const auto known = kept_.find(set);
  if (known != kept_.end()) return known->second;
  Mask made;
  make(set, made);
  return keep(set, std::move(made));
}

// Adds the tokens that the part allows. Its conditional tokens become conditional in the whole.
void MaskCache::add_part(const Mask& part, Mask& mask) {
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

const MaskCache::Mask& MaskCache::keep(SetId set, Mask mask) {
  settle(mask);
  mask.partial = earley_.exhausted();
  kept_bytes_ += size_of(mask);
  const std::lock_guard lock(kept_mutex_);
  return kept_.emplace(set, std::move(mask)).first->second;
}

// Returns whether so many characters may follow that a walk would be slow.
bool MaskCache::is_wide(SetId set) {
  constexpr int kNarrow = 20;  // bytes: any JSON value begins with one of 18
  ByteMask bytes;
  earley_.add_bytes(earley_.position_of(set), bytes);
  bytes.remove(0x00, 0x1f);
  bytes.remove(0x7f, 0xff);
  return bytes.count() > kNarrow;
}

void MaskCache::make(SetId set, Mask& mask) {
  if (set == EarleyRecogniser::kDead) return;
  using enum TokenWalk::Steps;
  if (!by_lexeme(set, mask)) {
    const bool wide = is_wide(set);
    const bool fast = wide && (by_parts(set, mask) || by_difference(set, mask) ||
                               inside_string(set, mask) || by_closed_rule(set, mask) ||
                               by_staying_inside(set, mask) || by_char_classes(set, mask));
    if (!fast) walk_into(trie_.all(), set, wide ? kByStates : kInRules, mask);
  }
  if (!earley_.accepting(set)) return;
  for (TokenId id : trie_.eos_ids()) {
    if (id >= 0 && id < trie_.vocab_size()) mask.allow(id);
  }
}

void MaskCache::write(const Mask& mask, std::span<uint32_t> words) const {
  if (mask.base != nullptr) {
    std::ranges::copy(*mask.base, words.begin());
  } else if (!mask.words.empty()) {
    std::ranges::copy(mask.words, words.begin());
  } else {
    std::ranges::fill(words, 0);
  }
  for (uint32_t change : mask.changes) set_bit(words, change / 2, change % 2 == 1);
}

// Converts a new mask to the form in which it is stored.
void MaskCache::settle(Mask& mask) {
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

size_t MaskCache::size_of(const Mask& mask) const {
  return sizeof(Mask) +
         (mask.words.size() + mask.changes.size() + mask.asked.size()) * sizeof(uint32_t);
}

bool MaskCache::fill(SetId exact, std::string_view text, std::span<uint32_t> words) {
  const SetId set = earley_.canonical(exact);
  if (kept_bytes_ > kKeptBytesMax) {
    const std::lock_guard lock(kept_mutex_);
    kept_.clear();
    tails_.clear();
    kept_bytes_ = 0;
  }
  const Mask& mask = mask_of(set);
  write(mask, words);
  const bool asked = !mask.asked.empty() && ask(mask, set, text, words);
  if (mask.partial || (!mask.asked.empty() && earley_.exhausted())) {
    std::ranges::fill(words, 0);
    return false;
  }
  return asked || !mask.empty;
}

std::optional<bool> MaskCache::fill_known(SetId exact, std::span<uint32_t> words) const {
  const SetId set = earley_.known_canonical(exact);
  if (set == EarleyRecogniser::kUnknown) return std::nullopt;
  const std::shared_lock lock(kept_mutex_);
  const auto known = kept_.find(set);
  if (known == kept_.end() || !known->second.asked.empty() || known->second.partial)
    return std::nullopt;
  write(known->second, words);
  return !known->second.empty;
}

}  // namespace espalier::grammar
