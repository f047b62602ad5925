#include "hub/reference.h"

#include <algorithm>
#include <cctype>

namespace espalier::hub {
namespace {

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// The hub's rule for owners and names.
bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= 96 && is_word(text.front()) && is_word(text.back()) &&
         std::ranges::all_of(text, [](char c) { return is_word(c) || c == '.' || c == '-'; }) &&
         text.find("..") == std::string_view::npos && text.find("--") == std::string_view::npos;
}

}  // namespace

std::optional<HubReference> HubReference::parse(std::string_view text) {
  HubReference out;
  const size_t colon = text.find(':');
  if (colon != std::string_view::npos) {
    out.file = text.substr(colon + 1);
    if (out.file.empty()) return std::nullopt;
    text = text.substr(0, colon);
  }
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos || !is_name(text.substr(0, slash)) ||
      !is_name(text.substr(slash + 1)))
    return std::nullopt;
  out.repo = text;
  return out;
}

bool is_commit(std::string_view text) {
  return text.size() == 40 && std::ranges::all_of(text, [](char c) {
           return std::isxdigit(static_cast<unsigned char>(c)) != 0;
         });
}

}  // namespace espalier::hub
