#include "engine/images/span_keys.h"

#include <limits>

namespace espalier {

std::optional<TokenId> SpanKeys::key_of(const Digest& digest) {
  std::lock_guard lock(mutex_);
  const auto [found, added] = known_.try_emplace(digest);
  Known& known = found->second;
  if (!added) {
    used_.splice(used_.begin(), used_, known.used);
    return known.key;
  }
  if (next_ > std::numeric_limits<TokenId>::max()) {
    known_.erase(found);
    return std::nullopt;
  }
  known.key = static_cast<TokenId>(next_++);
  used_.push_front(&found->first);
  known.used = used_.begin();
  if (known_.size() > capacity_) {
    const auto oldest = known_.find(*used_.back());
    used_.pop_back();
    known_.erase(oldest);
  }
  return known.key;
}

}  // namespace espalier
