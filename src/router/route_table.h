// The routes that a router passes on to a worker, and where their prompts stand.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "router/prompt_ids.h"
#include "router/request_facts.h"

namespace espalier::router {

struct PassedRoute {
  std::string_view method, pattern;
  ErrorStyle errors = ErrorStyle::kOpenAi;
  std::vector<std::string_view> prompt_fields;  // in the order in which the model sees them
  bool computes = true;           // tokens by the model: limits of tenants count the request
  bool pairs = false;             // a prefill and a decode worker may answer it together
  const IdsPlace* ids = nullptr;  // null: its prompts stay text
};

// Each is stateless: any worker may answer it. What a worker keeps for its clients (files, batches,
// stored responses) is not routed.
std::span<const PassedRoute> passed_routes();

}  // namespace espalier::router
