#include "grammar/masks/likely_sets.h"

#include <algorithm>
#include <bit>
#include <string_view>
#include <utility>

#include "grammar/masks/follow_tokens.h"
#include "grammar/masks/stored_mask.h"

namespace espalier::grammar {
namespace {

// Where more tokens are allowed, as inside a string, the vocabulary's samples stand for them.
constexpr size_t kManyTokens = 3000;

bool is_of_word(char c) {
  return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || static_cast<unsigned char>(c) >= 0x80;
}

}  // namespace

LikelySets::LikelySets(EarleyRecogniser& earley, const TokenTrie& trie, MaskCache& masks)
    : earley_(earley), trie_(trie), masks_(masks), positions_(earley), comparison_(positions_) {
  words_.resize(static_cast<size_t>(trie.words_per_mask()));
  add(earley.start(), 0);
}

void LikelySets::add(SetId set, size_t num_choices) {
  if (!EarleySets::leads_on(set) || num_choices > kFreeChoicesMax) return;
  const SetId representative = earley_.canonical(set);
  if (seen_.insert(representative).second) open_[num_choices].push_back(representative);
}

std::optional<LikelySets::Place> LikelySets::take_next() {
  for (size_t num_choices = 0; num_choices < open_.size(); ++num_choices) {
    std::deque<SetId>& open = open_[num_choices];
    if (open.empty()) continue;
    const SetId set = open.front();
    open.pop_front();
    Place place;
    place.set = set;
    place.num_choices = num_choices;
    return place;
  }
  return std::nullopt;
}

bool LikelySets::make_next() {
  std::optional<Place> place = take_next();
  if (!place) return false;
  read_mask(*place);
  list_tokens(*place);
  follow_tokens_from(*place);
  return true;
}

// Makes the mask and lists its tokens where they are few. Those of runs lead nowhere new.
void LikelySets::read_mask(Place& place) {
  tokens_.clear();
  const StoredMask& mask = masks_.made(place.set);
  if (mask.is_list()) {
    mask.for_each_listed([&](TokenId token) { tokens_.push_back(token); });
  } else {
    mask.write(words_);
    list_allowed();
    place.is_wide = tokens_.size() > kManyTokens;
  }
  const auto begins = [&](char c) {
    return positions_.step_along({place.set}, static_cast<uint8_t>(c)).leads_on();
  };
  place.is_any_value = !place.is_wide && begins('[') && begins('{') && begins('t') && begins('1');
}

// Lists tokens of the mask in words_, up to more than kManyTokens.
void LikelySets::list_allowed() {
  for (size_t i = 0; i < words_.size() && tokens_.size() <= kManyTokens; ++i) {
    for (uint32_t bits = words_[i]; bits != 0; bits &= bits - 1)
      tokens_.push_back(static_cast<TokenId>(32 * i) + std::countr_zero(bits));
  }
}

// Makes of the allowed tokens the list of those that are to be followed.
void LikelySets::list_tokens(Place& place) {
  const auto rank = [&](TokenId token) { return trie_.rank(token); };
  if (place.is_wide) {
    tokens_.clear();
    list_departures(place);
  }
  std::erase_if(tokens_, [&](TokenId token) {
    const std::string_view bytes = trie_.bytes(token);  // none: the end of the text
    return bytes.empty() || bytes.find('\\') != std::string_view::npos;
  });
  std::ranges::sort(tokens_, {}, rank);
  drop_parts_of_words();
  if (!place.is_wide) return;
  for (const TokenId token : trie_.samples()) {
    if (has_token(words_, token)) tokens_.push_back(token);
  }
  std::ranges::sort(tokens_, {}, rank);
  const auto same = std::ranges::unique(tokens_);
  tokens_.erase(same.begin(), same.end());
}

// Lists the tokens that lead elsewhere than most do: where any key may stand, those of the declared
// ones.
void LikelySets::list_departures(Place& place) {
  const EarleyPosition here = positions_.position_of(place.set);
  place.usual = usual_position(place.set);
  if (!place.usual.leads_on() || place.usual == here) return;
  const std::vector<TokenId>& ids = trie_.all().token_ids;
  comparison_.run(
      trie_.all(), here, place.usual, WalkSteps::kInRules,
      [&](uint32_t begin, uint32_t end, bool on) {
        for (uint32_t t = begin; on && t < end; ++t) {
          tokens_.push_back(ids[t]);
          place.has_departures |= is_of_word(trie_.bytes(ids[t])[0]);
        }
      },
      [](uint32_t, uint32_t) {});
}

// Returns the position that most letters lead to, if they lead from there to itself.
EarleyPosition LikelySets::usual_position(SetId set) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz";
  const EarleyPosition here = positions_.position_of(set);
  std::vector<std::pair<EarleyPosition, int>> counts;
  for (const char letter : kLetters) {
    const EarleyPosition to = positions_.step(here, static_cast<uint8_t>(letter));
    const auto known = std::ranges::find(counts, to, &std::pair<EarleyPosition, int>::first);
    if (known == counts.end()) {
      counts.emplace_back(to, 1);
    } else {
      ++known->second;
    }
  }
  const EarleyPosition most =
      std::ranges::max_element(counts, {}, &std::pair<EarleyPosition, int>::second)->first;
  const bool stays = most.leads_on() && positions_.step(most, 'a') == most;
  return stays ? most : EarleyPosition{};
}

// A tokenizer spells a word by its longest tokens, so a token that another listed one goes on with
// letters from is dropped.
void LikelySets::drop_parts_of_words() {
  size_t kept = 0;
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const std::string_view bytes = trie_.bytes(tokens_[i]);
    bool is_part = false;
    for (size_t next = i + 1; is_of_word(bytes.back()) && !is_part && next < tokens_.size();
         ++next) {
      const std::string_view longer = trie_.bytes(tokens_[next]);
      if (!longer.starts_with(bytes)) break;
      is_part = longer.size() > bytes.size() && is_of_word(longer[bytes.size()]);
    }
    if (!is_part) tokens_[kept++] = tokens_[i];
  }
  tokens_.resize(kept);
}

// Returns the number of free choices that a text makes by this token, which leads to `to`.
size_t LikelySets::choices_of(const Place& place, TokenId token, const EarleyPosition& to) const {
  const std::string_view bytes = trie_.bytes(token);
  if (place.is_any_value) return bytes.find_first_of("[{") == std::string_view::npos ? 1 : 2;
  if (!place.is_wide) return 0;
  // An empty string is one where a text may have begun; elsewhere a quote is a string's usual end.
  if (bytes.find('"') != std::string_view::npos) {
    const bool stays = place.usual == positions_.position_of(place.set);
    return bytes[0] == '"' && place.usual.leads_on() && !stays ? 1 : 0;
  }
  if (!trie_.is_free_sample(token)) return 0;
  return to == place.usual && !place.has_departures ? 0 : 1;
}

void LikelySets::follow_tokens_from(const Place& place) {
  reached_.clear();
  follow_tokens(
      trie_, std::span<const TokenId>(tokens_), EarleyPosition{place.set},
      [&](const EarleyPosition& at, std::string_view, char byte) -> std::optional<EarleyPosition> {
        const EarleyPosition to = positions_.step_along(at, static_cast<uint8_t>(byte));
        return to.leads_on() ? std::optional(to) : std::nullopt;
      },
      [&](TokenId token, const std::vector<EarleyPosition>& path, bool on) {
        if (!on) return;
        const EarleyPosition& to = path.back();
        const size_t choices = place.num_choices + choices_of(place, token, to);
        const auto known = std::ranges::find(reached_, to, &Reached::position);
        if (known == reached_.end()) {
          reached_.push_back({to, choices});
        } else {
          known->num_choices = std::min(known->num_choices, choices);
        }
      });
  for (const Reached& to : reached_) add(positions_.set_of(to.position), to.num_choices);
}

}  // namespace espalier::grammar
