#include <algorithm>

#include "base/log.h"
#include "engine/disaggregation/decode_side.h"
#include "engine/disaggregation/disaggregation.h"
#include "engine/disaggregation/prefill_side.h"
#include "engine/tiers/start_tiers.h"

namespace espalier {
namespace {

// What waits for decode servers beyond it waits in this process's own memory.
constexpr int64_t kHostStagingBytes = 256 << 20;

Status refuse(std::string_view what) {
  return error(StatusCode::kUnimplemented,
               "{} is not passed from a prefill server to a decode server: leave bootstrap_room "
               "out, and one server answers the request alone",
               what);
}

// Of the whole cache.
int64_t bytes_of_pages(const EngineConfig& config, const PageCopier& copier) {
  return int64_t{config.cache.max_total_tokens / config.cache.page_size} * copier.page_bytes();
}

// Null: pages go through the host's memory and TCP.
PageStaging* start_staging(const EngineConfig& config, PageCopier& copier) {
  const DisaggregationSettings& d = config.disaggregation;
  if (d.disaggregation_transfer_backend == "tcp") return nullptr;
  const int64_t bytes = d.disaggregation_staging_bytes > 0
                            ? d.disaggregation_staging_bytes
                            : std::min(kHostStagingBytes, bytes_of_pages(config, copier));
  const auto staging = copier.start_staging(bytes);
  if (!staging)
    log_warning("keys and values go to decode servers over TCP: {}", staging.error().message());
  return staging ? *staging : nullptr;
}

}  // namespace

Status check_disaggregation(const EngineConfig& c) {
  const DisaggregationSettings& d = c.disaggregation;
  if (d.disaggregation_mode != "null" && d.disaggregation_mode != "prefill" &&
      d.disaggregation_mode != "decode")
    return invalid_argument("disaggregation_mode is '{}', but must be prefill, decode or null",
                            d.disaggregation_mode);
  if (d.disaggregation_transfer_backend != "auto" && d.disaggregation_transfer_backend != "tcp")
    return invalid_argument("disaggregation_transfer_backend is '{}', but must be auto or tcp",
                            d.disaggregation_transfer_backend);
  if (d.disaggregation_bootstrap_port < 0 || d.disaggregation_bootstrap_port > 65535)
    return invalid_argument("disaggregation_bootstrap_port is {}, but must be within 0 to 65535",
                            d.disaggregation_bootstrap_port);
  if (!(d.disaggregation_timeout > 0))
    return invalid_argument("disaggregation_timeout is {} s, but must be above 0",
                            d.disaggregation_timeout);
  if (d.disaggregation_mode == "null") return {};
  if (c.compute.dp_size > 1)
    return error(StatusCode::kUnimplemented,
                 "disaggregation_mode {} with dp_size {}: start a server for each replica",
                 d.disaggregation_mode, c.compute.dp_size);
  if (c.model.is_embedding)
    return invalid_argument("disaggregation_mode {} is for models that generate, not embeddings",
                            d.disaggregation_mode);
  return {};
}

Status check_bootstrap(const EngineConfig& c, const GenerateRequest& request) {
  if (!request.bootstrap) return {};
  if (c.disaggregation.disaggregation_mode == "null")
    return error(StatusCode::kFailedPrecondition,
                 "bootstrap_room is set, but this server prefills and decodes itself: start it "
                 "with --disaggregation-mode prefill or decode, or leave bootstrap_room out");
  if (request.embed) return refuse("an embedding");
  if (!request.images.empty()) return refuse("a prompt with pictures");
  if (!request.lora.empty()) return refuse("a LoRA adapter's prompt");
  if (request.session) return refuse("a session's prompt");
  if (request.sampling.max_new_tokens == 0)
    return invalid_argument(
        "max_new_tokens is 0, and a decode server has nothing to decode: leave bootstrap_room out");
  if (c.disaggregation.disaggregation_mode != "decode") return {};
  if (request.bootstrap->host.empty())
    return invalid_argument(
        "bootstrap_room is set without bootstrap_host: give the prefill server's address");
  if (request.bootstrap->port < 1 || request.bootstrap->port > 65535)
    return invalid_argument("bootstrap_port is {}, but must be within 1 to 65535",
                            request.bootstrap->port);
  return {};
}

Result<std::unique_ptr<Disaggregation>> start_disaggregation(const EngineConfig& config,
                                                             const ModelInfo& info,
                                                             const PageNameScope& name_scope,
                                                             PageCopier* copier, const Clock& clock,
                                                             KvLoader* tiers) {
  const DisaggregationSettings& d = config.disaggregation;
  if (d.disaggregation_mode == "null") return nullptr;
  if (copier == nullptr || config.cache.max_window_tokens > 0)
    return fail(error(
        StatusCode::kUnimplemented,
        "disaggregation_mode {}: the pages of this model cannot be sent; it takes layers with "
        "pages of one kind (with a sliding window: --disable-hybrid-swa-memory)",
        d.disaggregation_mode));
  const transfer::KvShape shape{.model = name_scope.model_fingerprint,
                                .layout = name_scope.kv_layout,
                                .computer = computing_name(config, *copier),
                                .page_size = static_cast<uint32_t>(config.cache.page_size),
                                .page_bytes = static_cast<uint64_t>(copier->page_bytes())};
  if (d.disaggregation_mode == "decode")
    return std::make_unique<DecodeSide>(DecodeSideConfig{.shape = shape,
                                                         .token = d.disaggregation_token,
                                                         .name_scope = name_scope,
                                                         .vocab_size = info.vocab_size},
                                        *copier, clock, tiers);
  const std::chrono::duration<double> timeout(d.disaggregation_timeout);
  PageStaging* const staging = start_staging(config, *copier);
  const PrefillSideConfig prefill{
      .server = {.host = d.disaggregation_host.empty() ? "127.0.0.1" : d.disaggregation_host,
                 .port = d.disaggregation_bootstrap_port,
                 .token = d.disaggregation_token,
                 .shape = shape,
                 .staging = staging != nullptr ? staging->handle() : StagingHandle{},
                 .room_timeout = std::chrono::duration_cast<Duration>(timeout)},
      .name_scope = name_scope,
      .bytes_max = bytes_of_pages(config, *copier),
      .staging = staging};
  ESP_ASSIGN_OR_RETURN(auto side, PrefillSide::start(prefill, *copier, clock));
  return side;
}

}  // namespace espalier
