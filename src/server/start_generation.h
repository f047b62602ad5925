// From a request's body to its generation, in any dialect. Internal to the room.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "server/authorize.h"
#include "server/errors.h"
#include "server/generation.h"
#include "server/json_memory.h"
#include "server/observations.h"

namespace espalier::server {

// Parses with `parse` (body, malformed -> Result) and starts what `make` makes of it (null: it has
// answered already). On the thread that calls it, which is a worker's where the body is large. The
// body's charge stands for what the request keeps of it, until its first token.
template <typename Parse, typename Make>
void start_generation(const ContextPtr& context, net::HttpRequest&& request,
                      net::ResponsePtr response, Dialect dialect, Parse parse, Make make) {
  const std::string* const parent = request.header("traceparent");
  Caller caller{.tenant = tenant_of(context->tenants.get(), request),
                .is_line = !request.tenant.empty(),
                .trace = parent != nullptr ? TraceParent::parse(*parent) : std::nullopt,
                .operation = traced_operation(request.path)};
  const TimePoint arrived = std::chrono::steady_clock::now();
  bool malformed = false;
  auto parsed = parse(request.body, malformed);
  RequestRecorder* const recorder = context->observed->recorder.get();
  if (recorder != nullptr)
    caller.record = recorder->begin(request.path, std::move(request.body), arrived);
  std::string().swap(request.body);  // what is parsed is a copy
  JsonChargeScope::settle();
  if (!parsed) {
    caller.record.end(http_status(parsed.error().code()));
    const bool openai_shape = dialect == Dialect::kNative || dialect == Dialect::kOpenAi;
    response->send(malformed && openai_shape ? malformed_response(parsed.error())
                                             : error_response(dialect, parsed.error()));
    return;
  }
  const std::shared_ptr<Generation> made = make(context, response, std::move(*parsed));
  if (made == nullptr) return;
  made->set_caller(std::move(caller), std::move(request.body_charge));
  made->begin();
}

}  // namespace espalier::server
