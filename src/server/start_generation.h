// From a request's body to its generation, in any dialect. Internal to the room.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "server/authorize.h"
#include "server/errors.h"
#include "server/generation.h"

namespace espalier::server {

// Parses with `parse` (body, malformed -> Result) and starts what `make` makes of it (null: it has
// answered already); both off the I/O thread when the body is large. Thread-safe.
template <typename Parse, typename Make>
void start_generation(const ContextPtr& context, net::HttpRequest&& request,
                      net::ResponsePtr response, Dialect dialect, Parse parse, Make make) {
  const size_t size = request.body.size();
  const std::string* const parent = request.header("traceparent");
  const Caller caller{.tenant = tenant_of(context->tenants.get(), request),
                      .is_line = !request.tenant.empty(),
                      .trace = parent != nullptr ? TraceParent::parse(*parent) : std::nullopt,
                      .operation = traced_operation(request.path)};
  auto body = std::make_shared<std::string>(std::move(request.body));  // the task is copyable
  context->run_sized(size, response, [=] {
    bool malformed = false;
    auto parsed = parse(*body, malformed);
    body->clear();
    if (!parsed) {
      const bool openai_shape = dialect == Dialect::kNative || dialect == Dialect::kOpenAi;
      response->send(malformed && openai_shape ? malformed_response(parsed.error())
                                               : error_response(dialect, parsed.error()));
      return;
    }
    if (const std::shared_ptr<Generation> made = make(context, response, std::move(*parsed))) {
      made->set_caller(caller);
      made->begin();
    }
  });
}

}  // namespace espalier::server
