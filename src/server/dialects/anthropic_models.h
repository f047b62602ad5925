// GET /v1/models as Anthropic's clients read it, whose page and members differ from OpenAI's.
// Thread-safe. Internal to the room.
#pragma once

#include <string_view>

#include "server/context.h"

namespace espalier::server {

// Whether the request comes from such a client: each names the version of the API that it speaks.
bool from_anthropic_client(const net::HttpRequest& request);

net::HttpResponse anthropic_models(const Context& context);
// 404 for a model that is not served.
net::HttpResponse anthropic_model(const Context& context, std::string_view id);

}  // namespace espalier::server
