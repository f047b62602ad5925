#include "net/multipart.h"

#include <algorithm>
#include <cctype>
#include <optional>

namespace espalier::net {
namespace {

constexpr size_t kMaxParts = 64;
constexpr size_t kMaxBoundary = 70;  // RFC 2046
constexpr size_t kMaxHeaders = 8 << 10;

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) ==
           std::tolower(static_cast<unsigned char>(y));
  });
}

std::string_view trimmed(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

// A quoted value with its quotes and backslashes taken off; moves `text` behind it.
std::string take_quoted(std::string_view& text) {
  std::string value;
  text.remove_prefix(1);
  while (!text.empty() && text.front() != '"') {
    if (text.front() == '\\' && text.size() > 1) text.remove_prefix(1);
    value.push_back(text.front());
    text.remove_prefix(1);
  }
  if (!text.empty()) text.remove_prefix(1);
  return value;
}

// The parameter `name` of "value; name=x; other=\"y\"".
std::optional<std::string> parameter(std::string_view header, std::string_view name) {
  std::string_view rest = header.substr(std::min(header.find(';'), header.size()));
  while (!rest.empty()) {
    rest.remove_prefix(1);
    const size_t equals = std::min(rest.find('='), rest.size());
    const std::string_view key = trimmed(rest.substr(0, equals));
    rest.remove_prefix(std::min(equals + 1, rest.size()));
    std::string value;
    if (!rest.empty() && rest.front() == '"') {
      value = take_quoted(rest);
    } else {
      value = trimmed(rest.substr(0, rest.find(';')));
    }
    if (equal_ignoring_case(key, name)) return value;
    rest.remove_prefix(std::min(rest.find(';'), rest.size()));
  }
  return std::nullopt;
}

std::string_view first_word(std::string_view header) {
  return trimmed(header.substr(0, header.find(';')));
}

// The value of Content-Disposition among a part's header lines.
std::string_view disposition_of(std::string_view headers) {
  while (!headers.empty()) {
    const size_t end = std::min(headers.find("\r\n"), headers.size());
    const std::string_view line = headers.substr(0, end);
    headers.remove_prefix(std::min(end + 2, headers.size()));
    const size_t colon = line.find(':');
    if (colon != std::string_view::npos &&
        equal_ignoring_case(line.substr(0, colon), "Content-Disposition"))
      return trimmed(line.substr(colon + 1));
  }
  return {};
}

Result<FormPart> read_part(std::string_view text, size_t number) {
  // A part without headers begins with the blank line.
  const size_t end = text.starts_with("\r\n") ? 0 : text.find("\r\n\r\n");
  if (end == std::string_view::npos || end > kMaxHeaders)
    return fail(invalid_argument("part {} of the form has no end of its headers", number));
  const std::string_view disposition = disposition_of(text.substr(0, end));
  const auto name = parameter(disposition, "name");
  if (!equal_ignoring_case(first_word(disposition), "form-data") || !name)
    return fail(invalid_argument(
        "part {} of the form has no header 'Content-Disposition: form-data; name=...'", number));
  const size_t begin = end + (end == 0 ? 2 : 4);
  return FormPart{*name, parameter(disposition, "filename").value_or(""), text.substr(begin)};
}

}  // namespace

Result<std::vector<FormPart>> parse_form_data(std::string_view content_type,
                                              std::string_view body) {
  const auto boundary = parameter(content_type, "boundary");
  if (!equal_ignoring_case(first_word(content_type), "multipart/form-data") || !boundary ||
      boundary->empty() || boundary->size() > kMaxBoundary)
    return fail(
        invalid_argument("the Content-Type must be multipart/form-data with a boundary of 1 to {} "
                         "characters",
                         kMaxBoundary));
  const std::string divider = "\r\n--" + *boundary;
  size_t at = body.starts_with(std::string_view(divider).substr(2)) ? divider.size() - 2
                                                                    : body.find(divider);
  if (at == std::string_view::npos)
    return fail(invalid_argument("the form's boundary does not stand in its body"));
  if (at != divider.size() - 2) at += divider.size();
  std::vector<FormPart> parts;
  while (!body.substr(at).starts_with("--")) {
    const size_t line_end = body.find("\r\n", at);
    if (line_end == std::string_view::npos || !trimmed(body.substr(at, line_end - at)).empty())
      return fail(invalid_argument("behind part {} of the form stands no boundary", parts.size()));
    const size_t begin = line_end + 2, end = body.find(divider, line_end);
    if (end == std::string_view::npos)
      return fail(invalid_argument("part {} of the form has no end", parts.size() + 1));
    if (parts.size() == kMaxParts)
      return fail(invalid_argument("the form has more than {} parts", kMaxParts));
    if (end < begin)
      return fail(invalid_argument("part {} of the form has no headers", parts.size() + 1));
    ESP_ASSIGN_OR_RETURN(FormPart part,
                         read_part(body.substr(begin, end - begin), parts.size() + 1));
    parts.push_back(std::move(part));
    at = end + divider.size();
  }
  return parts;
}

}  // namespace espalier::net
