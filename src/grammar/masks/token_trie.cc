#include "grammar/masks/token_trie.h"

#include <algorithm>
#include <cctype>
#include <functional>
#include <unordered_map>
#include <utility>

#include "grammar/automata/unicode.h"

namespace espalier::grammar {
namespace {

bool string_inside(std::string_view text) {
  const bool plain = std::ranges::none_of(
      text, [](char c) { return c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20; });
  return plain && valid_utf8(text);
}

// The bytes and characters at the front of a token that stand unescaped inside a string.
struct Inside {
  size_t bytes = 0, characters = 0;
};
Inside inside_of(std::string_view text) {
  Inside inside;
  for (std::string_view rest = text; !rest.empty(); ++inside.characters) {
    const char c = rest[0];
    if (c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20) break;
    if (!take_code_point(rest)) break;
    inside.bytes = text.size() - rest.size();
  }
  return inside;
}

constexpr size_t kUpToMasksMax = 32;  // masks of a vocabulary's size

// The bytes that are left out at the front of each token.
using Skips = std::unordered_map<TokenId, uint16_t>;

TrieWalk build(const TokenTrie& trie, std::vector<TokenId> ids, const Skips* skips = nullptr) {
  return build_trie_walk(std::move(ids), [&](TokenId id) {
    return trie.bytes(id).substr(skips == nullptr ? 0 : skips->at(id));
  });
}

}  // namespace

TokenTrie::TokenTrie(const VocabView& vocab)
    : vocab_size_(vocab.vocab_size()), eos_ids_(vocab.eos_ids) {
  constexpr size_t kTokenBytesMax = 4096;  // longer tokens are never allowed
  offsets_.reserve(static_cast<size_t>(vocab_size_) + 1);
  offsets_.push_back(0);
  for (TokenId id = 0; id < vocab_size_; ++id) {
    const std::string_view token = vocab.token_bytes[static_cast<size_t>(id)];
    const bool special = std::ranges::binary_search(vocab.special_ids, id) || is_eos(id);
    if (!special && token.size() <= kTokenBytesMax) text_ += token;
    offsets_.push_back(static_cast<uint32_t>(text_.size()));
  }
  std::vector<TokenId> ids, others;
  string_inside_mask_.assign(static_cast<size_t>(words_per_mask()), 0);
  for (TokenId id = 0; id < vocab_size_; ++id) {
    if (bytes(id).empty()) continue;
    ids.push_back(id);
    if (string_inside(bytes(id))) {
      string_inside_mask_[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
    } else {
      others.push_back(id);
    }
  }
  all_ = build(*this, ids);
  ranks_.assign(static_cast<size_t>(vocab_size_), 0);
  for (uint32_t t = 0; t < all_.token_ids.size(); ++t) {
    ranks_[static_cast<size_t>(all_.token_ids[t])] = t;
  }
  not_string_inside_ = build(*this, others);
  measure_rests();
  arrange_by_char_classes();
  list_samples();
  string_runs_.build(all_, [&](TokenId id) { return bytes(id); });
  Skips skip;
  std::vector<std::vector<TokenId>> by_characters;
  const auto file = [](auto& lists, size_t index, TokenId id) {
    if (lists.size() <= index) lists.resize(index + 1);
    lists[index].push_back(id);
  };
  for (TokenId id : ids) {
    const auto i = static_cast<size_t>(id);
    const Inside inside = inside_of(bytes(id));
    if (string_inside_mask_[i / 32] >> (i % 32) & 1) {
      file(inside_by_characters_, inside.characters - 1, id);
    } else {
      skip[id] = static_cast<uint16_t>(inside.bytes);
      file(by_characters, inside.characters, id);
    }
  }
  rests_ = build(*this, std::move(others), &skip);
  for (auto& list : by_characters) {
    rests_after_.push_back(build(*this, std::move(list), &skip));
  }
  std::vector<uint32_t> mask(string_inside_mask_.size(), 0);
  for (const auto& list : inside_by_characters_) {
    if (inside_up_to_.size() == kUpToMasksMax) break;
    for (TokenId id : list) mask[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
    inside_up_to_.push_back(mask);
  }
  make_lexeme(Lexeme::kString);
  make_lexeme(Lexeme::kKey);
  make_string_up_to();
}

void TokenTrie::make_string_up_to() {
  const LexemeMasks& string = lexeme(Lexeme::kString)[lexeme_automaton(Lexeme::kString).inside];
  std::vector<uint32_t> mask(string_inside_mask_.size(), 0);
  for (size_t i = 0; string_up_to_.size() <= kUpToMasksMax;) {
    for (; i < string.inside_ids.size() && string.inside_characters[i] <= string_up_to_.size();
         ++i) {
      const auto id = static_cast<size_t>(string.inside_ids[i]);
      mask[id / 32] |= 1u << (id % 32);
    }
    string_up_to_.push_back(mask);
  }
}

void TokenTrie::measure_rests() {
  const std::vector<TrieWalk::Node>& nodes = not_string_inside_.nodes;
  characters_before_rest_.assign(nodes.size(), 0);
  std::vector<uint32_t> open;  // nodes above the current one
  for (uint32_t i = 0; i + 1 < nodes.size(); ++i) {
    while (!open.empty() && nodes[open.back()].skip <= i) open.pop_back();
    open.push_back(i);
    for (uint32_t t = nodes[i].tokens_begin; t < nodes[i + 1].tokens_begin; ++t) {
      const std::string_view text = bytes(not_string_inside_.token_ids[t]);
      const Inside inside = inside_of(text);
      const auto byte = static_cast<unsigned char>(text[inside.bytes]);
      const size_t characters = byte == '"' || byte < 0x20
                                    ? std::min<size_t>(inside.characters, kAnyCharacters - 1)
                                    : kAnyCharacters;
      for (const uint32_t above : open) {
        uint16_t& most = characters_before_rest_[above];
        most = std::max(most, static_cast<uint16_t>(characters));
      }
    }
  }
}

void TokenTrie::arrange_by_char_classes() {
  std::vector<CharClassSet> sets;  // by the tokens of all_
  for (const TokenId id : all_.token_ids) sets.push_back(char_classes_of(bytes(id)));
  constexpr size_t kLastNumber = 63;
  std::unordered_map<CharClassSet, size_t> counts;
  for (const CharClassSet set : sets) ++counts[set];
  for (const auto& [set, _] : counts) class_sets_.emplace_back(set, uint8_t{0});
  std::ranges::sort(class_sets_, std::greater(), [&](const auto& numbered) {
    return std::pair(counts.at(numbered.first), numbered.first);
  });
  std::unordered_map<CharClassSet, uint8_t> numbers;
  for (size_t i = 0; i < class_sets_.size(); ++i) {
    class_sets_[i].second = static_cast<uint8_t>(std::min(i, kLastNumber));
    numbers.insert(class_sets_[i]);
  }
  std::vector<uint8_t> set_numbers;  // [rank]
  for (const CharClassSet set : sets) set_numbers.push_back(numbers.at(set));
  classes_.build(
      all_.token_ids, [&](TokenId id) { return bytes(id); }, set_numbers,
      static_cast<size_t>(words_per_mask()));
}

uint64_t TokenTrie::class_sets_between(CharClassSet inner, CharClassSet outer) const {
  uint64_t bits = 0;
  for (const auto& [set, number] : class_sets_) {
    const bool may_follow = (set & kOtherBytes) != 0 || (set & ~outer) == 0;
    if (may_follow && (set & ~inner) != 0) bits |= uint64_t{1} << number;
  }
  return bits;
}

const std::vector<uint32_t>* TokenTrie::of_char_classes(CharClassSet kinds) const {
  const std::lock_guard lock(class_masks_.mutex);
  auto& masks = class_masks_.by_classes;
  if (const auto known = masks.find(kinds); known != masks.end()) return known->second.get();
  const size_t bytes = string_inside_mask_.size() * sizeof(uint32_t);
  if ((masks.size() + 1) * bytes > kClassMasksBytesMax) return nullptr;
  std::vector<uint32_t> words(string_inside_mask_.size(), 0);
  classes_.add_of(kinds, words);
  return masks.emplace(kinds, std::make_unique<const std::vector<uint32_t>>(std::move(words)))
      .first->second.get();
}

void TokenTrie::list_samples() {
  constexpr size_t kBytesMax = 4;
  const auto is_punctuation = [](char c) {  // or white space
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x80 && std::isalnum(byte) == 0 && c != '\\';
  };
  for (const TokenId token : all_.token_ids) {
    const std::string_view text = bytes(token);
    if (text == "a" || text == "A" || text == "0") {
      samples_.push_back(token);
    } else if (text.size() <= kBytesMax && std::ranges::all_of(text, is_punctuation)) {
      const bool one = text.size() == 1 || (text.size() == 2 && text[0] == ' ');
      if (one || text.find('"') != std::string_view::npos) samples_.push_back(token);
    }
  }
}

bool TokenTrie::is_free_sample(TokenId token) const {
  const std::string_view text = bytes(token);
  return text.size() <= 2 && text.find('"') == std::string_view::npos;
}

void TokenTrie::make_lexeme(Lexeme lexeme) {
  const LexemeAutomaton& automaton = lexeme_automaton(lexeme);
  auto& masks = lexemes_[static_cast<size_t>(lexeme)];
  for (size_t state = 0; state < automaton.next.size(); ++state) {
    masks.push_back(masks_from(automaton, static_cast<uint8_t>(state)));
  }
}

// Scans the trie once, with the automaton's state and the characters begun after each byte of the
// path.
LexemeMasks TokenTrie::masks_from(const LexemeAutomaton& automaton, uint8_t from) const {
  struct Step {
    uint8_t state;
    uint16_t characters;
  };
  LexemeMasks out;
  out.inside.assign(static_cast<size_t>(words_per_mask()), 0);
  std::vector<Step> path(static_cast<size_t>(all_.depth_max) + 1);
  path[0] = {from, 0};
  std::vector<std::pair<uint16_t, TokenId>> inside;
  std::vector<TokenId> ending;
  std::unordered_map<TokenId, uint16_t> skip, characters;
  for (size_t i = 0; i + 1 < all_.nodes.size();) {
    const TrieWalk::Node& node = all_.nodes[i];
    const Step& here = path[node.depth];
    const uint8_t to = automaton.next[here.state][node.byte];
    if (to == LexemeAutomaton::kDead) {
      i = node.skip;
      continue;
    }
    if (to == automaton.end) {
      const uint32_t end = all_.nodes[node.skip].tokens_begin;
      for (uint32_t t = node.tokens_begin; t < end; ++t) {
        ending.push_back(all_.token_ids[t]);
        skip[all_.token_ids[t]] = static_cast<uint16_t>(node.depth + 1);
        characters[all_.token_ids[t]] = here.characters;
      }
      i = node.skip;
      continue;
    }
    const bool begins = here.state == automaton.inside;
    path[node.depth + 1] = {to, static_cast<uint16_t>(here.characters + (begins ? 1 : 0))};
    for (uint32_t t = node.tokens_begin; t < all_.nodes[i + 1].tokens_begin; ++t) {
      inside.emplace_back(path[node.depth + 1].characters, all_.token_ids[t]);
    }
    ++i;
  }
  std::ranges::sort(inside);
  for (const auto& [count, id] : inside) {
    out.inside_characters.push_back(count);
    out.inside_ids.push_back(id);
    out.inside[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
  }
  out.tails = build(*this, std::move(ending), &skip);
  for (TokenId id : out.tails.token_ids) out.tail_characters.push_back(characters.at(id));
  out.inside_or_end = out.inside;
  for (uint32_t t = 0; t < out.num_whole_ends(); ++t) {
    const auto id = static_cast<size_t>(out.tails.token_ids[t]);
    out.inside_or_end[id / 32] |= 1u << (id % 32);
  }
  for (const auto* list : {&out.inside_characters, &out.tail_characters}) {
    for (const uint16_t count : *list)
      out.characters_max = std::max<uint32_t>(out.characters_max, count);
  }
  return out;
}

void TokenTrie::add_string_inside(size_t characters, std::span<uint32_t> words) const {
  characters = std::min(characters, inside_by_characters_.size());
  const size_t whole = std::min(characters, inside_up_to_.size());
  if (whole > 0) {
    const std::vector<uint32_t>& mask = inside_up_to_[whole - 1];
    for (size_t i = 0; i < mask.size(); ++i) words[i] |= mask[i];
  }
  for (size_t n = whole; n < characters; ++n) {
    for (TokenId id : inside_by_characters_[n]) {
      words[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
    }
  }
}

std::string_view TokenTrie::bytes(TokenId id) const {
  if (id < 0 || id >= vocab_size_) return {};
  const auto i = static_cast<size_t>(id);
  return std::string_view(text_).substr(offsets_[i], offsets_[i + 1] - offsets_[i]);
}

bool TokenTrie::is_eos(TokenId id) const { return std::ranges::binary_search(eos_ids_, id); }

}  // namespace espalier::grammar
