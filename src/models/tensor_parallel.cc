#include "models/tensor_parallel.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "models/model_plan.h"
#include "models/program/partition.h"

namespace espalier {
namespace {

// A model's heads, which ranks divide; fewer heads than ranks are shared by neighbours.
struct KvHeads {
  int32_t all = 0;
  int32_t first_of(int32_t rank, int32_t num_ranks) const {
    return static_cast<int32_t>(int64_t{all} * rank / num_ranks);
  }
  int32_t of_a_rank(int32_t num_ranks) const { return std::max(all / num_ranks, 1); }
};

// The rank's heads of a layer that has the heads of all ranks of this process.
KvView::Layer heads_of(const KvView::Layer& whole, const KvHeads& heads, const Ranks& ranks,
                       int32_t first_rank) {
  if (whole.kind == KvLayerKind::kLatent) return whole;  // it belongs to all heads
  KvView::Layer out = whole;
  const int64_t first =
      heads.first_of(ranks.rank, ranks.num_ranks) - heads.first_of(first_rank, ranks.num_ranks);
  const int64_t offset = first * whole.head_stride * kv_element_bytes(whole.type);
  out.k = static_cast<std::byte*>(whole.k) + offset;
  out.v = static_cast<std::byte*>(whole.v) + offset;
  out.num_kv_heads = heads.of_a_rank(ranks.num_ranks);
  return out;
}

}  // namespace

TensorParallelModel::TensorParallelModel(int32_t num_ranks, const RankThreadsConfig& config,
                                         RankGroup* group)
    : ranks_(static_cast<size_t>(num_ranks)) {
  const int32_t each = std::max(1, config.count / num_ranks);
  for (int32_t rank = 0; rank < num_ranks; ++rank) {
    ranks_[static_cast<size_t>(rank)].threads =
        std::make_unique<WorkPool>(each, config.first_cpu + rank * each);
  }
  std::vector<WorkPool*> threads;
  for (const Rank& rank : ranks_) threads.push_back(rank.threads.get());
  if (group == nullptr) own_group_ = std::make_unique<ThreadCollectives>(threads);
  group_ = group == nullptr ? own_group_.get() : group;
  threads_ = std::make_unique<RankThreads>(
      num_ranks, [threads](int32_t rank) { threads[static_cast<size_t>(rank)]->bind_caller(); });
}

TensorParallelModel::~TensorParallelModel() = default;

Result<std::unique_ptr<TensorParallelModel>> TensorParallelModel::create(
    const DecoderSpec& spec, const WeightTypes& types, int32_t num_ranks,
    const RankThreadsConfig& threads, const OpenWeights& open, const RankExperts& experts) {
  ESP_RETURN_IF_ERROR(validate(spec));
  ESP_RETURN_IF_ERROR(program::check_partition(spec, num_ranks));
  std::unique_ptr<TensorParallelModel> model(new TensorParallelModel(num_ranks, threads, nullptr));
  ESP_RETURN_IF_ERROR(model->load(spec, types, open, experts));
  return model;
}

Result<std::unique_ptr<StageModel>> TensorParallelModel::create_part(
    const DecoderSpec& spec, const WeightTypes& types, RankGroup& group,
    const RankThreadsConfig& threads, const OpenWeights& open, const RankExperts& experts) {
  ESP_RETURN_IF_ERROR(validate(spec));
  ESP_RETURN_IF_ERROR(program::check_partition(spec, group.rank(0).ranks().num_ranks));
  std::unique_ptr<TensorParallelModel> model(
      new TensorParallelModel(group.size(), threads, &group));
  ESP_RETURN_IF_ERROR(model->load(spec, types, open, experts));
  return model;
}

Status TensorParallelModel::load(const DecoderSpec& spec, const WeightTypes& types,
                                 const OpenWeights& open, const RankExperts& experts) {
  ESP_RETURN_IF_ERROR(each([&](int32_t index) -> Status {
    Rank& rank = ranks_[static_cast<size_t>(index)];
    Collective& collective = group_->rank(index);
    const auto source = open(collective.ranks(), *rank.threads);
    ESP_ASSIGN_OR_RETURN(rank.model, program::CpuModel::create(spec, types, *source, *rank.threads,
                                                               {.collective = &collective,
                                                                .ranks_per_pool = group_->size(),
                                                                .expert_counts = experts.counts}));
    return Status();
  }));
  if (experts.rebalance.num_iterations > 0) {
    ESP_RETURN_IF_ERROR(each([&](int32_t index) {
      return ranks_[static_cast<size_t>(index)].model->reserve_spare_expert();
    }));
    balancer_ = std::make_unique<ExpertBalancer>(experts.rebalance, *experts.counts);
  }
  info_ = describe_model(spec);
  for (const Rank& rank : ranks_) info_.weight_bytes += rank.model->info().weight_bytes;
  if (spec.whole_attention) {
    info_.num_loaded_parameters =
        program::num_loaded_parameters(spec, group_->rank(0).ranks().num_ranks);
    steps_ = std::make_unique<RankSteps>(group_->size());
    return Status();
  }
  num_kv_heads_ = info_.num_kv_heads;
  const KvHeads heads{num_kv_heads_};
  const int32_t num_ranks = group_->rank(0).ranks().num_ranks, first = group_->first_rank();
  info_.num_kv_heads = heads.first_of(first + group_->size() - 1, num_ranks) -
                       heads.first_of(first, num_ranks) + heads.of_a_rank(num_ranks);
  return Status();
}

Status TensorParallelModel::each(const std::function<Status(int32_t)>& fn) {
  std::vector<Status> failures(ranks_.size());
  threads_->run([&](int32_t index) { failures[static_cast<size_t>(index)] = fn(index); });
  for (Status& failure : failures) {
    if (!failure.ok()) return std::move(failure);
  }
  return Status();
}

// No rank takes its new weights before all have read theirs.
Result<std::vector<DecoderWeights>> TensorParallelModel::read_weights(const OpenWeights& open) {
  std::vector<DecoderWeights> out(ranks_.size());
  ESP_RETURN_IF_ERROR(each([&](int32_t index) -> Status {
    const auto at = static_cast<size_t>(index);
    ESP_ASSIGN_OR_RETURN(std::vector<DecoderWeights> weights, ranks_[at].model->read_weights(open));
    out[at] = std::move(weights.front());
    return Status();
  }));
  return out;
}

void TensorParallelModel::set_weights(std::vector<DecoderWeights> weights) {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    std::vector<DecoderWeights> own;
    own.push_back(std::move(weights[i]));
    ranks_[i].model->set_weights(std::move(own));
  }
}

// Counts that cannot be read leave experts where they are.
void TensorParallelModel::move_experts() {
  const auto moves = balancer_->next();
  Status status = moves ? Status() : moves.error();
  if (status.ok() && moves->empty()) return;
  if (status.ok()) {
    for (const LayerMove& move : *moves) move_experts(move);
    status = balancer_->moved(*moves);
  }
  if (!status.ok()) log_warning("experts stay error=\"{}\"", status.message());
}

// The same part of each expert moves: among ranks that have the same features of it.
void TensorParallelModel::move_experts(const LayerMove& move) {
  const int32_t num_slices = group_->size() / move.shape.num_groups;
  for (const std::vector<SlotCopy>& step : move.copies) {
    threads_->run([&](int32_t index) {
      for (const SlotCopy& copy : step) {
        if (move.shape.group_of(copy.to) != index / num_slices) continue;
        const int32_t source = move.shape.group_of(copy.from) * num_slices + index % num_slices;
        ranks_[static_cast<size_t>(index)].model->copy_expert(
            move.layer, copy, *ranks_[static_cast<size_t>(source)].model);
      }
    });
  }
  for (Rank& rank : ranks_) rank.model->set_expert_slots(move.layer, move.slots);
}

Status TensorParallelModel::reserve(int32_t max_tokens, int32_t max_entries) {
  for (Rank& rank : ranks_) ESP_RETURN_IF_ERROR(rank.model->reserve(max_tokens, max_entries));
  if (steps_ == nullptr) return Status();
  return steps_->reserve(max_entries, info_.pooled ? 0 : info_.vocab_size);
}

ForwardOutput TensorParallelModel::forward_stage(const ForwardBatch& batch,
                                                 std::span<const TokenId> token_ids,
                                                 const KvView& kv, const StageRows& rows,
                                                 const InputLogitsSink& input_logits) {
  if (balancer_ != nullptr) move_experts();
  if (steps_ != nullptr) return forward_own_rows(batch, token_ids, kv, input_logits);
  ForwardOutput out;
  const auto run = [&](int32_t index) {
    Rank& rank = ranks_[static_cast<size_t>(index)];
    const Ranks ranks = group_->rank(index).ranks();
    rank.kv.page_size = kv.page_size;
    rank.kv.layers.clear();
    for (const KvView::Layer& layer : kv.layers) {
      rank.kv.layers.push_back(heads_of(layer, {num_kv_heads_}, ranks, group_->first_rank()));
    }
    if (index == 0) {
      out = rank.model->forward_stage(batch, token_ids, rank.kv, rows, input_logits);
    } else {
      rank.model->forward_stage(batch, token_ids, rank.kv, {.received = rows.received},
                                [](int32_t, int32_t, std::span<const float>) {});
    }
  };
  threads_->run(std::cref(run));
  return out;
}

ForwardOutput TensorParallelModel::forward_own_rows(const ForwardBatch& batch,
                                                    std::span<const TokenId> token_ids,
                                                    const KvView& kv,
                                                    const InputLogitsSink& input_logits) {
  steps_->begin(batch, token_ids, kv);
  const auto run = [&](int32_t index) {
    RankSteps::Part& part = steps_->part(index);
    part.output = ranks_[static_cast<size_t>(index)].model->forward_stage(
        *part.batch, part.token_ids, part.kv, {.ranks = &part.rows},
        steps_->sink_of(index, input_logits));
  };
  threads_->run(std::cref(run));
  return steps_->output();
}

// Each rank writes the rows of its part of the vocabulary.
void TensorParallelModel::embed(std::span<const TokenId> ids, const program::CpuView& out) {
  if (head_matrix() != nullptr) return ranks_[0].model->embed(ids, out);
  threads_->run([&](int32_t index) { ranks_[static_cast<size_t>(index)].model->embed(ids, out); });
}

std::vector<float> TensorParallelModel::finish_pooled(std::span<const float> row) {
  return ranks_[0].model->finish_pooled(row);
}

}  // namespace espalier
