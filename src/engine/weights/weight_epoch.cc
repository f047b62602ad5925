#include "engine/weights/weight_epoch.h"

namespace espalier {
namespace {

// An adapter's mark, a number between two zero bytes (namespace_of_adapter), comes first.
size_t size_of_mark(std::string_view name) {
  if (name.size() < 2 || name[0] != '\0' || name[1] == '\0') return 0;
  return name.find('\0', 1) + 1;  // 0 where there is none
}

}  // namespace

std::string cache_prefix_of_weights(std::string_view name) {
  return "\1w" + std::string(name) + '\1';
}

// A key that begins like a prefix is escaped.
std::string namespace_of_weights(const WeightEpoch& weights, std::string_view of_key) {
  const size_t mark = size_of_mark(of_key);
  const std::string_view key = of_key.substr(mark);
  std::string out(of_key.substr(0, mark));
  out += weights.cache_prefix;
  if (key.starts_with('\1')) out += '\1';
  out += key;
  return out;
}

std::string namespace_without_weights(std::string_view cache_namespace) {
  const size_t mark = size_of_mark(cache_namespace);
  std::string_view key = cache_namespace.substr(mark);
  if (key.starts_with("\1w")) key.remove_prefix(key.find('\1', 1) + 1);
  if (key.starts_with('\1')) key.remove_prefix(1);
  return std::string(cache_namespace.substr(0, mark)).append(key);
}

}  // namespace espalier
