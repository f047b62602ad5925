// What the routes of files and batches share. Internal to the room.
#pragma once

#include <boost/json/fwd.hpp>
#include <functional>
#include <string>

#include "server/batches/batches.h"
#include "server/errors.h"
#include "server/json_writer.h"
#include "server/routes.h"

namespace espalier::server {

// Of files, from their creation on; as OpenAI has them.
inline constexpr int64_t kMinExpirySeconds = 3600, kMaxExpirySeconds = 2'592'000;

// A file as its routes and a completed upload show it.
void write_file(JsonWriter& w, const FileRecord& file);
// kInvalidArgument where no file may have this purpose.
Status check_purpose(std::string_view purpose);
// {"anchor": "created_at", "seconds"}: the seconds.
Result<int64_t> read_expiry_seconds(const boost::json::value& value, std::string_view where);

// POST /v1/uploads and what follows it; file_routes() has them behind its own.
const std::vector<Route>& upload_routes();

// What the request of this key sees: its own records, an administrator's all. `owner` is whose a
// new record is.
OwnerFilter filter_of(const Context& context, const net::HttpRequest& request);

struct BatchCall {
  Batches& batches;
  const OwnerFilter& filter;
  const net::HttpRequest& request;
  const net::ResponsePtr& response;
};
// A handler that waits for the disk, and so runs on a worker; 400 where the server keeps no files.
using BatchHandler = void (*)(const BatchCall&);
RouteHandler on_worker(BatchHandler handler, Dialect dialect = Dialect::kOpenAi);

// `limit` of a query, between 1 and the most.
Result<int64_t> read_limit(const net::HttpRequest& request, int64_t default_limit,
                           int64_t max_limit);
// `after`, `limit` and `order` of a query.
Result<ListQuery> read_list_query(const net::HttpRequest& request, int64_t default_limit,
                                  int64_t max_limit);

// {"object": "list", "data": [...], "first_id", "last_id", "has_more"}
template <typename Record>
net::HttpResponse list_response(const ListPage<Record>& page,
                                void (*write)(JsonWriter&, const Record&)) {
  std::string out;
  JsonWriter w(out);
  w.begin_object().member("object", "list").key("data").begin_array();
  for (const Record& record : page.records) write(w, record);
  w.end_array();
  const bool empty = page.records.empty();
  w.key("first_id");
  empty ? w.null() : w.value(page.records.front().id);
  w.key("last_id");
  empty ? w.null() : w.value(page.records.back().id);
  w.member("has_more", page.has_more).end_object();
  return net::HttpResponse::json(200, std::move(out));
}

}  // namespace espalier::server
