#include "offline_bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <future>
#include <memory>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/rng.h"
#include "bench/pending_requests.h"
#include "engine/engine.h"

namespace espalier::bench {
namespace {

// A list of records that does not end before the token limit: strings, numbers, enumerations,
// lists.
constexpr const char* kRecords = R"({"type": "array", "minItems": 1000, "items": {"type": "object",
 "properties": {"name": {"type": "string", "maxLength": 40}, "age": {"type": "integer"},
  "score": {"type": "number"}, "state": {"enum": ["open", "closed", "waiting for an answer"]},
  "born": {"type": "string", "format": "date"},
  "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{2,12}$"}, "maxItems": 4}},
 "required": ["name", "age", "score", "state", "born", "tags"], "additionalProperties": false}})";

std::vector<TokenId> draw_tokens(Rng& rng, int32_t count, int32_t vocab) {
  std::vector<TokenId> tokens;
  for (int32_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<TokenId>(rng.below(static_cast<uint64_t>(vocab))));
  return tokens;
}

// Every group's requests follow each other.
std::vector<std::vector<TokenId>> draw_prompts(const OfflineWorkload& w, int32_t vocab) {
  Rng rng(7);
  std::vector<std::vector<TokenId>> prompts;
  std::vector<TokenId> shared;
  const int32_t per_group = w.groups > 0 ? w.num_requests / w.groups : 1;
  for (int32_t i = 0; i < w.num_requests; ++i) {
    if (w.groups > 0 && i % per_group == 0) shared = draw_tokens(rng, w.shared_tokens, vocab);
    std::vector<TokenId>& prompt = prompts.emplace_back(shared);
    const auto own = draw_tokens(rng, w.input_tokens - std::ssize(prompt), vocab);
    prompt.insert(prompt.end(), own.begin(), own.end());
  }
  return prompts;
}

// Two tokens with probabilities p and 1 - p: two draws agree with p^2 + (1 - p)^2. The temperature
// makes what the model says of them count for nothing.
void make_predictable(SamplingParams& sampling, double agreement) {
  constexpr float kTemperature = 1000, kBias = 1e5f;
  const double p = (1 + std::sqrt(2 * agreement - 1)) / 2;
  sampling.temperature = kTemperature;
  sampling.logit_bias = {{17, kBias + kTemperature * static_cast<float>(std::log(p / (1 - p)))},
                         {18, kBias}};
}

Status run_once(Engine& engine, const OfflineWorkload& w,
                const std::vector<std::vector<TokenId>>& prompts) {
  // Shared with the sinks, because a failed submission returns before the others have ended.
  const auto pending = std::make_shared<PendingRequests>(static_cast<int32_t>(prompts.size()));
  for (size_t i = 0; i < prompts.size(); ++i) {
    GenerateRequest request;
    request.input_ids = prompts[i];
    request.sampling.max_new_tokens = w.output_tokens;
    if (w.alternates && i % 2 != 0)
      request.sampling.temperature = 1.0f;
    else if (w.predictable > 0)
      make_predictable(request.sampling, w.predictable);
    else
      request.sampling.temperature = static_cast<float>(w.temperature);
    request.sampling.ignore_eos = true;
    if (!w.json_schema.empty()) request.sampling.json_schema = w.json_schema;
    const auto rid =
        engine.submit(std::move(request), [pending](TokenEvent&& event) { pending->add(event); });
    if (!rid) return rid.error();
  }
  return pending->wait();
}

// Begins a profile when it is made; stop() ends it.
class Profile {
 public:
  explicit Profile(Engine& engine) : engine_(engine) {
    engine.profile({.start = ProfileOptions{},
                    .done = [this](StepProfile&& profile) { done_.set_value(std::move(profile)); },
                    .answered = [](const Status& status) { ESP_CHECK(status.ok()); }});
  }
  StepProfile stop() {
    engine_.profile({.answered = [](const Status& status) { ESP_CHECK(status.ok()); }});
    return done_.get_future().get();
  }

 private:
  Engine& engine_;
  std::promise<StepProfile> done_;
};

void add_drafters(std::vector<OfflineWorkload>& out, bool quick) {
  struct Text {
    const char* name;
    double temperature, predictable;
    bool alternates;
  };
  constexpr Text kTexts[] = {{"repeats itself", 0, 0, false},
                             {"repeats nothing", 1, 0, false},
                             {"predictable 0.7", 0, 0.7, false},
                             {"half repeats", 0, 0, true},
                             {"half predictable 0.7", 0, 0.7, true}};
  for (const int32_t batch :
       quick ? std::vector<int32_t>{1, 64} : std::vector<int32_t>{1, 16, 64, 256})
    for (const Text& text : kTexts)
      for (const std::string algorithm : {"none", "COMBINED", "EAGLE3"})
        if ((batch > 1 || !text.alternates) && (algorithm != "EAGLE3" || text.temperature > 0))
          out.push_back({.name = std::string(text.name) + ", batch " + std::to_string(batch) +
                                 ", " + algorithm,
                         .num_requests = batch * (!text.alternates ? 1
                                                  : batch > 64     ? 2
                                                                   : 3),
                         .max_running = batch,
                         .input_tokens = 128,
                         .output_tokens = 512,
                         .temperature = text.temperature,
                         .predictable = text.predictable,
                         .alternates = text.alternates,
                         .speculative_algorithm = algorithm,
                         .profiles = true});
}

}  // namespace

std::vector<OfflineWorkload> offline_workloads(const std::string& part, bool quick) {
  const auto plain = [](int32_t in, int32_t out, int32_t batch, int32_t rounds) {
    return OfflineWorkload{.name = "offline " + std::to_string(in) + "/" + std::to_string(out) +
                                   ", batch " + std::to_string(batch),
                           .num_requests = batch * rounds,
                           .max_running = batch,
                           .input_tokens = in,
                           .output_tokens = out};
  };
  std::vector<OfflineWorkload> out;
  if (part == "offline") {
    for (const int32_t batch :
         quick ? std::vector<int32_t>{128} : std::vector<int32_t>{128, 256, 512})
      out.push_back(plain(1000, 1000, batch, quick || batch > 128 ? 1 : 2));
  } else if (part == "lengths") {
    out = {plain(500, 2000, 256, 1), plain(128, 2048, 256, 1), plain(2048, 128, 256, 2)};
    if (quick) out = {plain(2048, 128, 256, 1)};
  } else if (part == "grammars") {
    for (const int32_t batch : quick ? std::vector<int32_t>{64} : std::vector<int32_t>{64, 256}) {
      const std::string at = ", batch " + std::to_string(batch);
      OfflineWorkload w{.name = "no grammar" + at,
                        .num_requests = batch,
                        .max_running = batch,
                        .input_tokens = 128,
                        .output_tokens = 256,
                        .temperature = 1,
                        .guess = false};
      out.push_back(w);
      w.name = "JSON Schema, every token sampled" + at;
      w.json_schema = kRecords;
      out.push_back(w);
      w.name = "JSON Schema" + at;
      w.guess = true;
      out.push_back(w);
    }
  } else if (part == "drafters") {
    add_drafters(out, quick);
  } else {
    const int32_t groups = quick ? 16 : 64;
    OfflineWorkload shared{.name = "shared prefix, cache on",
                           .num_requests = groups * 16,
                           .max_running = 512,
                           .input_tokens = 2048 + 128,
                           .output_tokens = 256,
                           .groups = groups,
                           .shared_tokens = 2048};
    out.push_back(shared);
    shared.name = "shared prefix, cache off";
    shared.cache = false;
    out.push_back(shared);
    shared.name = "nothing shared, cache on";
    shared.cache = true;
    shared.groups = shared.shared_tokens = 0;
    shared.num_requests = groups * 4;
    out.push_back(shared);
    shared.name = "nothing shared, cache off";
    shared.cache = false;
    out.push_back(shared);
  }
  return out;
}

Result<OfflineResult> run_offline(const OfflineWorkload& w, const std::string& config,
                                  const std::string& dtype, const std::string& kv_cache_dtype,
                                  const std::string& tokenizer, uint64_t seed) {
  ESP_ASSIGN_OR_RETURN(
      auto engine,
      Engine::create(
          {.model = {.model_path = config,
                     .tokenizer_path = w.json_schema.empty() ? std::string() : tokenizer,
                     .dtype = dtype,
                     .load_format = LoadFormat::kDummy,
                     .skip_tokenizer_init = w.json_schema.empty(),
                     .context_length = 8192},
           .compute = {.device = "cuda"},
           .cache = {.kv_cache_dtype = kv_cache_dtype, .disable_radix_cache = !w.cache},
           .schedule = {.max_running_requests = w.max_running},
           .sampling = {.random_seed = seed},
           .grammar = {.disable_jump_forward = !w.guess, .disable_draft_tokens = !w.guess},
           .speculation = {.speculative_algorithm = w.speculative_algorithm}}));
  const int32_t vocab = engine->model_info().vocab_size;
  // The first batch loads kernels and captures graphs, so it is not timed.
  OfflineWorkload warm = w;
  warm.num_requests = w.max_running;
  warm.input_tokens = 16;
  warm.output_tokens = 8;
  warm.groups = warm.shared_tokens = 0;
  ESP_RETURN_IF_ERROR(run_once(*engine, warm, draw_prompts(warm, vocab)));
  ESP_RETURN_IF_ERROR(engine->flush_cache());
  const EngineStats before = engine->stats();
  const auto prompts = draw_prompts(w, vocab);
  std::optional<Profile> profile;
  if (w.profiles) profile.emplace(*engine);
  const auto start = std::chrono::steady_clock::now();
  ESP_RETURN_IF_ERROR(run_once(*engine, w, prompts));
  OfflineResult r;
  r.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (profile) r.profile = profile->stop();
  const EngineStats after = engine->stats();
  const auto grown = [](auto now, auto then) { return static_cast<double>(now - then); };
  r.prompt_tokens = grown(after.tokens.prompt, before.tokens.prompt);
  r.output_tokens = grown(after.tokens.generated, before.tokens.generated);
  r.cached_tokens = grown(after.tokens.cached, before.tokens.cached);
  r.forward_seconds = grown(after.steps.forward_seconds, before.steps.forward_seconds);
  r.host_seconds = grown(after.steps.host_seconds, before.steps.host_seconds);
  r.steps = grown(after.steps.num_steps, before.steps.num_steps);
  if (after.speculation.num_verified > 0)
    r.tokens_per_verification = after.speculation.accept_length();
  return r;
}

}  // namespace espalier::bench
