#include "server/open_context.h"

#include <filesystem>
#include <utility>

#include "engine/speech/speech_engine.h"
#include "server/chat_plan.h"
#include "server/observations.h"
#include "text/parse/tool_call_parser.h"

namespace espalier::server {
namespace {

std::string name_of_model(const ServerConfig& config, const Engine& engine) {
  if (!config.answers.served_model_name.empty()) return config.answers.served_model_name;
  std::filesystem::path path = engine.config().model.model_path;
  if (!path.has_filename()) path = path.parent_path();  // "models/llama/"
  return path.empty() ? "default" : path.filename().string();
}

Status choose_chat(Context& context) {
  const std::string& stated = context.config.answers.chat_template;
  auto chat = ChatFormat::load(stated, context.engine.config().model.model_path,
                               context.engine.tokenizer());
  if (transcriber_of(context.engine) != nullptr) {
    context.chat_missing =
        error(StatusCode::kFailedPrecondition,
              "this model turns speech into text and does not chat: POST an audio file to "
              "/v1/audio/transcriptions, or start a server with a language model");
  } else if (chat) {
    context.chat = std::move(*chat);
  } else if (!stated.empty()) {
    return chat.error();
  } else {
    context.chat_missing =
        error(StatusCode::kFailedPrecondition,
              "this model has no usable chat template ({}): start the server with --chat-template, "
              "or use /v1/completions",
              chat.error().message());
  }
  return {};
}

Status choose_parsers(Context& context) {
  const ServerConfig& c = context.config;
  if (context.chat) context.tool_call_format = context.chat->tool_call_format();
  if (!c.answers.tool_call_parser.empty()) {
    ESP_ASSIGN_OR_RETURN([[maybe_unused]] const auto parser,
                         make_tool_call_parser(c.answers.tool_call_parser, {}, nullptr,
                                               response_template_of(context)));
    context.tool_call_format = c.answers.tool_call_parser;
  }
  std::string reasoning = c.answers.reasoning_parser;
  if (reasoning.empty() && context.chat) reasoning = context.chat->reasoning_format();
  if (!reasoning.empty() && reasoning != "none") {
    ESP_ASSIGN_OR_RETURN(
        context.reasoning_format,
        named_reasoning_format(reasoning, context.chat ? &*context.chat : nullptr));
  }
  return {};
}

// Of all models: a collector of spans and a file of requests.
Status start_recorders(Context& context) {
  const TelemetryConfig& telemetry = context.config.telemetry;
  if (!telemetry.otlp_traces_endpoint.empty()) {
    ESP_ASSIGN_OR_RETURN(
        context.observed->spans,
        SpanExporter::start(telemetry.otlp_traces_endpoint, telemetry.otlp_service_name));
  }
  if (!telemetry.request_log.empty()) {
    ESP_ASSIGN_OR_RETURN(context.observed->recorder,
                         RequestRecorder::start({.path = telemetry.request_log,
                                                 .keeps_prompts = telemetry.request_log_prompts,
                                                 .max_bytes = telemetry.request_log_max_bytes}));
  }
  return {};
}

Status start_publishers(Context& context) {
  const KvEventsConfig& events = context.config.telemetry.kv_events;
  if (events.endpoint.empty()) return {};
  int32_t dp_rank = 0;
  for (const Engine* const replica : context.engine.replicas()) {
    auto publisher = KvEventPublisher::start(events, *replica, dp_rank++);
    if (!publisher) return publisher.error().with_context("--kv-events-config");
    context.observed->kv_events.push_back(std::move(*publisher));
  }
  return {};
}

}  // namespace

Result<ContextPtr> open_context(ServerConfig config, Engine& engine,
                                std::shared_ptr<ServerParts> parts) {
  const bool is_one_of_several = parts->models != nullptr;
  auto made = std::make_shared<Context>(std::move(config), engine, std::move(parts));
  Context& context = *made;
  context.model_name = name_of_model(context.config, engine);
  ESP_RETURN_IF_ERROR(choose_chat(context));
  ESP_RETURN_IF_ERROR(choose_parsers(context));
  context.observed = std::make_unique<Observations>(context.model_name, engine);
  if (!is_one_of_several) ESP_RETURN_IF_ERROR(start_recorders(context));
  ESP_RETURN_IF_ERROR(start_publishers(context));
  context.threads = std::make_unique<WorkThreads>(context.config.limits.worker_threads);
  return made;
}

Result<ContextPtr> open_front(ServerConfig config, Engine& engine,
                              std::shared_ptr<ServerParts> parts) {
  auto made = std::make_shared<Context>(std::move(config), engine, std::move(parts));
  Context& context = *made;
  context.model_name = context.config.answers.served_model_name;
  context.chat_missing = error(StatusCode::kFailedPrecondition, "the request names no model");
  context.observed = std::make_unique<Observations>("", engine);
  ESP_RETURN_IF_ERROR(start_recorders(context));
  context.threads = std::make_unique<WorkThreads>(context.config.limits.worker_threads);
  return made;
}

}  // namespace espalier::server
