#include "texts_bench.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "base/rng.h"
#include "bench/gpu/gemm_rate.h"
#include "bench/pending_requests.h"
#include "engine/engine.h"
#include "models/cuda/text_encoder.h"
#include "models/model_plan.h"
#include "tensor/cuda/device.h"

namespace espalier::bench {
namespace {

constexpr int32_t kTextTokens = 512, kStepTokens = 16384;
// Of a passage with its query, drawn around a mean of 200.
constexpr int32_t kPassageLeast = 100, kPassageMost = 300;

double elapsed_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Of a text: GEMMs of the layers, and attention of all rows with all rows, or with those in reach.
double work_of(const DecoderSpec& spec, double rows) {
  double out = 0;
  const double hidden = spec.hidden_size;
  for (const LayerSpec& layer : spec.layers) {
    const double width = layer.attention.q_dim();
    const double matrices = layer.mlp.gated ? 3 : 2;
    const double seen =
        layer.attention.reach > 0 ? std::min(rows, 2.0 * layer.attention.reach + 1) : rows;
    out += 2 * rows * (4 * hidden * width + matrices * hidden * layer.mlp.intermediate_size) +
           4 * rows * seen * width;
  }
  return out;
}

std::vector<std::vector<TokenId>> draw_texts(int32_t count, int32_t least, int32_t most,
                                             int32_t vocab_size) {
  Rng rng(7);
  std::vector<std::vector<TokenId>> texts(static_cast<size_t>(count));
  for (auto& text : texts) {
    text.resize(static_cast<size_t>(rng.between(least, most)));
    for (TokenId& id : text)
      id = static_cast<TokenId>(rng.below(static_cast<uint64_t>(vocab_size)));
  }
  return texts;
}

// Steps of as many texts as fit, one after the other.
Status run_encoder(const TextsBench& options, const ReportImagesRow& report) {
  const ModelLoadOptions load{.path = options.config,
                              .format = LoadFormat::kDummy,
                              .seed = options.seed,
                              .dtype = options.dtype};
  ESP_ASSIGN_OR_RETURN(const ModelPlan plan, plan_model(load));
  if (const auto device = cuda::open_device(0); !device) return device.error();
  ESP_ASSIGN_OR_RETURN(const auto encoder,
                       CudaTextEncoder::load(load, {.step_tokens_max = kStepTokens}));
  const int32_t tokens = std::min(kTextTokens, plan.spec.context_length);
  for (const bool equal : {true, false}) {
    for (const int32_t count : {kStepTokens / tokens, 8, 1}) {
      const auto ids = draw_texts(count, equal ? tokens : tokens / 2, tokens, plan.spec.vocab_size);
      std::vector<EncoderText> texts;
      double work = 0;
      int64_t rows = 0;
      for (const auto& text : ids) {
        texts.push_back({text, {}});
        work += work_of(plan.spec, static_cast<double>(text.size()));
        rows += std::ssize(text);
      }
      ESP_ASSIGN_OR_RETURN(const double roof, gemm_rate(plan.spec, static_cast<int32_t>(rows)));
      const int turns = options.quick ? 10 : 50;
      std::chrono::steady_clock::time_point start;
      for (int turn = -5; turn < turns; ++turn) {
        if (turn == 0) start = std::chrono::steady_clock::now();
        ESP_ASSIGN_OR_RETURN(const auto vectors, encoder->encode(texts));
      }
      const double seconds = elapsed_since(start) / turns;
      const std::string name = "steps of " + std::to_string(count) + " texts of " +
                               (equal ? "" : "half to all of ") + std::to_string(tokens) +
                               " tokens";
      report({name, count / seconds, "texts/s"});
      report({name, work / seconds / 1e12, "TFLOP/s"});
      report({name, 100 * work / seconds / roof, "% of its GEMMs' rate"});
      report({name, roof / 1e12, "TFLOP/s of the GEMMs alone"});
    }
  }
  return Status();
}

// All texts at once through an engine, as ids.
Status run_engine(const TextsBench& options, const std::string& name,
                  const std::vector<std::vector<TokenId>>& texts, const ReportImagesRow& report) {
  ESP_ASSIGN_OR_RETURN(
      const auto engine,
      Engine::create({.model = {.model_path = options.config,
                                .dtype = options.dtype,
                                .load_format = LoadFormat::kDummy,
                                .skip_tokenizer_init = true},
                      .compute = {.device = "cuda"},
                      .schedule = {.max_queued_requests = static_cast<int32_t>(texts.size())},
                      .sampling = {.random_seed = options.seed}}));
  double best = 0;
  for (int turn = 0; turn < (options.quick ? 2 : 5); ++turn) {
    PendingRequests pending(static_cast<int32_t>(texts.size()));
    const auto start = std::chrono::steady_clock::now();
    for (const auto& text : texts) {
      GenerateRequest request{.input_ids = text, .embed = true};
      const auto rid =
          engine->submit(std::move(request), [&](TokenEvent&& event) { pending.add(event); });
      if (!rid) return rid.error();
    }
    ESP_RETURN_IF_ERROR(pending.wait());
    best = std::max(best, static_cast<double>(texts.size()) / elapsed_since(start));
  }
  report({name, best, "texts/s"});
  report({name, 1e3 * static_cast<double>(texts.size()) / best, "ms"});
  return Status();
}

}  // namespace

Status run_texts_bench(const TextsBench& options, const ReportImagesRow& report) {
  const auto wanted = [&](std::string_view part) {
    return options.only.empty() || options.only == part;
  };
  ESP_ASSIGN_OR_RETURN(const ModelInfo info, read_model_info({.path = options.config}));
  const int32_t tokens = std::min(kTextTokens, info.context_length);
  if (wanted("encoder")) ESP_RETURN_IF_ERROR(run_encoder(options, report));
  if (wanted("engine")) {
    ESP_RETURN_IF_ERROR(run_engine(options, "2048 texts of " + std::to_string(tokens) + " tokens",
                                   draw_texts(2048, tokens, tokens, info.vocab_size), report));
  }
  if (wanted("rerank")) {
    ESP_RETURN_IF_ERROR(run_engine(options, "a query with 1000 passages of about 200 tokens",
                                   draw_texts(1000, kPassageLeast, kPassageMost, info.vocab_size),
                                   report));
  }
  return Status();
}

}  // namespace espalier::bench
