#include "grammar/schema/open_items.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "grammar/automata/unicode.h"
#include "grammar/schema/number_ranges.h"

namespace espalier::grammar {
namespace {

constexpr size_t kRecentMax = 32;     // items beside those that copies share
constexpr size_t kKeptMax = 16;       // texts whose items are kept
constexpr size_t kItemOverhead = 80;  // bytes of a set's node beside the text

bool in_number(char c) {
  return (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E';
}

bool begins_number(char c) { return c == '-' || (c >= '0' && c <= '9'); }

}  // namespace

void OpenItems::read(std::string_view bytes) {
  for (const char c : bytes) read_byte(c);
}

void OpenItems::read_byte(char c) {
  if (mode_ == Mode::kEscape) return read_escape(c);
  if (mode_ == Mode::kOutside) return read_outside(c);
  if (c == '\\') {
    mode_ = Mode::kEscape;
    escape_.clear();
    return;
  }
  append(c);
  if (c != '"') return;
  mode_ = Mode::kOutside;
  end_value();
}

void OpenItems::read_escape(char c) {
  escape_ += c;
  if (escape_[0] != 'u') {
    constexpr std::string_view kNames = "bfnrt", kMeant = "\b\f\n\r\t";
    const size_t at = kNames.find(c);
    append_char(static_cast<uint8_t>(at == std::string_view::npos ? c : kMeant[at]));
    mode_ = Mode::kString;
    return;
  }
  if (escape_.size() < 5) return;
  mode_ = Mode::kString;
  uint32_t code = 0;
  std::from_chars(escape_.data() + 1, escape_.data() + escape_.size(), code, 16);
  if (code >= 0xd800 && code < 0xdc00) {
    high_surrogate_ = code;
    return;
  }
  if (high_surrogate_ != 0 && code >= 0xdc00 && code < 0xe000)
    code = 0x10000 + ((high_surrogate_ - 0xd800) << 10) + (code - 0xdc00);
  high_surrogate_ = 0;
  append_char(code);
}

// Strings keep the escapes that they need, so a quote in text_ begins or ends a string.
void OpenItems::append_char(uint32_t code_point) {
  if (num_arrays_ == 0) return;
  if (code_point == '"' || code_point == '\\') {
    text_ += '\\';
    text_ += static_cast<char>(code_point);
  } else if (code_point < 0x20) {
    text_ += "\\u";
    text_ += static_cast<char>('A' + code_point);
  } else {
    append_utf8(text_, code_point);
  }
}

void OpenItems::read_outside(char c) {
  if (begins_number(c) || (!number_.empty() && in_number(c))) {
    number_ += c;
    return;
  }
  end_number();
  if (c == ' ' || c == '\n' || c == '\r' || c == '\t') return;
  if (c == '[' || c == '{') return open(c);
  if (c == ']' || c == '}') return close(c);
  if (c == ',' && !open_.empty()) {
    Open& at = open_.back();
    if (at.array) {
      end_item(at);
      append(c);
      if (num_arrays_ == 1) text_.clear();
      at.begin = text_.size();
      at.between = false;
      return;
    }
    // A member whose key has come before counts as if it had not.
    if (at.between) text_.resize(at.begin);
    at.begin = text_.size();
    at.between = true;
    at.items = nullptr;
  }
  append(c);
  if (c == '"') mode_ = Mode::kString;
}

// Numbers are written with a sign and a point, so that none is the beginning of another value.
void OpenItems::end_number() {
  if (number_.empty()) return;
  if (const auto decimal = Decimal::parse(number_); decimal && num_arrays_ > 0) {
    text_ += decimal->negative && !decimal->zero() ? '-' : '+';
    text_ += decimal->whole + '.' + decimal->fraction;
  }
  number_.clear();
  end_value();
}

void OpenItems::end_value() {
  if (open_.empty() || num_arrays_ == 0) return;
  Open& at = open_.back();
  if (at.array) {
    at.between = true;
  } else if (at.between && at.items == nullptr) {
    std::string_view key = std::string_view(text_).substr(at.begin);
    if (key.starts_with(',')) key.remove_prefix(1);
    at.between = std::ranges::find(at.recent, key) != at.recent.end();
    if (at.between) {
      at.items = std::make_shared<Texts>();
    } else {
      at.recent.emplace_back(key);
    }
  }
}

void OpenItems::open(char bracket) {
  append(bracket);
  const bool array = bracket == '[';
  if (array && num_arrays_++ == 0) text_.clear();
  open_.push_back({.array = array, .between = !array, .begin = text_.size()});
}

void OpenItems::close(char bracket) {
  if (open_.empty()) return;
  if (open_.back().array) {
    --num_arrays_;
  } else if (open_.back().between && num_arrays_ > 0) {
    text_.resize(open_.back().begin);
  }
  open_.pop_back();
  if (num_arrays_ == 0) text_.clear();
  append(bracket);
  end_value();
}

void OpenItems::end_item(Open& array) {
  std::string item = text_.substr(array.begin);
  item_bytes_ += item.size() + kItemOverhead;
  if (array.items == nullptr) array.items = std::make_shared<Texts>();
  if (array.items.use_count() > 1) {
    array.recent.push_back(std::move(item));
    if (array.recent.size() <= kRecentMax) return;
    array.items = std::make_shared<Texts>(*array.items);
  } else {
    array.items->insert(std::move(item));
  }
  array.items->insert(array.recent.begin(), array.recent.end());
  array.recent.clear();
}

bool OpenItems::any_complete() const {
  return std::ranges::any_of(open_,
                             [](const Open& one) { return one.array && one.items != nullptr; });
}

bool OpenItems::any_complete_outside() const {
  const auto innermost =
      std::find_if(open_.rbegin(), open_.rend(), [](const Open& one) { return one.array; });
  return innermost != open_.rend() && std::any_of(innermost + 1, open_.rend(), [](const Open& one) {
           return one.items != nullptr;
         });
}

bool OpenItems::differ(bool inside) const {
  return std::ranges::none_of(open_, [&](const Open& one) {
    if (!one.array) return false;
    if (one.between) return inside;
    return one.items != nullptr && may_equal(one);
  });
}

// Returns whether the key under way has come before, or may become one that has.
bool OpenItems::may_repeat(const Open& object) const {
  if (object.items != nullptr) return true;
  std::string_view key = std::string_view(text_).substr(object.begin);
  if (key.starts_with(',')) key.remove_prefix(1);
  return key.empty() || std::ranges::any_of(object.recent, [&](const std::string& before) {
           return before.starts_with(key);
         });
}

bool OpenItems::may_equal(const Open& array) const {
  size_t end = text_.size();
  bool inside = false;  // of the outermost array, from which on text_ is
  for (const Open& one : open_) {
    inside |= one.array;
    if (inside && !one.array && one.between && may_repeat(one)) end = std::min(end, one.begin);
  }
  const std::string_view begun =
      std::string_view(text_).substr(array.begin, std::max(end, array.begin) - array.begin);
  const auto fits = [&](const std::string& item) { return may_become(item, begun); };
  for (auto at = array.items->lower_bound(begun); at != array.items->end(); ++at) {
    if (!at->starts_with(begun)) break;
    if (fits(*at)) return true;
  }
  return std::ranges::any_of(array.recent, fits);
}

// A number under way may become any number.
bool OpenItems::may_become(std::string_view item, std::string_view begun) const {
  if (!item.starts_with(begun)) return false;
  if (number_.empty()) return true;
  return item.size() > begun.size() && (item[begun.size()] == '+' || item[begun.size()] == '-');
}

size_t OpenItems::num_bytes() const {
  return sizeof(OpenItems) + item_bytes_ + text_.capacity() + open_.capacity() * sizeof(Open);
}

const OpenItems& ItemsOfText::at(std::string_view text) {
  if (kept_.empty()) kept_.emplace_back();
  if (kept_.back().first < text.size()) {
    OpenItems items = kept_.back().second;
    items.read(text.substr(kept_.back().first));
    if (kept_.size() == kKeptMax) kept_.erase(kept_.begin());
    kept_.emplace_back(text.size(), std::move(items));
  }
  return kept_.back().second;
}

void ItemsOfText::shrink_to(size_t size) {
  while (!kept_.empty() && kept_.back().first > size) kept_.pop_back();
}

}  // namespace espalier::grammar
