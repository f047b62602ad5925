// What the server says of itself: health, model, settings, load, metrics.
#include <atomic>
#include <boost/json/value.hpp>
#include <memory>
#include <set>

#include "engine/speech/speech_engine.h"
#include "engine/weights/weight_control.h"
#include "server/authorize.h"
#include "server/dialects/anthropic_models.h"
#include "server/errors.h"
#include "server/json_writer.h"
#include "server/observations.h"
#include "server/playground/playground.h"
#include "server/routes.h"
#include "server/served_models/dispatch.h"
#include "server/served_models/model_registry.h"
#include "speech/transcriber.h"

namespace espalier::server {

using net::HttpRequest;
using net::HttpResponse;
using net::ResponsePtr;

namespace {

int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

HttpResponse draining() { return http_error(503, "the server is stopping"); }

// adapter: the name of one; empty: the model itself.
void write_model(JsonWriter& w, const Context& context, std::string_view adapter = {}) {
  const std::string_view id = adapter.empty() ? std::string_view(context.model_name) : adapter;
  w.begin_object().member("id", id).member("object", "model");
  w.member("created", context.parts->created_unix).member("owned_by", "sglang");
  w.member("root", id).key("parent");
  adapter.empty() ? static_cast<void>(w.null()) : static_cast<void>(w.value(context.model_name));
  w.member("max_model_len", context.engine.context_length()).end_object();
}

double token_usage(const EngineStats& s) {
  return s.memory.kv_tokens == 0
             ? 0.0
             : static_cast<double>(s.memory.kv_tokens_running) / s.memory.kv_tokens;
}

void write_text_or_null(JsonWriter& w, std::string_view key, std::string_view text) {
  w.key(key);
  if (text.empty()) {
    w.null();
  } else {
    w.value(text);
  }
}

void write_private_settings(JsonWriter& w, const Context& context, bool admin) {
  const EngineConfig& e = context.engine.config();
  const auto path = [&](std::string_view key, const std::string& text) {
    w.key(key);
    admin ? static_cast<void>(w.value(text)) : static_cast<void>(w.null());
  };
  path("model_path", e.model.model_path.string());
  path("tokenizer_path",
       (e.model.tokenizer_path.empty() ? e.model.model_path : e.model.tokenizer_path).string());
  path("chat_template", context.config.answers.chat_template);
  path("api_keys_file", context.config.access.api_keys_file);
  path("ssl_certfile", context.config.access.tls.certificate);
  path("ssl_keyfile", context.config.access.tls.key);
  path("ssl_ca_certs", context.config.access.tls.client_ca);
  w.key("ssl_keyfile_password").null();  // it is a secret, so no client sees it
  path("otlp_traces_endpoint", context.config.telemetry.otlp_traces_endpoint);
  path("request_log", context.config.telemetry.request_log);
  path("profile_dir", context.config.telemetry.profile_dir);
  path("cache_file_dir", context.config.storage.cache_file_dir);
  path("storage_path", context.config.storage.storage_path);
  path("allowed_local_media_path", context.config.media.allowed_local_media_path);
  path("hicache_storage_path", e.tiers.hicache_storage_path);
  w.key("disaggregation_token").null();  // a secret, as the password
  w.key("dist_token").null();
  // Without the user and password.
  path("hicache_storage_backend_extra_config",
       e.tiers.s3.bucket.empty() ? e.tiers.redis.shown_url() : e.tiers.s3.shown_url());
  w.key("control_vectors").begin_array();
  for (const std::string& name : context.engine.model_info().control_vectors) w.value(name);
  w.end_array();
  w.key("lora_paths");
  if (admin) {
    w.begin_array();
    for (const std::string& stated : e.lora.lora_paths) w.value(stated);
    w.end_array();
  } else {
    w.null();
  }
  for (const auto& [name, value] : context.config.private_paths) path(name, value);
  w.key("random_seed");
  admin ? static_cast<void>(w.value(e.sampling.random_seed)) : static_cast<void>(w.null());
}

void write_grammar_settings(JsonWriter& w, const GrammarSettings& grammar) {
  w.member("grammar_backend", grammar.grammar_backend)
      .member("grammar_threads", grammar.grammar_threads);
  w.member("grammar_mask_threads", grammar.grammar_mask_threads);
  w.member("grammar_compile_seconds", grammar.grammar_compile_seconds);
  w.member("grammar_cache_bytes", grammar.grammar_cache_bytes);
  w.member("constrained_json_disable_any_whitespace",
           grammar.constrained_json_disable_any_whitespace);
  w.member("disable_jump_forward", grammar.disable_jump_forward)
      .member("disable_drafts", grammar.disable_draft_tokens);
}

void write_stage_settings(JsonWriter& w, const EngineConfig& e) {
  w.member("disable_custom_all_reduce", e.compute.disable_custom_all_reduce)
      .member("pp_size", e.compute.pp_size)
      .member("pp_micro_batch_tokens", e.compute.pp_micro_batch_tokens)
      .member("enable_dp_attention", e.compute.enable_dp_attention);
}

void write_expert_settings(JsonWriter& w, const ComputeSettings& c) {
  w.member("ep_num_redundant_experts", c.ep_num_redundant_experts)
      .member("init_expert_location", c.init_expert_location)
      .member("enable_eplb", c.enable_eplb)
      .member("eplb_rebalance_num_iterations", c.eplb_rebalance_num_iterations)
      .member("eplb_rebalance_layers_per_chunk", c.eplb_rebalance_layers_per_chunk)
      .member("eplb_min_rebalancing_utilization_threshold",
              c.eplb_min_rebalancing_utilization_threshold)
      .member("expert_distribution_recorder_mode", c.expert_distribution_recorder_mode);
}

bool is_rounded(std::string_view dtype) {
  return dtype == "q8_0" || dtype == "q4_k" || dtype == "fp8" || dtype == "int4" ||
         dtype == "nvfp4" || dtype == "mxfp4";
}

void write_step_settings(JsonWriter& w, const ScheduleSettings& s) {
  w.member("schedule_bypass_bound", s.schedule_bypass_bound);
  w.member("schedule_max_overtakes", s.schedule_bypass_bound);  // its former name
  w.member("priority_scheduling_preemption_threshold", s.priority_scheduling_preemption_threshold);
  w.member("disable_priority_preemption", s.disable_priority_preemption)
      .member("max_inter_token_latency_ms", s.max_inter_token_latency_ms)
      .member("mixed_step_ratio", s.mixed_step_ratio)
      .member("mixed_step_ratio_most", s.mixed_step_ratio_most);
}

void write_engine_settings(JsonWriter& w, const EngineConfig& e) {
  w.member("skip_tokenizer_init", e.model.skip_tokenizer_init);
  w.member("load_format", e.model.load_format == LoadFormat::kDummy ? "dummy" : "auto");
  w.member("dtype", e.model.dtype).member("kv_cache_dtype", e.cache.kv_cache_dtype);
  write_text_or_null(w, "quantization", is_rounded(e.model.dtype) ? e.model.dtype : "");
  w.member("is_embedding", e.model.is_embedding);
  w.member("json_model_override_args", e.model.json_model_override_args);
  w.member("context_length", e.model.context_length)
      .member("mem_fraction_static", e.cache.mem_fraction_static);
  w.member("max_total_tokens", e.cache.max_total_tokens);
  w.member("max_running_requests", e.schedule.max_running_requests);
  w.member("max_queued_requests", e.schedule.max_queued_requests);
  w.member("chunked_prefill_size", e.schedule.chunked_prefill_size);
  w.member("max_prefill_tokens", e.schedule.max_prefill_tokens)
      .member("page_size", e.cache.page_size);
  w.member("schedule_policy", e.schedule.schedule_policy);
  w.member("enable_priority_scheduling", e.schedule.schedule_policy == "priority");
  w.member("fair_share", e.schedule.fair_share)
      .member("radix_eviction_policy", e.cache.radix_eviction_policy);
  w.member("swa_full_tokens_ratio", e.cache.swa_full_tokens_ratio);
  w.member("swa_max_total_num_tokens", e.cache.max_window_tokens);
  w.member("disable_hybrid_swa_memory", e.cache.disable_hybrid_swa_memory);
  write_step_settings(w, e.schedule);
  w.member("schedule_conservativeness", e.schedule.schedule_conservativeness);
  w.member("disable_radix_cache", e.cache.disable_radix_cache);
  w.member("enable_hierarchical_cache", e.tiers.enable_hierarchical_cache);
  w.member("hicache_size", e.tiers.hicache_size_gb).member("hicache_ratio", e.tiers.hicache_ratio);
  w.member("hicache_write_policy", e.tiers.hicache_write_policy);
  write_text_or_null(
      w, "hicache_storage_backend",
      e.tiers.hicache_storage_backend == "none" ? "" : e.tiers.hicache_storage_backend);
  w.member("hicache_storage_prefetch_policy", e.tiers.hicache_storage_prefetch_policy);
  w.member("hicache_disk_size", e.tiers.hicache_disk_size_gb);
  w.member("disable_overlap_schedule", e.compute.disable_overlap_schedule);
  w.member("device", e.compute.device)
      .member("base_gpu_id", e.compute.base_gpu_id)
      .member("disable_cuda_graph", e.compute.disable_cuda_graph);
  w.member("disable_cascade_attention", e.compute.disable_cascade_attention);
  w.member("enable_deterministic_inference", e.compute.enable_deterministic_inference);
  w.member("enable_return_hidden_states", e.compute.enable_return_hidden_states);
  write_text_or_null(w, "logit_processor_library", e.sampling.logit_processor_library.string());
  w.member("logprobs_mode", e.sampling.logprobs_mode);
  w.member("max_session_bytes", e.cache.max_session_bytes);
  w.member("watchdog_timeout", e.watch.watchdog_timeout)
      .member("soft_watchdog_timeout", e.watch.soft_watchdog_timeout);
  write_grammar_settings(w, e.grammar);
  w.member("speculative_algorithm", e.speculation.speculative_algorithm)
      .member("speculative_draft_model_path", e.speculation.speculative_draft_model_path.string())
      .member("speculative_num_steps", e.speculation.speculative_num_steps)
      .member("speculative_num_draft_tokens", e.speculation.speculative_num_draft_tokens)
      .member("speculative_ngram_capacity", e.speculation.speculative_ngram_capacity);
  w.member("sampling_defaults", e.sampling.sampling_defaults);
  write_stage_settings(w, e);
  write_expert_settings(w, e.compute);
  w.member("tp_size", e.compute.tp_size)
      .member("ep_size", e.compute.ep_size)
      .member("dp_size", e.compute.dp_size)
      .member("load_balance_method", e.compute.load_balance_method)
      .member("num_threads", e.compute.num_threads)
      .member("tokenizer_worker_num", e.model.tokenizer_threads);
}

void write_media_settings(JsonWriter& w, const EngineConfig& e) {
  w.member("image_threads", e.images.image_threads)
      .member("image_cache_bytes", e.images.image_cache_bytes);
  w.member("max_images_per_request", e.images.max_images_per_request)
      .member("max_image_bytes", e.images.max_image_bytes)
      .member("max_image_pixels", e.images.max_image_pixels)
      .member("max_video_seconds", e.images.max_video_seconds);
  w.member("max_audio_bytes", e.audio.max_audio_bytes)
      .member("max_audio_seconds", e.audio.max_audio_seconds);
}

// A prefill server's bootstrap port is the one that was chosen.
void write_disaggregation_settings(JsonWriter& w, const Engine& engine) {
  const DisaggregationSettings& d = engine.config().disaggregation;
  const int32_t port = engine.stats().disaggregation.bootstrap_port;
  w.member("disaggregation_mode", d.disaggregation_mode)
      .member("disaggregation_transfer_backend", d.disaggregation_transfer_backend)
      .member("disaggregation_bootstrap_port", port != 0 ? port : d.disaggregation_bootstrap_port)
      .member("disaggregation_timeout", d.disaggregation_timeout);
}

void write_adapter_settings(JsonWriter& w, const Engine& engine) {
  const EngineConfig& e = engine.config();
  w.member("enable_lora", e.lora.enable_lora)
      .member("max_loras_per_batch", e.lora.max_loras_per_batch);
  w.member("max_lora_rank", e.lora.max_lora_rank)
      .member("max_loaded_loras", e.lora.max_loaded_loras);
  w.member("max_lora_bytes", e.lora.max_lora_bytes);
  w.key("lora_adapters").begin_array();
  for (const LoadedAdapter& each : engine.adapters()) {
    w.begin_object().member("lora_name", each.name).member("rank", each.info.rank);
    w.member("num_modules", each.info.num_modules).member("size_bytes", each.info.size_bytes);
    w.member("num_requests", each.num_requests).end_object();
  }
  w.end_array();
}

// As SGLang has it: the setting's own JSON, as a text. A publisher's addresses have the ports that
// were chosen, so that a router finds it by them.
void write_kv_events_setting(JsonWriter& w, const Context& context) {
  const int32_t num_events = context.engine.config().cache.num_cache_events;
  std::string setting;
  if (num_events > 0) {
    JsonWriter s(setting);
    const auto& publishers = context.observed->kv_events;
    const KvEventPublisher* const publisher =
        publishers.empty() ? nullptr : publishers.front().get();
    s.begin_object().member("publisher", publisher == nullptr ? "http" : "zmq");
    s.member("buffer_steps", num_events);
    if (publisher != nullptr) {
      s.member("endpoint", publisher->config().endpoint);
      write_text_or_null(s, "replay_endpoint", publisher->config().replay_endpoint);
      s.member("topic", publisher->config().topic);
      if (publishers.size() > 1) {  // one for each replica
        s.key("endpoints").begin_array();
        for (const auto& each : publishers) s.value(each->config().endpoint);
        s.end_array();
      }
    }
    s.end_object();
  }
  write_text_or_null(w, "kv_events_config", setting);
}

void write_released_memory(JsonWriter& w, const Context& context) {
  const WeightControl* const weights = context.engine.weights();
  const MemoryReport report = weights != nullptr ? weights->released_memory() : MemoryReport();
  w.key("released_memory").begin_array();
  for (const MemoryPart part : report.released) w.value(name_of(part));
  w.end_array();
  w.member("enable_weights_cpu_backup", context.engine.config().compute.enable_weights_cpu_backup);
  w.member("weights_cpu_backup_bytes", weights != nullptr ? weights->backup_bytes() : 0);
}

// Settings as SGLang's server_args: the effective ones, all but keys. Paths and seeds, which
// reveal the host's files and other requests' draws, are null for all but administrators.
void write_settings(JsonWriter& w, const Context& context, bool admin) {
  const ServerConfig& c = context.config;
  write_private_settings(w, context, admin);
  write_engine_settings(w, context.engine.config());
  write_kv_events_setting(w, context);
  write_media_settings(w, context.engine.config());
  write_disaggregation_settings(w, context.engine);
  write_adapter_settings(w, context.engine);
  w.member("host", c.host).member("port", c.port);
  w.member("served_model_name", context.model_name)
      .member("weight_version", context.weight_version());
  write_released_memory(w, context);
  w.member("enable_metrics", c.answers.enable_metrics);
  w.member("enable_playground", serves_playground(c));
  write_text_or_null(w, "tool_call_parser", c.answers.tool_call_parser);
  write_text_or_null(w, "reasoning_parser", c.answers.reasoning_parser);
  w.member("max_parallel_tool_calls", c.answers.max_parallel_tool_calls);
  w.member("rerank_format", c.answers.rerank_format);
  w.member("moderation_safe_labels", c.answers.moderation_safe_labels);
  w.member("enable_cache_report", c.answers.enable_cache_report);
  w.member("incremental_streaming_output", c.answers.incremental_streaming_output);
  w.member("stream_interval", c.answers.stream_interval)
      .member("log_requests", c.telemetry.log_requests);
  w.member("request_log_prompts", c.telemetry.request_log_prompts)
      .member("request_log_max_bytes", c.telemetry.request_log_max_bytes);
  w.member("otlp_service_name", c.telemetry.otlp_service_name);
  w.member("max_connections", c.limits.max_connections)
      .member("max_body_bytes", c.limits.max_body_bytes);
  w.member("max_pending_output_bytes", c.limits.max_pending_output_bytes);
  w.member("max_bodies_bytes", context.accounts.at(0)->limit());
  w.member("max_outputs_bytes", context.accounts.at(1)->limit());
  w.member("max_responses_bytes", c.storage.max_responses_bytes);
  w.member("responses_time_to_live", to_seconds(c.storage.responses_time_to_live));
  w.member("max_storage_bytes", c.storage.max_storage_bytes);
  w.member("max_batch_requests", c.storage.max_batch_requests);
  w.key("cors_origins").begin_array();
  for (const std::string& origin : c.access.cors_origins) w.value(origin);
  w.end_array();
  w.key("allowed_media_domains").begin_array();
  for (const std::string& domain : c.media.allowed_media_domains) w.value(domain);
  w.end_array();
  w.member("allow_private_media_addresses", c.media.allow_private_media_addresses);
  w.member("media_fetch_timeout", to_seconds(c.media.media_fetch_timeout));
  w.member("header_timeout", to_seconds(c.limits.header_timeout));
  w.member("idle_timeout", to_seconds(c.limits.idle_timeout));
  w.member("write_timeout", to_seconds(c.limits.write_timeout));
  w.member("health_timeout", to_seconds(c.limits.health_timeout));
  w.member("io_threads", c.limits.io_threads).member("worker_threads", c.limits.worker_threads);
  for (const auto& [name, value] : c.extra_info) w.member(name, value);
}

// What became of draft tokens, by drafter; of those that proposed any.
void write_drafters(JsonWriter& w, const EngineStats& s) {
  w.key("spec_drafters").begin_object();
  for (size_t i = 0; i < s.speculation.by_drafter.size(); ++i) {
    const DraftCounts& counts = s.speculation.by_drafter[i];
    if (counts.verify_steps == 0) continue;
    w.key(drafter_name(static_cast<Drafter>(i))).begin_object();
    w.member("spec_verify_ct", counts.verify_steps);
    w.member("drafted_tokens", counts.drafted_tokens);
    w.member("accepted_drafts", counts.accepted_tokens).end_object();
  }
  w.end_object();
}

void write_load(JsonWriter& w, size_t dp_rank, const EngineStats& s,
                const std::set<std::string>& include) {
  const auto wants = [&](const char* section) {
    return include.empty() || include.count("all") > 0 || include.count(section) > 0;
  };
  w.begin_object().member("dp_rank", dp_rank);
  if (wants("core")) {
    w.member("num_running_reqs", s.requests.num_running)
        .member("num_waiting_reqs", s.requests.num_waiting);
    w.member("num_total_reqs", s.requests.num_running + s.requests.num_waiting);
    w.member("num_used_tokens", s.memory.kv_tokens_running);
    w.member("max_total_num_tokens", s.memory.kv_tokens).member("token_usage", token_usage(s));
    w.member("gen_throughput", s.tokens.generated_per_second)
        .member("cache_hit_rate", s.cache_hit_rate());
  }
  if (wants("memory")) {
    w.key("memory").begin_object().member("weight_gb", s.memory.weight_bytes / 1e9);
    w.member("kv_cache_gb", s.memory.kv_bytes / 1e9).member("token_capacity", s.memory.kv_tokens);
    w.member("cached_tokens", s.memory.kv_tokens_cached).end_object();
  }
  if (wants("queues")) {
    w.key("queues").begin_object().member("waiting", s.requests.num_waiting);
    w.member("retracted", s.requests.num_retractions).end_object();
  }
  w.end_object();
}

std::set<std::string> split_list(const std::string& text) {
  std::set<std::string> out;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    if (end > begin) out.insert(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

void send_json(const ResponsePtr& response, std::string body) {
  response->send(HttpResponse::json(200, std::move(body)));
}

void handle_root(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  if (serves_playground(context->config))
    if (auto page = playground_page(request)) return response->send(std::move(*page));
  // The page asks for the key and is the same everywhere; the list names the model.
  if (auto refused =
          refusal(context->config.access, context->tenants.get(), Access::kUser, request))
    return response->send(std::move(*refused));
  std::string out;
  JsonWriter w(out);
  w.begin_object().member("name", "espalier").member("version", ESPALIER_VERSION);
  w.member("model", context->model_name).key("routes").begin_array();
  for (const Route& route : routes()) w.value(route.pattern);
  w.end_array().member("description", "/openapi.json").end_object();
  send_json(response, std::move(out));
}

void handle_health(const ContextPtr& context, HttpRequest&&, ResponsePtr response) {
  response->send(context->stopping ? draining() : HttpResponse{});
}

// A model of speech reads a tenth of a second of silence, on a thread for sounds, for its
// spectrogram takes a while.
void check_speech(const ContextPtr& context, Transcriber& transcriber,
                  const ResponsePtr& response) {
  const auto id = std::make_shared<std::atomic<uint64_t>>(0);  // 0: not submitted
  const auto cancel = [context, &transcriber, id] {
    if (const uint64_t submitted = id->load()) transcriber.cancel(submitted);
  };
  response->on_disconnect(cancel);
  // The timer outlives the exchange, and keeps no model that is served beside others.
  const auto late = [response, &transcriber, id, weak = std::weak_ptr<Context>(context)] {
    const ContextPtr alive = response->closed() ? nullptr : weak.lock();
    if (alive == nullptr) return;
    // Where sounds before it are still read, the server is busy, and healthy.
    if (id->load() == 0) return response->send(HttpResponse{});
    transcriber.cancel(id->load());
    response->send(http_error(503, "no token was generated in time"));
  };
  response->post_after(context->config.limits.health_timeout, late);
  const auto submit = [&transcriber, response, id] {
    if (response->closed()) return;
    TranscriptionRequest request{.tokens_max = 1};
    request.samples.resize(TranscriberInfo::kSampleRate / 10);
    const auto& known = transcriber.info().languages;
    if (!known.empty()) request.language = known[0];
    const auto submitted = transcriber.submit(std::move(request), [response](
                                                                      TranscriptEvent&& event) {
      if (!event.finished) return;
      response->send(event.status.ok() ? HttpResponse{} : http_error(503, event.status.message()));
    });
    if (submitted) return id->store(*submitted);
    const bool busy = submitted.error().code() == StatusCode::kResourceExhausted;
    response->send(busy ? HttpResponse{} : http_error(503, submitted.error().message()));
  };
  if (!context->threads->sounds.run(submit)) response->send(HttpResponse{});
}

// One token, greedy (or its vector): the whole line from queue to sampler has to work for it.
void handle_health_generate(const ContextPtr& context, HttpRequest&&, ResponsePtr response) {
  if (context->stopping) return response->send(draining());
  if (Transcriber* const transcriber = transcriber_of(context->engine))
    return check_speech(context, *transcriber, response);
  GenerateRequest request;
  request.rid = "HEALTH_CHECK_" + context->make_rid();
  request.input_ids = {0};
  request.sampling.max_new_tokens = 1;
  request.sampling.temperature = 0.0f;
  request.sampling.ignore_eos = true;
  request.embed = context->engine.model_info().pooled.has_value();
  const std::string rid = request.rid;
  const auto abort = [context, rid] { context->engine.abort(rid, Engine::AbortScope::kExact); };
  response->on_disconnect(abort);
  const auto late = [response, rid, weak = std::weak_ptr<Context>(context)] {
    const ContextPtr alive = response->closed() ? nullptr : weak.lock();
    if (alive == nullptr) return;
    alive->engine.abort(rid, Engine::AbortScope::kExact);
    response->send(http_error(503, "no token was generated in time"));
  };
  response->post_after(context->config.limits.health_timeout, late);
  const auto submitted = context->engine.submit(std::move(request), [response](TokenEvent&& event) {
    if (!event.finish) return;
    const bool ok = event.finish->type == FinishReason::Type::kStop ||
                    event.finish->type == FinishReason::Type::kLength;
    response->send(ok ? HttpResponse{} : http_error(503, event.finish->status.message()));
  });
  if (submitted) return;
  // A full queue is a busy server, not a sick one; it has work in hand.
  const bool busy = submitted.error().code() == StatusCode::kResourceExhausted;
  response->send(busy ? HttpResponse{} : http_error(503, submitted.error().message()));
}

void handle_models(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  if (from_anthropic_client(request)) return response->send(anthropic_models(*context));
  if (context->parts->models != nullptr) return send_json(response, served_models_json(*context));
  std::string out;
  JsonWriter w(out);
  w.begin_object().member("object", "list").key("data").begin_array();
  write_model(w, *context);
  for (const LoadedAdapter& each : context->engine.adapters()) write_model(w, *context, each.name);
  w.end_array().end_object();
  send_json(response, std::move(out));
}

void handle_model(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  if (from_anthropic_client(request))
    return response->send(anthropic_model(*context, request.param("model")));
  const std::string name(request.param("model"));
  if (context->parts->models != nullptr) {
    std::string found = served_model_json(*context, name);
    return found.empty() ? response->send(model_not_found(name))
                         : send_json(response, std::move(found));
  }
  std::string adapter;
  if (name != context->model_name) {
    const std::vector<LoadedAdapter> adapters = context->engine.adapters();
    const bool is_adapter =
        std::ranges::any_of(adapters, [&](const LoadedAdapter& each) { return each.name == name; });
    if (!is_adapter) return response->send(model_not_found(name));
    adapter = name;
  }
  std::string out;
  JsonWriter w(out);
  write_model(w, *context, adapter);
  send_json(response, std::move(out));
}

void handle_model_info(const ContextPtr& context, HttpRequest&&, ResponsePtr response) {
  const EngineConfig& config = context->engine.config();
  const ModelInfo& info = context->engine.model_info();
  std::string out;
  JsonWriter w(out);
  w.begin_object().member("model_path", config.model.model_path.string());
  w.member("tokenizer_path", (config.model.tokenizer_path.empty() ? config.model.model_path
                                                                  : config.model.tokenizer_path)
                                 .string());
  w.member("is_generation", !info.pooled.has_value() && transcriber_of(context->engine) == nullptr)
      .key("preferred_sampling_params")
      .null();
  w.member("weight_version", context->weight_version());
  w.member("has_image_understanding", info.images.has_value())
      .member("has_audio_understanding", transcriber_of(context->engine) != nullptr);
  w.member("model_type", info.model_type).key("architectures").begin_array();
  w.value(info.architecture).end_array().end_object();
  send_json(response, std::move(out));
}

// Of one replica.
void write_internal_state(JsonWriter& w, const Engine& engine) {
  const EngineStats s = engine.stats();
  w.begin_object().member("last_gen_throughput", s.tokens.generated_per_second);
  w.key("memory_usage").begin_object();
  w.member("weight", s.memory.weight_bytes / 1e9).member("kvcache", s.memory.kv_bytes / 1e9);
  w.member("token_capacity", s.memory.kv_tokens).member("graph", s.memory.graph_bytes / 1e9);
  w.member("scratch", s.memory.scratch_bytes / 1e9).end_object();
  w.member("effective_max_running_requests_per_dp", engine.config().schedule.max_running_requests);
  w.key("avg_spec_accept_length");
  if (s.speculation.num_verified > 0)
    w.value(s.speculation.accept_length());
  else
    w.null();
  write_drafters(w, s);
  w.member("num_running_reqs", s.requests.num_running)
      .member("num_waiting_reqs", s.requests.num_waiting);
  w.member("cache_hit_rate", s.cache_hit_rate());
  w.member("num_failed", s.requests.num_failed).member("num_not_finite", s.requests.num_not_finite);
  w.member("num_retractions", s.requests.num_retractions).end_object();
}

// What a model of speech is; null for all others.
void write_speech(JsonWriter& w, const Transcriber* transcriber) {
  if (transcriber == nullptr) return static_cast<void>(w.null());
  const TranscriberInfo& info = transcriber->info();
  w.begin_object().member("dtype", info.dtype).member("window_seconds", info.window_seconds);
  w.member("num_mels", info.num_mels).member("num_encoder_layers", info.num_encoder_layers);
  w.member("num_decoder_layers", info.num_decoder_layers).member("translates", info.translates);
  w.key("languages").begin_array();
  for (const std::string& code : info.languages) w.value(code);
  w.end_array();
  const TranscriberStats stats = transcriber->stats();
  w.member("num_windows", stats.num_windows).member("audio_seconds", stats.audio_seconds);
  w.member("encode_seconds", stats.encode_seconds).member("decode_seconds", stats.decode_seconds);
  w.end_object();
}

void handle_server_info(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  const Engine& engine = context->engine;
  const EngineStats s = engine.stats();
  std::string out;
  JsonWriter w(out);
  w.begin_object();
  write_settings(w, *context, is_admin(context->config.access, context->tenants.get(), request));
  w.member("vocab_size", engine.model_info().vocab_size);
  w.key("speech");
  write_speech(w, transcriber_of(context->engine));
  w.member("status", context->stopping ? "stopping" : "ready");
  w.member("max_total_num_tokens", s.memory.kv_tokens);
  w.member("max_req_input_len", max_input_len(engine));
  w.key("internal_states").begin_array();
  for (const Engine* replica : engine.replicas()) write_internal_state(w, *replica);
  w.end_array();
  w.member("version", ESPALIER_VERSION).end_object();
  send_json(response, std::move(out));
}

// Models that are not ready have none but the registry's figures.
std::string scrape_all(const Context& front, const ModelRegistry& models,
                       const Metrics::Http& http) {
  std::vector<ContextPtr> ready;
  std::vector<Metrics::Source> sources;
  for (size_t i = 0; i < models.size(); ++i) {
    ContextPtr model = models.look_at(i);
    if (model == nullptr) continue;
    sources.push_back({.metrics = &model->observed->metrics, .engine = &model->engine});
    ready.push_back(std::move(model));
  }
  std::string out = front.observed->metrics.scrape(sources, http);
  append_metrics(out, models);
  return out;
}

void handle_metrics(const ContextPtr& context, HttpRequest&&, ResponsePtr response) {
  HttpResponse answer;
  answer.headers = {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}};
  Metrics::Http http;
  if (const net::HttpServer* server = context->http) {
    const net::HttpServerStats s = server->stats();
    http.connections_open = s.connections_open;
    http.dropped_slow_total = s.dropped_slow_total;
    http.accounts = context->accounts;
  }
  if (context->tenants != nullptr)
    for (const TenantPtr& tenant : context->tenants->all())
      http.num_refused.emplace_back(tenant->name(), tenant->counts().refused);
  if (context->observed->gpus != nullptr) http.gpus = context->observed->gpus->figures();
  http.routes = context->observed->http->read();
  http.num_routing_keys = context->observed->http->num_routing_keys();
  if (const ModelRegistry* const models = context->parts->models.get()) {
    answer.body = scrape_all(*context, *models, http);
  } else {
    answer.body = context->observed->metrics.scrape(context->engine, http);
  }
  if (context->observed->spans != nullptr)
    append_metrics(answer.body, context->observed->spans->counts());
  if (context->observed->recorder != nullptr)
    append_metrics(answer.body, context->observed->recorder->counts());
  response->send(std::move(answer));
}

void handle_loads(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  const auto format = request.query_param("format").value_or("json");
  if (format == "prometheus")
    return handle_metrics(context, std::move(request), std::move(response));
  if (format != "json") {
    return response->send(malformed_response(
        invalid_argument("format must be json or prometheus, but it is \"{}\"", format)));
  }
  std::string out;
  JsonWriter w(out);
  w.begin_object().member("timestamp", unix_seconds()).member("version", ESPALIER_VERSION);
  w.key("loads").begin_array();
  const auto include = split_list(request.query_param("include").value_or(""));
  const std::vector<const Engine*> replicas = context->engine.replicas();
  for (size_t i = 0; i < replicas.size(); ++i) write_load(w, i, replicas[i]->stats(), include);
  w.end_array().end_object();
  send_json(response, std::move(out));
}

void handle_get_load(const ContextPtr& context, HttpRequest&&, ResponsePtr response) {
  const std::vector<const Engine*> replicas = context->engine.replicas();
  std::string out;
  JsonWriter w(out);
  w.begin_array();
  for (size_t i = 0; i < replicas.size(); ++i) {
    const EngineStats s = replicas[i]->stats();
    w.begin_object().member("dp_rank", i);
    w.member("num_reqs", s.requests.num_running + s.requests.num_waiting)
        .member("num_waiting_reqs", s.requests.num_waiting);
    w.member("num_tokens", s.memory.kv_tokens_running).end_object();
  }
  w.end_array();
  send_json(response, std::move(out));
}

void handle_openapi(const ContextPtr&, HttpRequest&&, ResponsePtr response) {
  send_json(response, openapi_json());
}

void handle_delete_model(const ContextPtr& context, HttpRequest&&, ResponsePtr response) {
  response->send(http_error(
      501, fmt::format("DELETE /v1/models/{{id}} is not served here: a server has the models "
                       "that it was started with, among them '{}'; end the server and delete the "
                       "folder there",
                       context->model_name)));
}

}  // namespace

const std::vector<Route>& info_routes() {
  using enum Access;
  static const std::vector<Route> table = {
      {{"GET"}, "/", kOpen, "What is served here", handle_root},
      {{"GET"}, "/v1/models", kUser, "The models that are served", handle_models},
      {{"GET"}, "/v1/models/{model*}", kUser, "One model", handle_model},
      {{"DELETE"},
       "/v1/models/{model*}",
       kUser,
       "Not served (501): a server has one model",
       handle_delete_model,
       "",
       nullptr,
       501},
      {{"GET"}, "/health", kOpen, "200 while the server takes work", handle_health},
      {{"GET"}, "/ping", kOpen, "As /health", handle_health},
      {{"GET"}, "/ready", kOpen, "As /health", handle_health},
      {{"GET"},
       "/health_generate",
       kOpen,
       "200 once a token was generated",
       handle_health_generate},
      {{"GET"}, "/model_info", kUser, "The model", handle_model_info},
      {{"GET"}, "/get_model_info", kUser, "The model", handle_model_info},
      {{"GET"}, "/server_info", kUser, "Settings and state", handle_server_info},
      {{"GET"}, "/get_server_info", kUser, "Settings and state", handle_server_info},
      {{"GET"}, "/v1/loads", kUser, "Load", handle_loads},
      {{"GET"}, "/get_load", kUser, "Load, in few figures", handle_get_load},
      {{"GET"}, "/metrics", kOpen, "Prometheus metrics", handle_metrics},
      {{"GET"}, "/openapi.json", kUser, "This description", handle_openapi},
  };
  return table;
}

}  // namespace espalier::server
