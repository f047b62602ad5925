#include "text/tokenizer/charsmap.h"

#include <utf8proc.h>

#include <cstring>

#include "text/unicode/char_class.h"
#include "text/unicode/utf8.h"

namespace espalier {
namespace {

constexpr size_t kLengthBytes = 4;
// A grapheme cluster of at least this many bytes is replaced a character at a time.
constexpr size_t kWholeClusterBytesEnd = 6;

// The fields of a unit of darts-clone's double array.
bool has_leaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t label_of(uint32_t unit) { return unit & (1u << 31 | 0xFF); }
uint32_t offset_of(uint32_t unit) { return (unit >> 10) << ((unit & 1u << 9) >> 6); }
uint32_t value_of(uint32_t unit) { return unit & ~(1u << 31); }

// A mark of Unicode 16 that the library's older tables do not know; it extends a cluster.
bool is_new_mark(char32_t code) {
  return code >= 0x300 && CharClasses().is(code, kMark) &&
         utf8proc_category(static_cast<utf8proc_int32_t>(code)) == UTF8PROC_CATEGORY_CN;
}

// Control characters and line ends, which nothing extends.
bool ends_cluster(char32_t code) {
  const int boundclass = utf8proc_get_property(static_cast<utf8proc_int32_t>(code))->boundclass;
  return boundclass == UTF8PROC_BOUNDCLASS_CR || boundclass == UTF8PROC_BOUNDCLASS_LF ||
         boundclass == UTF8PROC_BOUNDCLASS_CONTROL;
}

}  // namespace

Result<Charsmap> Charsmap::parse(std::string_view blob) {
  Charsmap charsmap;
  if (blob.empty()) return charsmap;
  uint32_t trie_bytes = 0;
  if (blob.size() >= kLengthBytes) std::memcpy(&trie_bytes, blob.data(), kLengthBytes);
  if (blob.size() < kLengthBytes || trie_bytes % sizeof(uint32_t) != 0 || trie_bytes == 0 ||
      trie_bytes > blob.size() - kLengthBytes) {
    return fail(error(StatusCode::kDataLoss,
                      "the precompiled charsmap has {} bytes and claims a trie of {}", blob.size(),
                      trie_bytes));
  }
  charsmap.units_.resize(trie_bytes / sizeof(uint32_t));
  std::memcpy(charsmap.units_.data(), blob.data() + kLengthBytes, trie_bytes);
  charsmap.replacements_ = blob.substr(kLengthBytes + trie_bytes);
  return charsmap;
}

Charsmap::Match Charsmap::find(std::string_view text, size_t begin, bool stop_at_first) const {
  Match match;
  if (units_.empty()) return match;
  uint32_t node = offset_of(units_[0]);
  for (size_t i = begin; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    if (byte == 0) break;
    node ^= byte;
    if (node >= units_.size() || label_of(units_[node]) != byte) break;
    const bool leaf = has_leaf(units_[node]);
    node ^= offset_of(units_[node]);
    if (node >= units_.size()) break;
    if (!leaf) continue;
    const uint32_t at = value_of(units_[node]);
    if (at > replacements_.size()) break;
    const size_t end = std::min(replacements_.find('\0', at), replacements_.size());
    match = {i + 1 - begin, std::string_view(replacements_).substr(at, end - at)};
    if (stop_at_first) break;
  }
  return match;
}

std::string apply_precompiled(const Charsmap& charsmap, std::string_view text) {
  std::string out;
  out.reserve(text.size() + text.size() / 8);
  for (size_t begin = 0; begin < text.size();) {
    // To the cluster's end.
    Utf8Char c = decode_utf8(text, begin);
    size_t end = begin + c.size;
    utf8proc_int32_t state = 0;
    while (end < text.size()) {
      const Utf8Char next = decode_utf8(text, end);
      const bool breaks = utf8proc_grapheme_break_stateful(
          static_cast<utf8proc_int32_t>(c.code), static_cast<utf8proc_int32_t>(next.code), &state);
      if (breaks && (!is_new_mark(next.code) || ends_cluster(c.code))) break;
      end += next.size;
      c = next;
    }
    const std::string_view cluster = text.substr(begin, end - begin);
    begin = end;
    if (cluster.size() < kWholeClusterBytesEnd) {
      if (const Charsmap::Match match = charsmap.shortest(cluster, 0); match.size > 0) {
        out += match.replacement;
        continue;
      }
    }
    for (size_t i = 0; i < cluster.size();) {
      const std::string_view character = cluster.substr(i, decode_utf8(cluster, i).size);
      const Charsmap::Match match = charsmap.shortest(character, 0);
      out += match.size > 0 ? match.replacement : character;
      i += character.size();
    }
  }
  return out;
}

}  // namespace espalier
