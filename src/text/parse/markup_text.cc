#include "text/parse/markup_text.h"

#include <utility>
#include <vector>

#include "text/parse/json_space.h"

namespace espalier {
namespace {

constexpr std::string_view kCdataBegin = "<![CDATA[", kCdataEnd = "]]>";
constexpr std::pair<std::string_view, char> kEntities[] = {{"&lt;", '<'},    {"&gt;", '>'},
                                                           {"&amp;", '&'},   {"&quot;", '"'},
                                                           {"&apos;", '\''}, {"&#39;", '\''}};

std::vector<std::string> marks_of(std::string end, bool is_xml) {
  std::vector<std::string> marks = {std::move(end)};
  if (is_xml) marks.emplace_back(kCdataBegin);
  return marks;
}

bool may_be_entity(std::string_view text) {
  for (const auto& [entity, c] : kEntities)
    if (entity.starts_with(text)) return true;
  return false;
}

std::string without_quotes_escaped(std::string text) {
  for (const auto& [entity, c] : {std::pair<std::string_view, char>{"&quot;", '"'}, {"&amp;", '&'}})
    for (size_t at = 0; (at = text.find(entity, at)) != std::string::npos; ++at)
      text.replace(at, entity.size(), 1, c);
  return text;
}

}  // namespace

bool is_tool_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.' || c == '-';
}

std::string markup_attribute(std::string_view tag, std::initializer_list<std::string_view> names) {
  const auto skip_space = [&] {
    while (!tag.empty() && is_json_space(tag[0])) tag.remove_prefix(1);
  };
  while (true) {
    skip_space();
    const size_t key_size = std::min(tag.find_first_of("= \t\r\n"), tag.size());
    if (key_size == 0) return {};
    const std::string_view key = tag.substr(0, key_size);
    tag.remove_prefix(key_size);
    skip_space();
    if (!tag.starts_with('=')) continue;
    tag.remove_prefix(1);
    skip_space();
    std::string_view value;
    if (tag.starts_with('"') || tag.starts_with('\'')) {
      const size_t close = tag.find(tag[0], 1);
      value = tag.substr(1, close == std::string_view::npos ? close : close - 1);
      tag.remove_prefix(close == std::string_view::npos ? tag.size() : close + 1);
    } else {
      value = tag.substr(0, tag.find_first_of(" \t\r\n"));
      tag.remove_prefix(value.size());
    }
    for (const std::string_view name : names)
      if (key == name) return without_quotes_escaped(std::string(value));
  }
}

MarkupText::MarkupText(std::string end, bool is_xml)
    : is_xml_(is_xml),
      marks_(marks_of(std::move(end), is_xml)),
      cdata_end_({std::string(kCdataEnd)}) {}

bool MarkupText::take(char c, std::string& text) {
  if (in_cdata_) {
    in_cdata_ = !cdata_end_.take(c, text);
    return false;
  }
  std::string plain;
  const auto mark = marks_.take(c, plain);
  for (const char each : plain) add(each, text);
  if (!mark) return false;
  text += std::exchange(entity_, {});
  in_cdata_ = *mark == 1;
  return *mark == 0;
}

void MarkupText::add(char c, std::string& text) {
  if (!is_xml_ || (entity_.empty() && c != '&')) {
    text += c;
    return;
  }
  entity_ += c;
  for (const auto& [entity, character] : kEntities) {
    if (entity_ != entity) continue;
    text += character;
    entity_.clear();
    return;
  }
  if (may_be_entity(entity_)) return;
  const std::string refuted = std::exchange(entity_, {});
  text += refuted[0];
  for (const char each : std::string_view(refuted).substr(1)) add(each, text);
}

std::string MarkupText::flush() {
  std::string text = std::exchange(entity_, {});
  text += in_cdata_ ? cdata_end_.flush() : marks_.flush();
  return text;
}

}  // namespace espalier
