#include "engine/engine.h"

#include <condition_variable>
#include <mutex>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "engine/engine_impl.h"
#include "engine/replicas/start_replicas.h"
#include "engine/speech/speech_engine.h"
#include "engine/startup/device.h"
#include "engine/startup/draft_folder.h"
#include "engine/startup/start_cpu.h"
#include "engine/startup/start_cuda.h"
#include "engine/startup/system_info.h"
#include "engine/text_io/open_tokenizer.h"
#include "engine/texts/text_engine.h"
#include "speech/transcriber.h"

namespace espalier {
namespace {

// Gathers the events of one request's samples; shared by the caller, who waits, and the sink.
class Gathering {
 public:
  explicit Gathering(int32_t n) : results_(static_cast<size_t>(n)), missing_(n) {}

  void add(TokenEvent&& event) {
    std::lock_guard lock(mutex_);
    GenerateResult& r = results_[static_cast<size_t>(event.index)];
    r.text += event.text;
    r.output_ids.insert(r.output_ids.end(), event.ids.begin(), event.ids.end());
    std::move(event.logprobs.begin(), event.logprobs.end(), std::back_inserter(r.output_logprobs));
    std::move(event.input_logprobs.begin(), event.input_logprobs.end(),
              std::back_inserter(r.input_logprobs));
    r.hidden_states.insert(r.hidden_states.end(), event.hidden_states.begin(),
                           event.hidden_states.end());
    r.stats = event.stats;
    r.embedding = std::move(event.embedding);
    r.entries_by_accepted = std::move(event.entries_by_accepted);
    r.next_logprobs = std::move(event.next_logprobs);
    r.beam = event.beam;
    if (!event.finish) return;
    r.finish = std::move(*event.finish);
    if (failed_.ok()) failed_ = r.finish.status;
    if (--missing_ == 0) complete_.notify_one();
  }

  Result<std::vector<GenerateResult>> wait(const std::string& rid) {
    std::unique_lock lock(mutex_);
    complete_.wait(lock, [&] { return missing_ == 0; });
    if (!failed_.ok()) return fail(failed_);
    for (GenerateResult& r : results_) r.rid = rid;
    return std::move(results_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable complete_;
  std::vector<GenerateResult> results_;
  int32_t missing_;
  Status failed_;
};

template <typename T>
Status check(const Result<T>& result) {
  return result ? Status() : result.error();
}

void log_start(const EngineConfig& c, const std::string& device, const ModelInfo& info,
               double seconds) {
  log_info(
      "engine ready device=\"{}\" model={} parameters={} max_total_tokens={} "
      "max_window_tokens={} context={} "
      "max_running={} chunk={} "
      "threads={} seconds={:.2f}",
      device, info.architecture, info.num_parameters, c.cache.max_total_tokens,
      c.cache.max_window_tokens, c.model.context_length, c.schedule.max_running_requests,
      c.schedule.chunked_prefill_size, c.compute.num_threads, seconds);
  const int32_t tokens = c.cache.max_total_tokens / c.compute.attention_ranks();  // of one request
  if (c.model.context_length > tokens + 1)  // the last token has no keys
    log_warning(
        "the context of {} tokens is longer than the KV cache of {}: prompt and output of a "
        "request share at most {}; raise max_total_tokens or mem_fraction_static, or lower "
        "context_length",
        c.model.context_length, tokens, tokens + 1);
}

}  // namespace

Engine::~Engine() = default;

void Engine::join_branches(JoinRequest, JoinDone done) {
  done(fail(error(StatusCode::kUnimplemented, "this engine joins no branches")));
}
Result<std::string> Engine::open_session(const SessionOptions&) {
  return fail(error(StatusCode::kUnimplemented, "this engine has no sessions"));
}
Status Engine::close_session(std::string_view) {
  return error(StatusCode::kUnimplemented, "this engine has no sessions");
}
Result<std::vector<TokenId>> Engine::session_prompt(const SessionParams&, std::vector<TokenId>) {
  return fail(error(StatusCode::kUnimplemented, "this engine has no sessions"));
}
void Engine::read_cache(const CacheNodesQuery&, CacheNodesDone done) {
  done(fail(error(StatusCode::kUnimplemented, "this engine's cache cannot be read")));
}
Result<CacheEvents> Engine::read_cache(uint64_t, size_t) const {
  return fail(error(StatusCode::kFailedPrecondition,
                    "no events of the cache are kept: set num_cache_events (--kv-events-config)"));
}
void Engine::profile(ProfileCall call) {
  call.answered(error(StatusCode::kUnimplemented, "this engine records no profiles"));
}
namespace {
Status no_adapters(const std::string& name) {
  return error(StatusCode::kFailedPrecondition,
               "LoRA is not enabled, so there is no adapter '{}': set --enable-lora", name);
}
}  // namespace
Result<AdapterInfo> Engine::load_adapter(const std::string& name, const std::filesystem::path&) {
  return fail(no_adapters(name));
}
Status Engine::unload_adapter(const std::string& name) { return no_adapters(name); }
Result<std::vector<StorageReport>> Engine::storage(const StorageRequest&) {
  return fail(error(StatusCode::kUnimplemented, "this engine has no tiers"));
}
Status Engine::pause_generation(PauseMode) {
  return error(StatusCode::kUnimplemented, "this engine cannot be paused");
}
Status Engine::continue_generation() {
  return error(StatusCode::kUnimplemented, "this engine cannot be paused");
}

Result<std::unique_ptr<Engine>> Engine::create(const EngineConfig& config, Parts parts) {
  ESP_ASSIGN_OR_RETURN(const EngineConfig effective,
                       resolve(config, parts.info, read_system_info()));
  return EngineImpl::start(effective, std::move(parts));
}

namespace {

// The device of a replica. On the CPU it has a share of what the host had before any of them began.
Result<EngineDevice> device_of(const std::string& name, int32_t base_gpu_id,
                               const ReplicaPart& part) {
  ESP_ASSIGN_OR_RETURN(EngineDevice device, choose_device(name, base_gpu_id));
  if (part.single()) return device;
  if (device.cuda) {
    device.system.mask_threads = share_of_host(device.system, part).mask_threads;
  } else {
    device.system = share_of_host(part.host.value_or(device.system), part);
  }
  return device;
}

// What a GPU alone has.
Status check_device(const EngineConfig& config, const EngineDevice& device) {
  if (device.cuda || !config.compute.enable_weights_cpu_backup) return {};
  return invalid_argument(
      "enable_weights_cpu_backup is set, but on the device {} weights are in the host's memory "
      "anyway: leave --enable-weights-cpu-backup out",
      device.name);
}

Result<std::unique_ptr<Engine>> create_one(const EngineConfig& user, MakePrefixCache make_cache,
                                           const ReplicaPart& part) {
  const SteadyClock clock;
  const TimePoint start = clock.now();
  EngineConfig config = user;
  config.lora.enable_lora = config.lora.enable_lora || !config.lora.lora_paths.empty();
  ESP_ASSIGN_OR_RETURN(const ModelInfo stated, read_model_info(model_load_options(config)));
  ESP_ASSIGN_OR_RETURN(EngineDevice device,
                       device_of(config.compute.device, config.compute.base_gpu_id, part));
  ESP_RETURN_IF_ERROR(check_device(config, device));
  config.compute.device = device.cuda ? "cuda" : "cpu";
  config.compute.base_gpu_id = device.index;
  config.compute.first_cpu = part.index * device.system.num_cpus;
  choose_drafter(stated, config);
  // Before weights take their time.
  ESP_RETURN_IF_ERROR(check(resolve(config, stated, device.system)));
  ESP_RETURN_IF_ERROR(check_draft_folder(config, stated));
  auto start_it = device.cuda ? start_cuda_executor(config, device.system)
                              : start_cpu_executor(config, device.system);
  if (!start_it && user.compute.device == "auto" && device.cuda &&
      start_it.error().code() == StatusCode::kUnimplemented) {
    log_info("device=cpu reason=\"{}\"", start_it.error().message());
    ESP_ASSIGN_OR_RETURN(device, device_of("cpu", 0, part));
    config.compute.first_cpu = part.index * device.system.num_cpus;
    config.compute.device = "cpu";
    start_it = start_cpu_executor(config, device.system);
  }
  ESP_ASSIGN_OR_RETURN(StartedExecutor started, std::move(start_it));
  Engine::Parts parts{.executor = std::move(started.executor),
                      .info = std::move(started.info),
                      .image_work = std::move(started.image_work),
                      .image_encoder = std::move(started.image_encoder),
                      .make_cache = std::move(make_cache),
                      .expert_counts = std::move(started.expert_counts),
                      .weights = std::move(started.weights)};
  if (parts.expert_counts) ESP_RETURN_IF_ERROR(parts.expert_counts->begin());
  if (!config.model.skip_tokenizer_init) {
    ESP_ASSIGN_OR_RETURN(parts.tokenizer, open_tokenizer(config.model.tokenizer_path.empty()
                                                             ? config.model.model_path
                                                             : config.model.tokenizer_path));
  }
  ESP_ASSIGN_OR_RETURN(parts.defaults, read_generation_defaults(config.model.model_path));
  log_start(started.config, device.name, parts.info, to_seconds(clock.now() - start));
  return EngineImpl::start(started.config, std::move(parts));
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::create(const EngineConfig& config,
                                               MakePrefixCache make_cache) {
  if (is_transcriber(config.model.model_path)) return start_speech_engine(config);
  if (is_text_engine(config)) return start_text_engine(config);
  // As SGLang counts: attention then is done in --dp-size parts, not by replicas. Any other number
  // is refused.
  if (config.compute.enable_dp_attention) {
    EngineConfig one = config;
    if (one.compute.dp_size == one.compute.tp_size) one.compute.dp_size = 1;
    return create_one(one, std::move(make_cache), {});
  }
  if (config.compute.dp_size <= 1) return create_one(config, std::move(make_cache), {});
  return start_replicas(config, [&](const EngineConfig& of_one, const ReplicaPart& part) {
    return create_one(of_one, make_cache, part);
  });
}

Result<GrammarReport> Engine::compile_grammar(const SamplingParams&, size_t) {
  return fail(error(StatusCode::kUnimplemented, "this engine compiles no grammars"));
}

Result<std::vector<GenerateResult>> Engine::generate_all(GenerateRequest request) {
  // Shared: the sink may still be in its last lines when the caller has its answer.
  auto gathering = std::make_shared<Gathering>(std::max(1, request.sampling.n));
  ESP_ASSIGN_OR_RETURN(const std::string rid,
                       submit(std::move(request), [gathering](TokenEvent&& event) {
                         gathering->add(std::move(event));
                       }));
  return gathering->wait(rid);
}

Result<GenerateResult> Engine::generate(GenerateRequest request) {
  ESP_ASSIGN_OR_RETURN(auto results, generate_all(std::move(request)));
  return std::move(results.front());
}

Result<EncodeResult> encode(Engine& engine, GenerateRequest request) {
  request.embed = true;
  ESP_ASSIGN_OR_RETURN(GenerateResult result, engine.generate(std::move(request)));
  return EncodeResult{std::move(result.rid), std::move(result.embedding), result.stats};
}

Result<std::vector<std::vector<float>>> score(Engine& engine, const ScoreRequest& request) {
  ESP_ASSIGN_OR_RETURN(auto prompts, score_prompts(request, engine.model_info()));
  std::vector<std::pair<std::shared_ptr<Gathering>, std::string>> waiting;
  Status failed;
  for (GenerateRequest& prompt : prompts) {
    auto gathering = std::make_shared<Gathering>(1);
    auto rid = engine.submit(std::move(prompt),
                             [gathering](TokenEvent&& event) { gathering->add(std::move(event)); });
    if (!rid) {
      failed = rid.error();
      break;
    }
    waiting.emplace_back(std::move(gathering), *std::move(rid));
  }
  std::vector<std::vector<float>> scores;
  std::optional<std::vector<float>> query;  // where every token has a vector
  const auto& pooled = engine.model_info().pooled;
  for (const auto& [gathering, rid] : waiting) {
    if (!failed.ok()) engine.abort(rid, Engine::AbortScope::kExact);
    auto results = gathering->wait(rid);
    if (!results && failed.ok()) failed = results.error();
    if (!failed.ok()) continue;
    const GenerateResult& result = results->front();
    if (pooled && pooled->each_token) {
      if (query)
        scores.push_back({max_sim(*query, result.embedding, pooled->size)});
      else
        query = result.embedding;
    } else if (pooled && pooled->sigmoid) {
      scores.push_back({fitting_score(result.embedding, *pooled)});
    } else {
      scores.push_back(scores_of(request, result.embedding, result.next_logprobs));
    }
  }
  if (!failed.ok()) return fail(failed);
  return scores;
}

}  // namespace espalier
