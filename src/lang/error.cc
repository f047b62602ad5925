#include "lang/error.h"

#include <string_view>

namespace espalier::lang {
namespace {

std::string message(const Status& status, const Location& where) {
  const std::string place = to_string(where);
  return place.empty() ? status.to_string() : place + ": " + status.to_string();
}

}  // namespace

std::string to_string(const Location& where) {
  if (where.line == 0) return {};
  std::string_view file = where.file;
  if (const size_t slash = file.rfind('/'); slash != std::string_view::npos)
    file.remove_prefix(slash + 1);
  return fmt::format("{}:{}", file, where.line);
}

Error::Error(Status status, Location where)
    : std::runtime_error(message(status, where)), status_(std::move(status)), where_(where) {}

}  // namespace espalier::lang
