#include "text/tokenizer/added_tokens.h"

#include <algorithm>

#include "text/unicode/char_class.h"
#include "text/unicode/utf8.h"

namespace espalier {
namespace {

// The character that ends at `end`; its begin.
size_t previous_begin(std::string_view text, size_t end) {
  size_t begin = end - 1;
  while (begin > 0 && end - begin < 4 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) {
    --begin;
  }
  return begin;
}

bool is_word(const Utf8Char& c) { return c.valid && is_word_character(c.code); }

bool word_ends_at(std::string_view text, size_t end) {
  return end > 0 && is_word(decode_utf8(text, previous_begin(text, end)));
}

bool word_begins_at(std::string_view text, size_t begin) {
  return begin < text.size() && is_word(decode_utf8(text, begin));
}

bool is_space_at(std::string_view text, size_t begin) {
  const Utf8Char c = decode_utf8(text, begin);
  return c.valid && CharClasses().is(c.code, kSpace);
}

// Where the white space before `end` begins, not before `low`.
size_t spaces_before(std::string_view text, size_t end, size_t low) {
  while (end > low) {
    const size_t begin = previous_begin(text, end);
    if (begin < low || !is_space_at(text, begin)) break;
    end = begin;
  }
  return end;
}

size_t spaces_after(std::string_view text, size_t begin) {
  while (begin < text.size() && is_space_at(text, begin)) begin += decode_utf8(text, begin).size;
  return begin;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::span<const AddedToken* const> tokens,
                                     std::span<const std::string> contents)
    : nodes_(1) {
  for (size_t i = 0; i < tokens.size(); ++i) add(tokens[i], contents[i]);
}

void AddedTokenMatcher::add(const AddedToken* token, std::string_view content) {
  if (content.empty()) return;
  uint32_t node = 0;
  for (const char c : content) {
    const auto byte = static_cast<uint8_t>(c);
    uint32_t child = child_of(node, byte);
    if (child == 0) {
      child = static_cast<uint32_t>(nodes_.size());
      nodes_.emplace_back();
      auto& children = nodes_[node].children;
      children.insert(std::lower_bound(children.begin(), children.end(), std::pair{byte, 0u}),
                      {byte, child});
      if (node == 0) root_children_[byte] = child;
    }
    node = child;
  }
  nodes_[node].token = token;
}

uint32_t AddedTokenMatcher::child_of(uint32_t node, uint8_t byte) const {
  if (node == 0) return root_children_[byte];
  const auto& children = nodes_[node].children;
  const auto it = std::lower_bound(children.begin(), children.end(), std::pair{byte, 0u});
  return it != children.end() && it->first == byte ? it->second : 0;
}

AddedTokenMatcher::Hit AddedTokenMatcher::find(std::string_view text, size_t position) const {
  for (; position < text.size(); ++position) {
    Hit hit;
    uint32_t node = root_children_[static_cast<uint8_t>(text[position])];
    for (size_t end = position + 1; node != 0; ++end) {
      if (nodes_[node].token != nullptr) hit = {position, end, nodes_[node].token};
      if (end == text.size()) break;
      node = child_of(node, static_cast<uint8_t>(text[end]));
    }
    if (hit.token != nullptr) return hit;
  }
  return {};
}

void AddedTokenMatcher::split(std::string_view text, bool parse_special,
                              std::vector<Part>& parts) const {
  size_t begin = 0;  // of the text that is in no part yet
  if (!empty()) {
    size_t position = 0;
    for (Hit hit = find(text, position); hit.token != nullptr; hit = find(text, position)) {
      position = hit.end;
      if (hit.token->special && !parse_special) continue;
      if (hit.token->single_word &&
          (word_ends_at(text, hit.begin) || word_begins_at(text, hit.end))) {
        continue;
      }
      // The one before may have taken this one's beginning (a token that starts with a space).
      size_t token_begin = std::max(hit.begin, begin);
      if (hit.token->lstrip) token_begin = spaces_before(text, token_begin, begin);
      const size_t token_end =
          hit.token->rstrip ? spaces_after(text, hit.end) : std::max(hit.end, begin);
      if (begin < token_begin) parts.push_back({text.substr(begin, token_begin - begin), nullptr});
      parts.push_back({text.substr(token_begin, token_end - token_begin), hit.token});
      begin = token_end;
    }
  }
  if (begin < text.size()) parts.push_back({text.substr(begin), nullptr});
}

}  // namespace espalier
