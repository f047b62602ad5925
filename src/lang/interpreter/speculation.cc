#include "lang/interpreter/speculation.h"

#include <algorithm>

namespace espalier::lang {

size_t find_stop(std::string_view text, const Strings& stops) {
  size_t first = std::string_view::npos;
  for (const std::string& stop : stops) first = std::min(first, text.find(stop));
  return first;
}

std::optional<std::string> Lookahead::split(std::string_view text, const Strings& stops,
                                            bool complete) {
  clear();
  left_ = text;
  complete_ = complete;
  std::optional<std::string> taken = take(stops);
  if (!taken) clear();
  return taken;
}

std::optional<std::string> Lookahead::take(const Strings& stops) {
  if (empty()) return std::nullopt;
  const size_t end = find_stop(left_, stops);
  if (end == std::string::npos && !complete_) return std::nullopt;
  std::string taken = left_.substr(0, end);
  left_.erase(0, taken.size());
  if (end == std::string::npos) complete_ = false;  // what ended once cannot answer again
  return taken;
}

void Lookahead::expect(std::string_view constant) {
  if (empty()) return;
  if (left_.starts_with(constant)) {
    left_.erase(0, constant.size());
  } else {
    clear();
  }
}

std::optional<std::vector<std::string>> match_template(const std::vector<TemplateItem>& items,
                                                       std::string_view text) {
  std::vector<std::string> holes;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!items[i].is_hole) {
      if (!text.starts_with(items[i].text)) return std::nullopt;
      text.remove_prefix(items[i].text.size());
      continue;
    }
    size_t end = find_stop(text, items[i].stops);
    if (i + 1 < items.size() && !items[i + 1].is_hole) {
      const size_t next = text.find(items[i + 1].text);
      if (next == std::string_view::npos) return std::nullopt;
      end = std::min(end, next);
    }
    holes.emplace_back(text.substr(0, end));
    text.remove_prefix(holes.back().size());
    // A stop that no constant takes up is not part of any text.
    if (i + 1 < items.size() && !items[i + 1].is_hole && !text.starts_with(items[i + 1].text)) {
      const size_t next = text.find(items[i + 1].text);
      text.remove_prefix(next);
    }
  }
  return holes;
}

}  // namespace espalier::lang
