// The settings of `espalier route`.
#pragma once

#include <string>

#include "apps/prompt_tokenizer.h"
#include "apps/settings.h"
#include "base/clock.h"
#include "router/router_server.h"

namespace espalier::apps {

struct RouteConfig {
  router::RouterConfig router;
  std::string log_level = "info";
  Duration drain_timeout = std::chrono::seconds(30);
  size_t max_tree_size = size_t{1} << 30;  // bytes of prompts
  PromptTokenizerConfig tokenizer;
};

// `config` outlives the table.
void add_route_settings(SettingTable& table, RouteConfig& config);
// kInvalidArgument: events are wanted of a policy that does not use them, or ids without a
// tokenizer.
Status check_tokens(const RouteConfig& config);
// What the bounds of the tree are for so many bytes of prompts.
PrefixTree::Options tree_options(size_t max_tree_size);
// The rows of what policies can be set to, beside their name: for the simulation too.
void add_policy_option_rows(SettingTable& table, router::PolicyOptions& policy,
                            size_t& max_tree_size);

// Documentation of the settings, as docs/router_flags.md holds it.
std::string route_settings_markdown();

}  // namespace espalier::apps
