// Routes of SGLang 0.5.23 that this server lacks: each answers 501 with what to do instead, so that
// a script that was written for SGLang learns more than that a path is unknown.
// docs/sglang_routes.md has the table of all of SGLang's routes.
#include <algorithm>
#include <string_view>

#include "server/errors.h"
#include "server/routes.h"

namespace espalier::server {
namespace {

// Routes that share an advice. `patterns` are separated by one space.
struct LackingRoutes {
  std::string_view patterns, advice;
};

constexpr LackingRoutes kLacking[] = {
    {"/v1/realtime", "POST whole sounds to /v1/audio/transcriptions"},
    {"/update_weights_from_distributed "
     "/begin_weight_update /end_weight_update",
     "POST a safetensors file to /update_weights_from_tensor, or a checkpoint's path to "
     "/update_weights_from_disk"},
    {"/init_weights_update_group /destroy_weights_update_group "
     "/init_weights_send_group_for_remote_instance /send_weights_to_remote_instance "
     "/get_remote_instance_transfer_engine_info /remote_instance_transfer_engine_info",
     "servers share weights through files alone: give each its --model-path"},
    {"/load_lora_adapter_from_tensors",
     "save the adapter as PEFT does and POST /load_lora_adapter"},
    {"/add_external_corpus /remove_external_corpus /list_external_corpora",
     "no corpus of draft tokens is kept: leave the call out"},
    {"/get_hicache_l3_cache_layout",
     "a page in storage has one layout; GET /hicache/storage-backend says where pages are"},
    {"/pd_role_switch", "a server computes prompts and answers alike: leave the call out"},
    {"/scale_elastic_ep /is_scaling_elastic_ep",
     "the devices of a server are chosen at the start: start another server beside it"},
    {"/v1/decisions /v1/systemone",
     "POST /v1/score with a label's token ids, or /generate with the choices as regex"},
    {"/set_internal_state", "settings are fixed at the start: state them as flags"},
    {"/configure_logging /set_trace_level", "state --log-level at the start"},
    {"/dumper/{method}", "tensors are not dumped by a server: leave the call out"},
    {"/freeze_gc", "there is no garbage collector: leave the call out"},
    {"/slow_down", "limit a key with requests_per_minute (docs/keys.md)"},
};

RouteHandler refuse_with(std::string pattern, std::string_view advice) {
  return [pattern = std::move(pattern), advice](const ContextPtr&, net::HttpRequest&&,
                                                net::ResponsePtr response) {
    response->send(
        http_error(501, fmt::format("{} of SGLang is not served here: {}", pattern, advice)));
  };
}

}  // namespace

const std::vector<Route>& sglang_routes() {
  static const std::vector<Route> table = [] {
    std::vector<Route> all;
    for (auto [patterns, advice] : kLacking) {
      while (!patterns.empty()) {
        const std::string pattern(patterns.substr(0, patterns.find(' ')));
        patterns.remove_prefix(std::min(patterns.size(), pattern.size() + 1));
        all.push_back({{"GET", "POST", "PUT", "DELETE"},
                       pattern,
                       Access::kUser,
                       fmt::format("Not served (501): {}", advice),
                       refuse_with(pattern, advice),
                       "",
                       nullptr,
                       501});
      }
    }
    return all;
  }();
  return table;
}

}  // namespace espalier::server
