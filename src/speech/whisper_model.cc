#include "speech/whisper_model.h"

#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "speech/languages.h"
#include "speech/whisper_decoder.h"
#include "speech/whisper_weights.h"
#include "speech/windows.h"

namespace espalier {
namespace speech {
namespace {

constexpr int32_t kRunningMax = 8, kWaitingMax = 64;
// Fewer leave no room for a prefix, or for the window of a transform.
constexpr int32_t kTargetPositionsMin = 16, kSourcePositionsMin = 8;

TranscriberInfo describe(const WhisperConfig& config, const TranscriberOptions& options,
                         DType type) {
  const WhisperSizes& sizes = config.sizes;
  TranscriberInfo info;
  info.architecture = sizes.architecture;
  info.model_type = "whisper";
  info.dtype = type == DType::kFloat32 ? "float32" : "bfloat16";
  info.vocab_size = sizes.vocab_size;
  info.hidden_size = sizes.width;
  info.num_encoder_layers = sizes.encoder.num_layers;
  info.num_decoder_layers = sizes.decoder.num_layers;
  info.num_heads = sizes.decoder.num_heads;
  info.head_dim = sizes.head_dim(sizes.decoder);
  info.num_mels = sizes.num_mels;
  info.context_length = sizes.max_target_positions;
  info.window_seconds = sizes.window_frames() * kSecondsPerFrame;
  for (const LanguageToken& language : config.tokens.languages) {
    info.languages.push_back(language.code);
  }
  info.translates = config.tokens.translate >= 0;
  info.slot_bytes = WhisperDecoder::slot_bytes(sizes, type);
  info.running_max = options.running_max > 0 ? options.running_max : kRunningMax;
  info.waiting_max = options.waiting_max > 0 ? options.waiting_max : kWaitingMax;
  return info;
}

Status check_sizes(const WhisperSizes& sizes) {
  if (sizes.max_target_positions >= kTargetPositionsMin &&
      sizes.max_source_positions >= kSourcePositionsMin) {
    return Status();
  }
  return invalid_argument(
      "config.json has max_target_positions {} and max_source_positions {}, but they must be at "
      "least {} and {}",
      sizes.max_target_positions, sizes.max_source_positions, kTargetPositionsMin,
      kSourcePositionsMin);
}

struct Stated {
  std::unique_ptr<Tokenizer> tokenizer;
  WhisperConfig config;
};

Result<Stated> read_stated(const std::filesystem::path& path) {
  Stated stated;
  auto tokenizer = load_tokenizer(path);
  if (!tokenizer) return fail(tokenizer.error().with_context("the tokenizer of a Whisper model"));
  stated.tokenizer = std::move(*tokenizer);
  ESP_ASSIGN_OR_RETURN(stated.config, read_whisper_config(path, *stated.tokenizer));
  ESP_RETURN_IF_ERROR(check_sizes(stated.config.sizes));
  return stated;
}

}  // namespace

Result<std::unique_ptr<WhisperModel>> WhisperModel::load(const TranscriberOptions& options) {
  ESP_ASSIGN_OR_RETURN(Stated stated, read_stated(options.path));
  ESP_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(options.path));
  std::unique_ptr<WhisperModel> model(new WhisperModel(options.num_threads));
  model->tokenizer_ = std::move(stated.tokenizer);
  model->config_ = std::move(stated.config);
  const MakeRunner make = options.make_runner ? options.make_runner : make_cpu_runner;
  ESP_ASSIGN_OR_RETURN(const DType type, whisper_matrix_type(checkpoint, options.dtype));
  model->info_ = describe(model->config_, options, type);
  ESP_ASSIGN_OR_RETURN(model->runner_, make({.checkpoint = checkpoint,
                                             .sizes = model->config_.sizes,
                                             .pool = model->pool_,
                                             .dtype = options.dtype,
                                             .num_slots = model->info_.running_max}));
  model->info_.num_parameters = model->runner_->info().num_parameters;
  model->info_.weight_bytes = model->runner_->info().weight_bytes;
  log_info("speech model loaded parameters={} weight_bytes={} dtype={} languages={} slots={}",
           model->info_.num_parameters, model->info_.weight_bytes, model->info_.dtype,
           model->info_.languages.size(), model->info_.running_max);
  return model;
}

}  // namespace speech

Result<TranscriberInfo> read_transcriber_info(const TranscriberOptions& options) {
  ESP_ASSIGN_OR_RETURN(const speech::Stated stated, speech::read_stated(options.path));
  ESP_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(options.path));
  ESP_ASSIGN_OR_RETURN(const DType type, speech::whisper_matrix_type(checkpoint, options.dtype));
  TranscriberInfo info = speech::describe(stated.config, options, type);
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    if (tensor.name == "proj_out.weight") continue;  // the embedding once more
    info.num_parameters += tensor.num_elements();
    const bool matrix = tensor.shape.size() > 1 && !tensor.name.ends_with("positions.weight");
    info.weight_bytes +=
        tensor.num_elements() * static_cast<int64_t>(dtype_size(matrix ? type : DType::kFloat32));
  }
  return info;
}

bool is_transcriber(const std::filesystem::path& folder) { return speech::is_whisper(folder); }

}  // namespace espalier
