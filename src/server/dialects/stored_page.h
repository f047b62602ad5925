// What the routes of stored chats and conversations share. Internal to the room.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "server/batches/batch_routes.h"
#include "server/errors.h"

namespace espalier::server {

inline constexpr int64_t kStoredPage = 20, kStoredPageMax = 100;  // items of a list

inline void refuse_stored(const net::ResponsePtr& response, const Status& status) {
  response->send(error_response(Dialect::kOpenAi, status));
}

inline Status no_stored_memory() {
  return error(StatusCode::kResourceExhausted,
               "stored answers have no memory left (--max-responses-bytes)");
}

// `limit` of the items behind `after`, in the order of the query; the items come oldest first.
// kNotFound where no item is `after`.
template <typename Item>
Result<ListPage<Item>> page_of(std::vector<Item> items, const ListQuery& query) {
  if (!query.ascending) std::ranges::reverse(items);
  auto begin = items.begin();
  if (!query.after.empty()) {
    begin = std::ranges::find(items, query.after, &Item::id);
    if (begin == items.end())
      return fail(
          error(StatusCode::kNotFound, "after is '{}', which the list does not hold", query.after));
    ++begin;
  }
  const auto count = std::min<int64_t>(query.limit, items.end() - begin);
  return ListPage<Item>{{begin, begin + count}, begin + count != items.end()};
}

}  // namespace espalier::server
