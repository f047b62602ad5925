// espalier inspect: what a model holds, and what serving it on this computer would take.
#include <fmt/format.h>

#include <boost/json.hpp>
#include <map>
#include <optional>

#include "apps/commands.h"
#include "apps/inspect_program.h"
#include "apps/inspect_ranks.h"
#include "apps/inspect_speech.h"
#include "apps/session.h"
#include "checkpoint/checkpoint.h"
#include "engine/config.h"
#include "engine/startup/device.h"
#include "engine/text_io/open_tokenizer.h"
#include "models/families/family.h"
#include "models/model.h"
#include "models/model_plan.h"
#include "speech/transcriber.h"
#include "text/template/chat_template.h"

namespace espalier::apps {
namespace {

// What lies in the checkpoint in one type.
struct TypeShare {
  int64_t num_tensors = 0, num_elements = 0, bytes = 0;
};

struct Inspection {
  ModelInfo info;
  std::string device;  // "cpu", or the GPU's name
  SystemInfo system;
  EngineConfig plan;  // effective
  KvType kv_type{};
  std::map<std::string, TypeShare> types;  // of the checkpoint
  std::map<std::string, int64_t> loaded;   // bytes in memory by type
  int64_t stored_bytes = 0;                // of the checkpoint
  int64_t batch = 0;                       // requests at once that are asked about
  std::unique_ptr<Tokenizer> tokenizer;    // null: why not is below
  std::string tokenizer_problem, template_problem;
  size_t template_bytes = 0;
  std::optional<program::Report> program;  // where it was asked for
  std::vector<RankShare> ranks;            // where several ranks have the model
  std::vector<StageShare> stages;          // where several stages have its layers
  std::optional<DecoderSpec> encoder;      // of pictures, where the model reads them

  int64_t kv_bytes_per_token() const { return info.kv_bytes_per_token(kv_type); }
  // With every request at its full context.
  int64_t kv_bytes_at_batch() const {
    return kv_bytes_per_token() * batch * plan.model.context_length;
  }
  bool batch_fits() const {
    return batch * plan.model.context_length <= plan.cache.max_total_tokens;
  }
};

void inspect_text(const EngineConfig& config, Inspection& out) {
  Result<std::unique_ptr<Tokenizer>> tokenizer = open_tokenizer(
      config.model.tokenizer_path.empty() ? config.model.model_path : config.model.tokenizer_path);
  if (tokenizer) {
    out.tokenizer = std::move(*tokenizer);
  } else {
    out.tokenizer_problem = tokenizer.error().message();
  }
  const Result<ChatTemplateSource> source = find_chat_template(config.model.model_path);
  std::string text(out.tokenizer != nullptr ? out.tokenizer->chat_template() : "");
  if (source) text = source->source;
  if (text.empty()) {
    out.template_problem = source ? "it is empty" : source.error().message();
    return;
  }
  out.template_bytes = text.size();
  const Result<ChatTemplate> compiled = ChatTemplate::compile(text);
  if (!compiled) out.template_problem = compiled.error().message();
}

Result<Inspection> inspect(const AppConfig& app, int64_t batch, const ProgramRequest& program) {
  EngineConfig config = app.engine;
  Inspection out;
  ESP_ASSIGN_OR_RETURN(out.info, read_model_info(model_load_options(config)));
  if (config.model.load_format == LoadFormat::kAuto) {
    ESP_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(config.model.model_path));
    for (const CheckpointTensor& tensor : checkpoint.tensors()) {
      TypeShare& share = out.types[tensor.dtype_name];
      ++share.num_tensors;
      share.num_elements += tensor.num_elements();
      share.bytes += static_cast<int64_t>(tensor.bytes.size());
      out.stored_bytes += static_cast<int64_t>(tensor.bytes.size());
    }
  }
  ESP_ASSIGN_OR_RETURN(const EngineDevice device,
                       choose_device(config.compute.device, config.compute.base_gpu_id));
  out.device = device.name;
  out.system = device.system;
  config.compute.device = device.cuda ? "cuda" : "cpu";
  const ModelLoadOptions load = model_load_options(config);
  ESP_ASSIGN_OR_RETURN(
      out.loaded, read_weight_memory(load, device.cuda ? ProgramKind::kGpu : ProgramKind::kCpu));
  out.info.weight_bytes = 0;
  for (const auto& [type, num_bytes] : out.loaded) out.info.weight_bytes += num_bytes;
  ESP_ASSIGN_OR_RETURN(out.plan, resolve(config, out.info, out.system));
  ESP_ASSIGN_OR_RETURN(out.kv_type, resolve_kv_type(out.plan, out.info));
  out.batch = batch > 0 ? batch : out.plan.schedule.max_running_requests;
  ESP_ASSIGN_OR_RETURN(out.ranks, share_among_ranks(load, config.compute.tp_size));
  ESP_ASSIGN_OR_RETURN(out.stages,
                       share_among_stages(load, config.compute.pp_size,
                                          device.cuda ? program::StageBalance::kPrompts
                                                      : program::StageBalance::kDecode));
  ESP_ASSIGN_OR_RETURN(const JsonObject fields, read_changed_config(load));
  ESP_ASSIGN_OR_RETURN(out.encoder, make_encoder_spec(fields));
  inspect_text(config, out);
  if (program.wanted()) {
    const int64_t kv_bytes = out.kv_type == KvType::kFloat32 ? 4 : 2;
    ESP_ASSIGN_OR_RETURN(out.program, report_program(load, device.cuda, kv_bytes, program));
  }
  return out;
}

std::string bytes(int64_t count) {
  const auto value = static_cast<double>(count);
  if (value < 1024.0 * 1024.0) return fmt::format("{:.1f} KiB", value / 1024.0);
  if (value < 1024.0 * 1024.0 * 1024.0) return fmt::format("{:.1f} MiB", value / 1048576.0);
  return fmt::format("{:.2f} GiB", value / 1073741824.0);
}

std::string makes(const ModelInfo& info) {
  if (!info.pooled) return "text";
  if (info.pooled->is_scores) {
    return fmt::format("{} score{} of a text", info.pooled->size,
                       info.pooled->size == 1 ? "" : "s");
  }
  return fmt::format("embeddings of {} numbers, {} a text's tokens{}", info.pooled->size,
                     info.pooled->all_tokens ? "the mean over" : "from the last of",
                     info.pooled->normalize ? ", of length 1" : "");
}

std::string encoder_text(const DecoderSpec& encoder, int32_t num_rows) {
  const std::string rows = num_rows > 0 ? fmt::format("{} tokens a picture", num_rows)
                                        : "tokens of a picture by its size";
  return fmt::format("{}: {} layers of {}, {:.2f} M parameters, {}", encoder.model_type,
                     encoder.layers.size(), encoder.hidden_size,
                     static_cast<double>(encoder.num_parameters()) / 1e6, rows);
}

void print_table(const Inspection& it) {
  const auto row = [](std::string_view name, const std::string& value) {
    fmt::print("{:<28}{}\n", name, value);
  };
  const int64_t kv_token = it.info.kv_bytes_per_token(it.kv_type);
  row("model", it.plan.model.model_path.string());
  row("architecture", fmt::format("{} ({})", it.info.architecture, it.info.model_type));
  row("makes", makes(it.info));
  row("parameters", fmt::format("{:.2f} M", static_cast<double>(it.info.num_parameters) / 1e6));
  if (it.encoder) row("reads pictures", encoder_text(*it.encoder, it.info.images->num_rows));
  row("weights as stored", it.types.empty() ? "none" : bytes(it.stored_bytes));
  for (const auto& [type, share] : it.types) {
    row("  " + type, fmt::format("{} in {} tensors, {:.2f} M elements", bytes(share.bytes),
                                 share.num_tensors, static_cast<double>(share.num_elements) / 1e6));
  }
  row("weights in memory", bytes(it.info.weight_bytes));
  for (const auto& [type, num_bytes] : it.loaded) row("  " + type, bytes(num_bytes));
  row("layers", fmt::format("{}", it.info.num_layers));
  row("KV heads", fmt::format("{} of {}", it.info.num_kv_heads, it.info.head_dim));
  row("vocabulary", fmt::format("{}", it.info.vocab_size));
  row("context", fmt::format("{} tokens", it.info.context_length));
  row("tokenizer", it.tokenizer == nullptr
                       ? "none: " + it.tokenizer_problem
                       : fmt::format("{} tokens, {} of them special", it.tokenizer->vocab_size(),
                                     it.tokenizer->vocab().special_ids.size()));
  row("chat template", it.template_problem.empty() ? fmt::format("{} bytes", it.template_bytes)
                                                   : "none: " + it.template_problem);
  row("KV bytes per token",
      fmt::format("{} ({})", kv_token, it.kv_type == KvType::kFloat32 ? "float32" : "bfloat16"));
  fmt::print("\nThe plan on this computer ({} processors, {} free on {}):\n", it.system.num_cpus,
             bytes(it.system.available_bytes), it.device);
  // A GPU's scratch is measured and logged when the engine starts.
  row(it.plan.compute.device == "cuda" ? "KV cache, scratch included" : "KV cache",
      fmt::format("{} tokens, {}", it.plan.cache.max_total_tokens,
                  bytes(kv_bytes(it.plan, it.info, it.kv_type))));
  if (it.plan.cache.max_window_tokens > 0)
    row("  layers with a window", fmt::format("{} of {}, {} tokens", it.info.num_window_layers(),
                                              it.info.num_layers, it.plan.cache.max_window_tokens));
  row(fmt::format("KV of {} requests", it.batch),
      fmt::format("{} at full context: {}", bytes(it.kv_bytes_at_batch()),
                  it.batch_fits() ? "it fits" : "more than the cache; they share or wait"));
  row("requests at once", fmt::format("{}", it.plan.schedule.max_running_requests));
  row("requests waiting", fmt::format("{}", it.plan.schedule.max_queued_requests));
  row("context of a request", fmt::format("{} tokens", it.plan.model.context_length));
  row("prefill in one step", fmt::format("{} tokens", it.plan.schedule.chunked_prefill_size));
  row("page", fmt::format("{} tokens", it.plan.cache.page_size));
  row("threads", fmt::format("{}", it.plan.compute.num_threads));
  for (size_t i = 0; i < it.stages.size(); ++i)
    row(fmt::format("stage {}", i), describe(it.stages[i]));
  for (size_t i = 0; i < it.ranks.size(); ++i)
    row(fmt::format("rank {}", i), describe(it.ranks[i]));
}

boost::json::object loaded_json(const Inspection& it) {
  boost::json::object types;
  for (const auto& [type, num_bytes] : it.loaded) types[type] = {{"bytes", num_bytes}};
  return types;
}

boost::json::object types_json(const Inspection& it) {
  boost::json::object types;
  for (const auto& [type, share] : it.types) {
    types[type] = {
        {"tensors", share.num_tensors}, {"parameters", share.num_elements}, {"bytes", share.bytes}};
  }
  return types;
}

boost::json::value tokenizer_json(const Inspection& it) {
  if (it.tokenizer == nullptr) return nullptr;
  const VocabView& vocab = it.tokenizer->vocab();
  boost::json::object out{{"vocab_size", vocab.vocab_size()},
                          {"num_special_tokens", vocab.special_ids.size()},
                          {"eos_ids", boost::json::value_from(vocab.eos_ids)},
                          {"bos_id", nullptr}};
  if (const auto bos = it.tokenizer->bos_id()) out["bos_id"] = *bos;
  return out;
}

void print_json(const Inspection& it) {
  const int64_t kv_token = it.info.kv_bytes_per_token(it.kv_type);
  boost::json::object out = {{"model_path", it.plan.model.model_path.string()},
                             {"architecture", it.info.architecture},
                             {"model_type", it.info.model_type},
                             {"is_generation", !it.info.pooled.has_value()},
                             {"embedding_size", it.info.pooled ? it.info.pooled->size : 0},
                             {"num_parameters", it.info.num_parameters},
                             {"weight_bytes", it.info.weight_bytes},
                             {"memory_by_dtype", loaded_json(it)},
                             {"stored_bytes", it.stored_bytes},
                             {"stored_by_dtype", types_json(it)},
                             {"tokenizer", tokenizer_json(it)},
                             {"has_chat_template", it.template_problem.empty()},
                             {"batch", it.batch},
                             {"kv_bytes_at_batch", it.kv_bytes_at_batch()},
                             {"batch_fits", it.batch_fits()},
                             {"num_layers", it.info.num_layers},
                             {"num_kv_heads", it.info.num_kv_heads},
                             {"head_dim", it.info.head_dim},
                             {"vocab_size", it.info.vocab_size},
                             {"model_context_length", it.info.context_length},
                             {"kv_bytes_per_token", kv_token},
                             {"device", it.plan.compute.device},
                             {"device_name", it.device},
                             {"available_bytes", it.system.available_bytes},
                             {"num_cpus", it.system.num_cpus},
                             {"max_total_tokens", it.plan.cache.max_total_tokens},
                             {"max_window_tokens", it.plan.cache.max_window_tokens},
                             {"kv_bytes", kv_bytes(it.plan, it.info, it.kv_type)},
                             {"max_running_requests", it.plan.schedule.max_running_requests},
                             {"max_queued_requests", it.plan.schedule.max_queued_requests},
                             {"context_length", it.plan.model.context_length},
                             {"chunked_prefill_size", it.plan.schedule.chunked_prefill_size},
                             {"page_size", it.plan.cache.page_size},
                             {"num_threads", it.plan.compute.num_threads}};
  if (it.encoder) {
    out["image_encoder"] = {{"model_type", it.encoder->model_type},
                            {"num_layers", it.encoder->layers.size()},
                            {"hidden_size", it.encoder->hidden_size},
                            {"num_parameters", it.encoder->num_parameters()},
                            {"tokens_per_image", it.info.images->num_rows}};
  }
  if (!it.ranks.empty()) out["ranks"] = ranks_json(it.ranks);
  if (!it.stages.empty()) out["stages"] = stages_json(it.stages);
  if (it.program) out["program"] = program_json(*it.program);
  fmt::print("{}\n", boost::json::serialize(out));
}

// The exit code for a model of speech; nothing for all others.
std::optional<int> inspect_if_speech(const AppConfig& app, bool json) {
  if (!is_transcriber(app.engine.model.model_path)) return std::nullopt;
  const Status status = inspect_speech(app.engine, json);
  return status.ok() ? kExitOk : report(status, kExitFailure);
}

}  // namespace

int run_inspect(const std::vector<std::string>& args) {
  AppConfig config;
  config.log_level = "warning";
  bool json = false;
  int64_t batch = 0;
  SettingTable table;
  table.group("Output");
  table.toggle("json", json, "print one JSON object");
  table.integer("batch", batch, 0, 1 << 20, "print the memory of so many requests at once")
      .default_text = "as many as may run";
  ProgramRequest program;
  table.toggle("program", program.print, "print the operations that a step runs, with their costs");
  table.result_file("program-svg", program.svg, "draw them into this file");
  table.integer("tokens", program.tokens, 1, 1 << 20, "new tokens of the step that is shown");
  table.integer("context", program.context, 0, 1 << 30, "tokens cached before each of them");
  CommandLine command{
      "espalier inspect",
      "Prints what a model's folder or GGUF contains and what serving it here takes.",
      "Example:\n  espalier inspect my-model.gguf --batch 16\n  espalier inspect "
      "my-model.gguf --program --tokens 512",
      "MODEL",
      {}};
  if (const auto exit_code = parse_engine_command(command, table, config, args)) return *exit_code;
  if (command.words.size() > 1 ||
      (!command.words.empty() && !config.engine.model.model_path.empty())) {
    return report(invalid_argument("one model at a time: {}", fmt::join(command.words, " ")),
                  kExitUsage);
  }
  if (!command.words.empty()) config.engine.model.model_path = command.words[0];
  const auto path = resolve_model_path(config.engine.model.model_path, config.hub);
  if (!path) return report(path.error(), kExitFailure);
  config.engine.model.model_path = *path;
  if (const auto exit_code = inspect_if_speech(config, json)) return *exit_code;
  const Result<Inspection> inspection = inspect(config, batch, program);
  if (!inspection) return report(inspection.error(), kExitFailure);
  if (!program.svg.empty()) {
    if (const Status status = write_svg(*inspection->program, program.svg); !status.ok()) {
      return report(status, kExitFailure);
    }
  }
  if (json) {
    print_json(*inspection);
  } else if (program.print) {
    fmt::print("{}", program::to_table(*inspection->program));
  } else {
    print_table(*inspection);
  }
  return kExitOk;
}

}  // namespace espalier::apps
