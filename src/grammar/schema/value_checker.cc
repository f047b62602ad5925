#include "grammar/schema/value_checker.h"

#include <algorithm>

#include "grammar/automata/held_bytes.h"
#include "grammar/schema/json_text.h"
#include "grammar/schema/json_values.h"

namespace espalier::grammar {

namespace {

// Returns where the innermost array that `text` leaves open begins; the size of the text when none
// is open.
size_t open_array(std::string_view text) {
  std::vector<size_t> open;
  bool quoted = false;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '"') quoted = !quoted;
    if (quoted && c == '\\') ++at;
    if (quoted) continue;
    if (c == '[' || c == '{') open.push_back(at);
    if ((c == ']' || c == '}') && !open.empty()) open.pop_back();
  }
  return open.empty() ? text.size() : open.back();
}

}  // namespace

bool EarlierItems::contain(std::string_view before, std::string_view value) {
  if (before != before_) read(before);
  if (canonical_texts_.empty()) return false;
  // A string without escapes has one spelling.
  if (!escapes_ && value.front() == '"' && value.find('\\') == std::string_view::npos)
    return texts_.contains(std::string(value));
  const auto parsed = parse_exact_json_text(value, "the item");
  return parsed && canonical_texts_.contains(canonical_text(*parsed));
}

void EarlierItems::read(std::string_view before) {
  before_ = before;
  texts_.clear();
  canonical_texts_.clear();
  std::string array(before.substr(open_array(before)));
  const size_t last = array.find_last_not_of(" \t\r\n");
  array.resize(last == std::string::npos ? 0 : last + (array[last] == ',' ? 0 : 1));
  const auto items = parse_exact_json_text(array + "]", "the items");
  if (!items || !items->is_array()) return;
  escapes_ = array.find('\\') != std::string::npos;
  for (const boost::json::value& item : items->get_array()) {
    canonical_texts_.insert(canonical_text(item));
    if (item.is_string()) texts_.insert('"' + std::string(item.get_string()) + '"');
  }
}

size_t EarlierItems::num_bytes() const {
  return before_.capacity() + (texts_.size() + canonical_texts_.size()) * 64;
}

uint32_t SchemaChecker::add(std::vector<Part> all) {
  checks_.push_back(std::move(all));
  return static_cast<uint32_t>(checks_.size() - 1);
}

uint32_t SchemaChecker::add_distinct_item() { return kDistinctItem; }

size_t SchemaChecker::num_bytes() const {
  size_t bytes =
      held_bytes(checks_) + earlier_.num_bytes() + document_->num_bytes() + validator_.num_bytes();
  for (const std::vector<Part>& parts : checks_) bytes += held_bytes(parts);
  return bytes;
}

bool SchemaChecker::holds(uint32_t check, std::string_view before, std::string_view value) {
  if (check == kDistinctItem) return !earlier_.contain(before, value);
  const auto parsed = parse_exact_json_text(value, "the value");
  if (!parsed) return false;
  return std::ranges::all_of(checks_[check], [&](const Part& part) {
    const auto valid = validator_.valid(*parsed, part.schema, part.scope);
    return valid && *valid;
  });
}

}  // namespace espalier::grammar
