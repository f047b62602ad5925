#include "engine/speech/speech_engine.h"

#include <algorithm>
#include <random>
#include <thread>

#include "base/clock.h"
#include "base/log.h"
#include "engine/startup/device.h"
#include "engine/startup/system_info.h"
#include "speech/cuda/cuda_whisper.h"
#include "speech/transcriber.h"

namespace espalier {
namespace {

ModelInfo model_info_of(const TranscriberInfo& speech) {
  ModelInfo info;
  info.architecture = speech.architecture;
  info.model_type = speech.model_type;
  info.vocab_size = speech.vocab_size;
  info.context_length = speech.context_length;
  info.hidden_size = speech.hidden_size;
  info.num_layers = speech.num_decoder_layers;
  info.num_kv_heads = speech.num_heads;
  info.head_dim = speech.head_dim;
  info.num_parameters = speech.num_parameters;
  info.weight_bytes = speech.weight_bytes;
  return info;
}

Status only_speech() {
  return error(StatusCode::kFailedPrecondition,
               "this model turns speech into text: POST an audio file to /v1/audio/transcriptions "
               "or /v1/audio/translations; for texts start a server with a language model");
}

class SpeechEngine final : public Engine {
 public:
  SpeechEngine(EngineConfig config, std::unique_ptr<Transcriber> transcriber)
      : config_(std::move(config)),
        transcriber_(std::move(transcriber)),
        info_(model_info_of(transcriber_->info())) {}

  Result<std::string> submit(GenerateRequest, EventSink) override { return fail(only_speech()); }
  void abort(std::string_view, AbortScope scope) override {
    if (scope == AbortScope::kAll) transcriber_->cancel_all();
  }
  Transcriber* transcriber() const { return transcriber_.get(); }
  Status flush_cache() override { return {}; }  // nothing is cached between requests
  void drain(Duration timeout) override;
  EngineStats stats() const override;
  const ModelInfo& model_info() const override { return info_; }
  const EngineConfig& config() const override { return config_; }
  const Tokenizer* tokenizer() const override { return &transcriber_->tokenizer(); }
  int32_t context_length() const override { return info_.context_length; }

 private:
  const EngineConfig config_;
  const std::unique_ptr<Transcriber> transcriber_;
  const ModelInfo info_;
  const SteadyClock clock_;
};

void SpeechEngine::drain(Duration timeout) {
  transcriber_->close();
  const TimePoint end = clock_.now() + timeout;
  const auto is_idle = [&] {
    const TranscriberStats stats = transcriber_->stats();
    return stats.num_finished == stats.num_total;
  };
  while (!is_idle() && clock_.now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  transcriber_->cancel_all();
}

EngineStats SpeechEngine::stats() const {
  const TranscriberStats speech = transcriber_->stats();
  const TranscriberInfo& info = transcriber_->info();
  EngineStats stats;
  stats.requests.num_running = speech.num_running;
  stats.requests.num_waiting = speech.num_waiting;
  stats.requests.num_total = speech.num_total;
  stats.requests.num_finished = speech.num_finished - speech.num_aborted;
  stats.requests.num_aborted = speech.num_aborted;
  stats.tokens.prompt = speech.num_prompt_tokens;
  stats.tokens.generated = speech.num_tokens;
  stats.steps.num_steps = speech.num_steps;
  stats.steps.forward_seconds = speech.encode_seconds + speech.decode_seconds;
  stats.memory.weight_bytes = info.weight_bytes;
  stats.memory.kv_bytes = info.slot_bytes * info.running_max;
  stats.memory.kv_tokens = info.context_length * info.running_max;
  return stats;
}

Status check_settings(const EngineConfig& c) {
  const auto refused = [](const char* setting) {
    return error(StatusCode::kUnimplemented, "{} is not for a model of speech: leave it out",
                 setting);
  };
  if (c.model.load_format == LoadFormat::kDummy) return refused("--load-format dummy");
  if (c.compute.tp_size > 1) return refused("--tp-size above 1");
  if (c.compute.pp_size > 1) return refused("--pp-size above 1");
  if (c.compute.dp_size > 1) return refused("--dp-size above 1");
  if (c.compute.ep_size > 1) return refused("--ep-size above 1");
  if (c.compute.enable_dp_attention) return refused("--enable-dp-attention");
  if (c.disaggregation.disaggregation_mode != "null") return refused("--disaggregation-mode");
  if (c.lora.enable_lora || !c.lora.lora_paths.empty()) return refused("--enable-lora");
  if (c.model.skip_tokenizer_init) return refused("--skip-tokenizer-init");
  if (c.model.is_embedding) return refused("--is-embedding");
  if (!c.model.json_model_override_args.empty() && c.model.json_model_override_args != "{}")
    return refused("--json-model-override-args");
  if (c.audio.max_audio_bytes < 1 || !(c.audio.max_audio_seconds > 0))
    return invalid_argument(
        "max_audio_bytes is {} and max_audio_seconds {}, but both must be above 0",
        c.audio.max_audio_bytes, c.audio.max_audio_seconds);
  return {};
}

}  // namespace

Result<std::unique_ptr<Engine>> start_speech_engine(const EngineConfig& user) {
  ESP_RETURN_IF_ERROR(check_settings(user));
  EngineConfig config = user;
  while (config.sampling.random_seed == 0) config.sampling.random_seed = std::random_device{}();
  const int32_t cpus = std::max(1, read_system_info().num_cpus);
  ESP_ASSIGN_OR_RETURN(const EngineDevice device,
                       choose_device(config.compute.device, config.compute.base_gpu_id));
  config.compute.device = device.cuda ? "cuda" : "cpu";
  speech::MakeRunner make_runner;
  if (device.cuda) {
    make_runner = [index = device.index](const speech::RunnerParts& parts) {
      return speech::make_cuda_runner(parts, index);
    };
  }
  config.compute.num_threads =
      config.compute.num_threads == 0 ? cpus : std::min(config.compute.num_threads, cpus);
  ESP_ASSIGN_OR_RETURN(auto transcriber,
                       Transcriber::create({.path = config.model.model_path,
                                            .dtype = config.model.dtype,
                                            .num_threads = config.compute.num_threads,
                                            .running_max = config.schedule.max_running_requests,
                                            .waiting_max = config.schedule.max_queued_requests,
                                            .seed = config.sampling.random_seed,
                                            .make_runner = std::move(make_runner)}));
  const TranscriberInfo& info = transcriber->info();
  config.model.dtype = info.dtype;
  config.model.context_length = info.context_length;
  config.model.tokenizer_path = config.model.model_path;
  config.model.tokenizer_threads = 1;
  config.schedule.max_running_requests = info.running_max;
  config.schedule.max_queued_requests = info.waiting_max;
  config.cache.max_total_tokens = info.context_length * info.running_max;
  return std::make_unique<SpeechEngine>(std::move(config), std::move(transcriber));
}

Transcriber* transcriber_of(Engine& engine) {
  const auto* const speech = dynamic_cast<const SpeechEngine*>(&engine);
  return speech == nullptr ? nullptr : speech->transcriber();
}

}  // namespace espalier
