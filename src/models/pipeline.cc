#include "models/pipeline.h"

#include <algorithm>
#include <string>
#include <utility>

#include "models/model_plan.h"
#include "models/program/partition.h"
#include "models/program/stages.h"
#include "tensor/park.h"

namespace espalier {
namespace {

// Tokens from which on a GEMM reads its weights for long enough to compute.
constexpr int32_t kTokensMin = 64;
// With so many micro-batches for each stage, stages wait for a fifth of a step at most.
constexpr int32_t kMicroBatchesPerStage = 4;

RankThreadsConfig threads_of(const PipelineConfig& config, int32_t stage) {
  const int32_t each = std::max(1, config.threads.count / config.num_stages);
  return {.count = each, .first_cpu = config.threads.first_cpu + stage * each};
}

}  // namespace

PipelineModel::PipelineModel(const DecoderSpec& spec, const PipelineConfig& config)
    : config_(config),
      spec_(spec),
      stages_(static_cast<size_t>(config.num_stages)),
      micro_batches_(config.micro_batch_tokens > 0 ? config.micro_batch_tokens : kTokensMin,
                     config.num_stages * kMicroBatchesPerStage, token_costs(spec)) {
  std::vector<WorkPool*> pools(stages_.size());
  for (int32_t i = 0; config.num_ranks == 1 && i < config.num_stages; ++i) {
    const RankThreadsConfig threads = threads_of(config, i);
    Stage& stage = stages_[static_cast<size_t>(i)];
    stage.pool = std::make_unique<WorkPool>(threads.count, threads.first_cpu);
    pools[static_cast<size_t>(i)] = stage.pool.get();
  }
  threads_ = std::make_unique<RankThreads>(config.num_stages, [pools](int32_t stage) {
    WorkPool* const pool = pools[static_cast<size_t>(stage)];
    if (pool != nullptr) pool->bind_caller();
  });
}

PipelineModel::~PipelineModel() = default;

Result<std::unique_ptr<Model>> PipelineModel::create(const DecoderSpec& spec,
                                                     const WeightTypes& types,
                                                     const PipelineConfig& config,
                                                     const OpenWeights& open) {
  ESP_RETURN_IF_ERROR(validate(spec));
  ESP_RETURN_IF_ERROR(program::check_partition(spec, config.num_ranks));
  ESP_RETURN_IF_ERROR(program::check_stages(spec, config.num_stages));
  std::unique_ptr<PipelineModel> model(new PipelineModel(spec, config));
  ESP_RETURN_IF_ERROR(model->load(types, open));
  return model;
}

Status PipelineModel::each(const std::function<Status(int32_t)>& fn) {
  std::vector<Status> failures(stages_.size());
  threads_->run([&](int32_t index) { failures[static_cast<size_t>(index)] = fn(index); });
  for (size_t i = 0; i < failures.size(); ++i) {
    if (!failures[i].ok()) return failures[i].with_context("stage " + std::to_string(i));
  }
  return Status();
}

// Of all ranks of all stages the first reports how far it has come.
OpenWeights PipelineModel::open_for(int32_t index, const OpenWeights& open) const {
  return [this, index, &open](const Ranks& ranks, WorkPool& threads) {
    const Ranks all{.rank = index * config_.num_ranks + ranks.rank,
                    .num_ranks = config_.num_stages * config_.num_ranks};
    return open(all, threads);
  };
}

Status PipelineModel::load_stage(int32_t index, const WeightTypes& types, const OpenWeights& open) {
  Stage& stage = stages_[static_cast<size_t>(index)];
  const OpenWeights own = open_for(index, open);
  if (config_.num_ranks > 1) {
    ESP_ASSIGN_OR_RETURN(stage.model,
                         TensorParallelModel::create(stage.spec, types, config_.num_ranks,
                                                     threads_of(config_, index), own));
    return Status();
  }
  const auto source = own({}, *stage.pool);
  ESP_ASSIGN_OR_RETURN(stage.model,
                       program::CpuModel::create(stage.spec, types, *source, *stage.pool));
  return Status();
}

Status PipelineModel::load(const WeightTypes& types, const OpenWeights& open) {
  std::vector<DecoderSpec> specs = program::divide_layers(spec_, config_.num_stages);
  for (size_t i = 0; i < stages_.size(); ++i) stages_[i].spec = std::move(specs[i]);
  ESP_RETURN_IF_ERROR(each([&](int32_t index) { return load_stage(index, types, open); }));
  info_ = describe_model(spec_);
  for (const Stage& stage : stages_) info_.weight_bytes += stage.model->info().weight_bytes;
  return reserve(1, 1);
}

// No stage takes its new weights before all have read theirs.
Status PipelineModel::replace_weights(const OpenWeights& open) {
  std::vector<std::vector<DecoderWeights>> weights(stages_.size());
  ESP_RETURN_IF_ERROR(each([&](int32_t index) -> Status {
    const auto at = static_cast<size_t>(index);
    ESP_ASSIGN_OR_RETURN(weights[at], stages_[at].model->read_weights(open_for(index, open)));
    return Status();
  }));
  for (size_t i = 0; i < stages_.size(); ++i) stages_[i].model->set_weights(std::move(weights[i]));
  return Status();
}

Status PipelineModel::reserve(int32_t max_tokens, int32_t max_entries) {
  for (Stage& stage : stages_) {
    ESP_RETURN_IF_ERROR(stage.model->reserve(max_tokens, max_entries));
    if (stage.spec.stage.samples) continue;
    ESP_ASSIGN_OR_RETURN(stage.rows, espalier::Buffer::allocate(
                                         static_cast<size_t>(max_tokens) *
                                         static_cast<size_t>(spec_.hidden_size) * sizeof(float)));
  }
  const auto width = static_cast<size_t>(spec_.pooling ? spec_.hidden_size : spec_.vocab_size);
  const auto rows = static_cast<size_t>(spec_.pooling ? max_tokens : max_entries);
  (spec_.pooling ? pooled_rows_ : sample_logits_).reserve(rows * width);
  return Status();
}

void PipelineModel::take_layers(const KvView& kv) {
  for (Stage& stage : stages_) {
    const auto first = kv.layers.begin() + stage.spec.stage.first_layer;
    stage.kv.page_size = kv.page_size;
    stage.kv.layers.assign(first, first + std::ssize(stage.spec.layers));
  }
}

ForwardOutput PipelineModel::forward(const ForwardBatch& batch, std::span<const TokenId> token_ids,
                                     const KvView& kv, const InputLogitsSink& input_logits) {
  if (token_ids.empty()) return {};
  micro_batches_.cut(batch, kv.page_size);
  take_layers(kv);
  sample_logits_.clear();
  pooled_rows_.clear();
  for (Stage& stage : stages_) stage.handed_on.store(0);
  const auto run = [&](int32_t index) { run_stage(index, token_ids, input_logits); };
  threads_->run(std::cref(run));
  return {.sample_logits = sample_logits_, .pooled_rows = pooled_rows_};
}

void PipelineModel::run_stage(int32_t index, std::span<const TokenId> token_ids,
                              const InputLogitsSink& sink) {
  Stage& stage = stages_[static_cast<size_t>(index)];
  Stage* const before = index > 0 ? &stages_[static_cast<size_t>(index - 1)] : nullptr;
  const bool samples = stage.spec.stage.samples;
  for (uint32_t i = 0; i < micro_batches_.size(); ++i) {
    const MicroBatch& part = micro_batches_[i];
    while (before != nullptr && before->handed_on.load() <= i)
      wait_for_change(before->handed_on, i, before->parked);
    const int64_t offset = int64_t{part.first_token} * spec_.hidden_size;
    const StageRows rows{.received = before ? before->rows.as<float>() + offset : nullptr,
                         .handed_on = samples ? nullptr : stage.rows.as<float>() + offset};
    const auto ids = token_ids.subspan(static_cast<size_t>(part.first_token),
                                       static_cast<size_t>(part.batch.num_tokens()));
    const auto of_part = [&](int32_t entry, int32_t target, std::span<const float> logits) {
      const MicroBatch::Origin& origin = part.origins[static_cast<size_t>(entry)];
      sink(origin.entry, origin.first_target + target, logits);
    };
    const ForwardOutput output =
        stage.model->forward_stage(part.batch, ids, stage.kv, rows, of_part);
    if (samples) keep_output(output);
    stage.handed_on.fetch_add(1);
    wake_all(stage.handed_on, stage.parked);
  }
}

void PipelineModel::keep_output(const ForwardOutput& output) {
  sample_logits_.insert(sample_logits_.end(), output.sample_logits.begin(),
                        output.sample_logits.end());
  pooled_rows_.insert(pooled_rows_.end(), output.pooled_rows.begin(), output.pooled_rows.end());
}

std::vector<float> PipelineModel::finish_pooled(std::span<const float> row) {
  return stages_.back().model->finish_pooled(row);
}

}  // namespace espalier
