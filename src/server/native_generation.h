// The answers of /generate.
#pragma once

#include <memory>

#include "server/generation.h"
#include "server/native_request.h"

namespace espalier::server {

std::shared_ptr<Generation> make_native_generation(ContextPtr context, net::ResponsePtr response,
                                                   NativeRequest&& request);

}  // namespace espalier::server
