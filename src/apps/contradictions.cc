// What settings contradict or lack, once all sources of them have been read.
#include <fmt/format.h>

#include "apps/config.h"
#include "apps/settings.h"
#include "engine/nodes/node_part.h"
#include "server/authorize.h"

namespace espalier::apps {
namespace {

std::string given_as(const SettingTable& table, std::string_view name) {
  const Setting* row = table.find(name);
  return row != nullptr && row->given() ? row->set_by : "";
}

Status needs_for(const SettingTable& table, std::vector<std::string_view> names,
                 std::string_view what) {
  for (const std::string_view name : names)
    if (const std::string as = given_as(table, name); !as.empty())
      return invalid_argument("{} needs {}: without it nothing reads the setting", as, what);
  return {};
}

Status check_disaggregation_contradictions(const SettingTable& table, const AppConfig& config) {
  const DisaggregationSettings& d = config.engine.disaggregation;
  const std::string& mode = d.disaggregation_mode;
  if (mode != "null" && d.disaggregation_token.empty() && !server::is_loopback(config.server.host))
    return invalid_argument(
        "--disaggregation-mode {} with --host {} {}: set the same --disaggregation-token on both "
        "servers",
        mode, config.server.host,
        mode == "prefill" ? "gives keys and values of prompts to every caller of the bootstrap port"
                          : "takes keys and values from every host that a request names");
  if (mode == "null")
    ESP_RETURN_IF_ERROR(needs_for(table,
                                  {"disaggregation-transfer-backend", "disaggregation-token"},
                                  "--disaggregation-mode prefill or decode"));
  if (mode == "prefill") return {};
  return needs_for(table, {"disaggregation-bootstrap-port", "disaggregation-timeout"},
                   "--disaggregation-mode prefill");
}

// Nodes beyond this computer need a token, and settings of nodes several nodes.
Status check_node_contradictions(const SettingTable& table, const AppConfig& config) {
  const NodeSettings& nodes = config.nodes;
  if (nodes.single())
    return needs_for(
        table,
        {"node-rank", "dist-init-addr", "dist-token", "dist-timeout", "dist-heartbeat-timeout"},
        "--nnodes above 1");
  ESP_RETURN_IF_ERROR(check_node_settings(config.engine, nodes));
  const std::string host = nodes.dist_init_addr.substr(0, nodes.dist_init_addr.rfind(':'));
  if (nodes.dist_token.empty() && !server::is_loopback(host == "[::1]" ? "::1" : host))
    return invalid_argument(
        "--nnodes with --dist-init-addr {} lets every host of that network join: set the same "
        "--dist-token, or ESPALIER_DIST_TOKEN, on all nodes",
        nodes.dist_init_addr);
  if (nodes.node_rank > 0 && !config.warm_prompts.empty())
    return invalid_argument("{} is for the leader, --node-rank 0: leave it out",
                            given_as(table, "warm-prompts"));
  return {};
}

// Settings of tiers that no tier reads.
Status check_tier_contradictions(const SettingTable& table, const EngineConfig& engine) {
  const auto needs = [&](std::vector<std::string_view> names, std::string_view what) {
    return needs_for(table, std::move(names), what);
  };
  if (!engine.tiers.enable_hierarchical_cache)
    return needs({"hicache-size", "hicache-ratio", "hicache-write-policy",
                  "hicache-storage-backend", "hicache-storage-path", "hicache-disk-size",
                  "hicache-storage-backend-extra-config", "hicache-storage-prefetch-policy"},
                 "--enable-hierarchical-cache");
  const std::string& backend = engine.tiers.hicache_storage_backend;
  if (backend.find("file") == std::string::npos)
    ESP_RETURN_IF_ERROR(
        needs({"hicache-storage-path", "hicache-disk-size"}, "--hicache-storage-backend file"));
  const bool has_s3 = backend.find("s3") != std::string::npos;
  if (backend.find("redis") == std::string::npos && !has_s3)
    ESP_RETURN_IF_ERROR(
        needs({"hicache-storage-backend-extra-config"}, "--hicache-storage-backend redis or s3"));
  if (!has_s3 && !engine.tiers.s3.bucket.empty())
    return invalid_argument("{} has a bucket, but needs --hicache-storage-backend s3 for it",
                            given_as(table, "hicache-storage-backend-extra-config"));
  if (engine.tiers.hicache_size_gb > 0 && engine.tiers.hicache_ratio > 0)
    return invalid_argument("{} contradicts {}: both are the size of one tier; leave one out",
                            given_as(table, "hicache-size"), given_as(table, "hicache-ratio"));
  return {};
}

}  // namespace

Status check_contradictions(const SettingTable& table, const AppConfig& config) {
  const EngineConfig& engine = config.engine;
  const auto given = [&table](std::string_view name) { return given_as(table, name); };
  // `others` that were given beside `one`, which makes them mean nothing.
  const auto exclude = [&given](std::string_view one, std::vector<std::string_view> others,
                                std::string_view why) -> Status {
    for (std::string_view other : others)
      if (const std::string as = given(other); !as.empty())
        return invalid_argument("{} contradicts {}: {}; leave one out", as, given(one), why);
    return {};
  };
  if (engine.cache.disable_radix_cache) {
    if ((engine.schedule.schedule_policy == "lpm" ||
         engine.schedule.schedule_policy == "dfs-weight") &&
        !given("schedule-policy").empty())
      return invalid_argument(
          "{} contradicts {}: {} orders requests by their cached prefix, and none is kept; leave "
          "one out, or take --schedule-policy fcfs",
          given("schedule-policy"), given("disable-radix-cache"), engine.schedule.schedule_policy);
    ESP_RETURN_IF_ERROR(exclude("disable-radix-cache", {"radix-eviction-policy"},
                                "no cached prefix is kept that could be evicted"));
    ESP_RETURN_IF_ERROR(
        exclude("disable-radix-cache", {"warm-prompts"}, "no prompt stays cached for later ones"));
    if (engine.cache.num_cache_events > 0)
      ESP_RETURN_IF_ERROR(exclude("disable-radix-cache", {"kv-events-config"},
                                  "without the tree of prefixes the cache has no events"));
  }
  ESP_RETURN_IF_ERROR(check_tier_contradictions(table, engine));
  ESP_RETURN_IF_ERROR(check_disaggregation_contradictions(table, config));
  ESP_RETURN_IF_ERROR(check_node_contradictions(table, config));
  if (engine.model.skip_tokenizer_init)
    ESP_RETURN_IF_ERROR(
        exclude("skip-tokenizer-init",
                {"tokenizer-path", "chat-template", "tool-call-parser", "reasoning-parser"},
                "no tokenizer is loaded, so there is no text"));
  if (engine.schedule.disable_priority_preemption)
    ESP_RETURN_IF_ERROR(exclude("disable-priority-preemption",
                                {"priority-scheduling-preemption-threshold"},
                                "nothing that runs makes way"));
  if (engine.schedule.schedule_policy != "priority" &&
      !given("priority-scheduling-preemption-threshold").empty())
    return invalid_argument(
        "{} needs --schedule-policy priority (it is {}): only then does a running request make way "
        "for a higher one",
        given("priority-scheduling-preemption-threshold"), engine.schedule.schedule_policy);
  if (engine.cache.disable_hybrid_swa_memory)
    ESP_RETURN_IF_ERROR(exclude("disable-hybrid-swa-memory", {"swa-full-tokens-ratio"},
                                "layers with a sliding window keep all tokens"));
  if (engine.grammar.grammar_backend == "none")
    ESP_RETURN_IF_ERROR(exclude("grammar-backend",
                                {"constrained-json-disable-any-whitespace", "grammar-threads",
                                 "grammar-compile-seconds", "grammar-mask-threads"},
                                "none compiles no grammar"));
  if (config.server.telemetry.log_requests && config.log_level != "info" &&
      config.log_level != "debug")
    return invalid_argument(
        "{} contradicts {}: a request's line is of level info, and {} shows none; leave one out",
        given("log-requests"), given("log-level"), config.log_level);
  if (engine.model.load_format == LoadFormat::kDummy && given("model-path").empty())
    return invalid_argument("--load-format dummy needs --model-path: a folder with a config.json");
  return {};
}

}  // namespace espalier::apps
