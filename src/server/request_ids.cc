#include "server/request_ids.h"

#include <fmt/format.h>

#include <set>
#include <string_view>

namespace espalier::server {

Status check_rids(const PerItem<std::string>& rids, size_t num_prompts) {
  ESP_RETURN_IF_ERROR(rids.check_size("rid", num_prompts));
  std::set<std::string_view> seen;
  for (const std::string& rid : rids.values)
    if (!rid.empty() && !seen.insert(rid).second)  // it begins with SGLang's words
      return invalid_argument(
          "Duplicate request IDs detected within the request: ['{}']: give each prompt a rid of "
          "its own, or one for all of them",
          rid);
  return {};
}

std::string rid_of(const PerItem<std::string>& rids, size_t i, size_t num_prompts) {
  const std::string* stated = rids.at(i);
  if (stated == nullptr || stated->empty()) return {};
  return rids.is_list || num_prompts == 1 ? *stated : fmt::format("{}_{}", *stated, i);
}

}  // namespace espalier::server
