#include "engine/weights/released_memory.h"

#include <algorithm>

namespace espalier {
namespace {

constexpr std::array kMemoryParts = {MemoryPart::kKvCache, MemoryPart::kWeights};

}  // namespace

std::string_view name_of(MemoryPart part) {
  return part == MemoryPart::kKvCache ? "kv_cache" : "weights";
}

std::optional<MemoryPart> parse_memory_part(std::string_view name) {
  for (const MemoryPart part : kMemoryParts)
    if (name_of(part) == name) return part;
  return std::nullopt;
}

Status ReleasedMemory::check(std::span<const MemoryPart> parts) const {
  const auto stays = [&](MemoryPart part) { return memory_[index(part)] == nullptr; };
  return std::ranges::any_of(parts, stays) ? unsupported_ : Status();
}

Status ReleasedMemory::release(std::span<const MemoryPart> parts) {
  for (const MemoryPart part : {MemoryPart::kWeights, MemoryPart::kKvCache}) {
    if (is_released(part) || std::ranges::find(parts, part) == parts.end()) continue;
    ESP_ASSIGN_OR_RETURN(bytes_[index(part)], memory_[index(part)]->release_memory());
  }
  return Status();
}

Status ReleasedMemory::restore(std::span<const MemoryPart> parts) {
  for (const MemoryPart part : {MemoryPart::kWeights, MemoryPart::kKvCache}) {
    if (!is_released(part) || std::ranges::find(parts, part) == parts.end()) continue;
    ESP_RETURN_IF_ERROR(memory_[index(part)]->restore_memory());
    bytes_[index(part)].reset();
  }
  return Status();
}

MemoryReport ReleasedMemory::report() const {
  MemoryReport out;
  for (const MemoryPart part : kMemoryParts) {
    if (!is_released(part)) continue;
    out.released.push_back(part);
    out.released_bytes += *bytes_[index(part)];
  }
  return out;
}

std::string ReleasedMemory::names() const {
  std::string out;
  for (const MemoryPart part : report().released)
    out += (out.empty() ? "" : ", ") + std::string(name_of(part));
  return out;
}

Status ReleasedMemory::refusal() const {
  if (!any()) return Status();
  return error(StatusCode::kUnavailable,
               "this server has released its memory ({}) and serves no request: POST "
               "/resume_memory_occupation, or try again later",
               names());
}

}  // namespace espalier
