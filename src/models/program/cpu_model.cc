#include "models/program/cpu_model.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "models/model_plan.h"
#include "models/program/check.h"
#include "models/program/lower.h"
#include "models/program/partition.h"
#include "models/program/passes.h"

namespace espalier::program {
namespace {

// Rows of logits held at once for input log-probabilities: enough to keep the head's GEMM busy.
constexpr int64_t kLogitBlock = 32;

// linear_silu_mul() takes no bias.
bool gemm_takes(const Matmul& matmul, const Activation& activation) {
  return !matmul.adapters && activation.gated && !activation.gelu &&
         activation.kind == kernels::Activation::kSilu && !matmul.bias;
}

ModelInfo describe(const DecoderSpec& spec, const DecoderWeights& weights) {
  ModelInfo info = describe_model(spec);
  info.weight_bytes = weights.size_bytes();
  return info;
}

Status check_runs(const Program& program) {
  ESP_RETURN_IF_ERROR(check(program));
  for (const Op& op : program.ops) {
    // What pools a text is the executor: it sums rows over the steps of a text.
    if (op.kind == OpKind::kPool || cpu_op(op.kind) != nullptr) continue;
    return error(StatusCode::kUnimplemented, "{}: the CPU does not run the operation {}",
                 program.name, op_name(op.kind));
  }
  return Status();
}

}  // namespace

Program cpu_passes(Program program, bool adapters) {
  if (adapters) program = gain_adapters(std::move(program));
  program = fuse_activation(fuse_moe_experts(std::move(program)), gemm_takes);
  program = drop_unwanted_rows(fuse_residual(std::move(program)), Selection::kBeforeAttention);
  return remove_unused_buffers(std::move(program));
}

CpuModel::CpuModel(DecoderSpec spec, Program program, Storage storage, DecoderWeights weights,
                   std::unique_ptr<kernels::CpuBackend> backend, const CpuModelOptions& options)
    : spec_(std::move(spec)),
      program_(std::move(program)),
      storage_(std::move(storage)),
      weights_(std::move(weights)),
      backend_(std::move(backend)),
      info_(describe(spec_, weights_)),
      context_(spec_, program_, weights_, *backend_, options.collective),
      takes_adapters_(options.adapters) {
  bind();
}

Result<std::unique_ptr<CpuModel>> CpuModel::create(const DecoderSpec& whole,
                                                   const WeightTypes& types, WeightSource& source,
                                                   WorkPool& pool, const CpuModelOptions& options) {
  ESP_RETURN_IF_ERROR(validate(whole));
  const Ranks ranks = options.collective == nullptr ? Ranks() : options.collective->ranks();
  ESP_RETURN_IF_ERROR(check_partition(whole, ranks.num_ranks));
  DecoderSpec spec = local_spec(whole, ranks);
  Program program = partition(whole, ranks, RankPages::kShared, options.ranks_per_pool);
  if (options.rewrite) program = options.rewrite(std::move(program));
  program = cpu_passes(std::move(program), options.adapters);
  ESP_RETURN_IF_ERROR(check_runs(program));
  ESP_ASSIGN_OR_RETURN(auto backend, kernels::CpuBackend::create(pool));
  ESP_ASSIGN_OR_RETURN(
      DecoderWeights weights,
      load_weights(*backend, spec, partition_weights(whole, ranks), program, types, source));
  std::unique_ptr<CpuModel> model(new CpuModel(std::move(spec), std::move(program),
                                               {.whole = whole, .types = types, .ranks = ranks},
                                               std::move(weights), std::move(backend), options));
  if (options.hidden_states) {
    model->hidden_states_.emplace(model->program_, model->spec_.hidden_size);
    model->info_.returns_hidden_states = true;
  }
  if (options.expert_counts != nullptr && ranks.rank == 0) {
    model->context_.experts().count_to(*options.expert_counts, whole);
  }
  ESP_RETURN_IF_ERROR(model->reserve(1, 1));
  return model;
}

Result<std::vector<DecoderWeights>> CpuModel::read_weights(const OpenWeights& open) {
  const auto source = open(storage_.ranks, backend_->pool());
  std::vector<DecoderWeights> out;
  if (source == nullptr) {
    out.push_back({.type = weights_.type});  // load_adapter() reads it
    return out;
  }
  ESP_ASSIGN_OR_RETURN(
      out.emplace_back(),
      load_weights(*backend_, spec_, partition_weights(storage_.whole, storage_.ranks), program_,
                   storage_.types, *source));
  return out;
}

void CpuModel::bind() {
  for (const Op& op : program_.ops) {
    const bool cross = op.layer >= 0 && op.kind != OpKind::kAddControl &&
                       spec_.layers[static_cast<size_t>(op.layer)].attention.cross;
    ops_.push_back({cpu_op(op.kind), &op, rows_of(program_, op), cross});
  }
  sections_.output_begin = output_begin(program_);
  const auto is_pool = [](const BoundOp& bound) { return bound.op->kind == OpKind::kPool; };
  sections_.text_begin = static_cast<size_t>(std::ranges::find_if(ops_, is_pool) - ops_.begin());
  if (!spec_.kept_states.empty()) kept_states_ = find_buffer(program_, kKeptStates);
}

Status CpuModel::reserve(int32_t max_tokens, int32_t max_entries) {
  if (max_tokens < 1 || max_entries < 1) {
    return invalid_argument("a batch of {} tokens in {} entries is none", max_tokens, max_entries);
  }
  max_tokens_ = max_tokens;
  max_entries_ = max_entries;
  const int64_t block = std::min<int64_t>(kLogitBlock, max_tokens);
  const int64_t outputs = spec_.pooling ? max_tokens : std::max<int64_t>(block, max_entries);
  ESP_RETURN_IF_ERROR(context_.reserve(max_tokens, max_entries, outputs));
  picked_.reserve(static_cast<size_t>(outputs));
  if (spec_.pooling || !spec_.stage.samples) return Status();
  targets_.reserve(static_cast<size_t>(block));
  ESP_RETURN_IF_ERROR(allocate_floats(max_entries, spec_.vocab_size, logits_));
  return allocate_floats(block, spec_.vocab_size, block_logits_);
}

void CpuModel::embed(std::span<const TokenId> ids, const CpuView& out) {
  if (!has_vocabulary_part()) return embed_rows(*backend_, spec_, weights_, ids, out);
  const auto first = static_cast<TokenId>(storage_.ranks.begin(spec_.vocab_size));
  const auto count = static_cast<TokenId>(storage_.ranks.count(spec_.vocab_size));
  for (size_t i = 0; i < ids.size(); ++i) {
    const TokenId own = ids[i] - first;
    if (own < 0 || own >= count) continue;
    embed_rows(*backend_, spec_, weights_, {&own, 1},
               {out.data + static_cast<int64_t>(i) * out.stride, out.stride});
  }
}

void CpuModel::run(size_t first, size_t last) {
  for (size_t i = first; i < last; ++i) {
    const BoundOp& bound = ops_[i];
    if (bound.cross && context_.batch().cross_spans.empty()) continue;
    if (context_.num_rows(bound.rows) > 0) bound.run(context_, *bound.op);
  }
}

void CpuModel::run_outputs(std::span<const int32_t> rows, float* out) {
  context_.begin_outputs(rows, out);
  run(sections_.output_begin, sections_.text_begin);
}

ForwardOutput CpuModel::forward_stage(const ForwardBatch& batch, std::span<const TokenId> token_ids,
                                      const KvView& kv, const StageRows& rows,
                                      const InputLogitsSink& sink) {
  ESP_CHECK(batch.num_tokens() <= max_tokens_ &&
                batch.entries.size() <= static_cast<size_t>(max_entries_),
            "{} tokens in {} entries, reserved {} in {}", batch.num_tokens(), batch.entries.size(),
            max_tokens_, max_entries_);
  ESP_CHECK(token_ids.size() == batch.token_ids.size() &&
            batch.positions.size() == token_ids.size() &&
            std::ssize(kv.layers) == std::ssize(spec_.layers) - num_cross_layers(spec_));
  if (token_ids.empty() && rows.ranks == nullptr) return {};
  ESP_CHECK(spec_.stage.embeds == (rows.received == nullptr) &&
            !(spec_.stage.samples && rows.handed_on != nullptr));
  context_.begin(batch, token_ids, kv, {.stage = rows});
  if (takes_adapters_) context_.adapters().begin(adapters_, batch.entries, context_.wanted());
  run_layers(batch);
  const std::span<const float> states =
      hidden_states_ ? hidden_states_->states() : std::span<const float>();
  if (context_.wanted().num_rows() == 0 || !spec_.stage.samples) return {.hidden_states = states};
  if (spec_.pooling) return {.pooled_rows = pooled_rows(batch)};
  if (!states.empty()) take_final_states(batch);
  const std::span<const float> sampled = sample_logits(batch);
  input_logits(batch, sink);
  return {.sample_logits = sampled, .hidden_states = states};
}

// In front of each layer the states that entries ask for are copied.
void CpuModel::run_layers(const ForwardBatch& batch) {
  if (!hidden_states_ || !hidden_states_->begin(batch)) return run(0, sections_.output_begin);
  size_t done = 0;
  for (int32_t layer = 0; layer < hidden_states_->num_layers(); ++layer) {
    const size_t next = hidden_states_->first_op(layer);
    run(done, next);
    done = next;
    hidden_states_->take(batch, layer, context_.view(hidden_states_->hidden()));
  }
  run(done, sections_.output_begin);
}

// Those behind the final norm, some rows at a time.
void CpuModel::take_final_states(const ForwardBatch& batch) {
  hidden_states_->list_final_rows(batch, context_.wanted().tails());
  const auto most = static_cast<size_t>(std::min<int64_t>(kLogitBlock, max_tokens_));
  for (std::span<const int32_t> rows = hidden_states_->final_rows(); !rows.empty();) {
    const std::span<const int32_t> some = rows.first(std::min(most, rows.size()));
    context_.begin_outputs(some, nullptr);
    run(sections_.output_begin, hidden_states_->final_end());
    hidden_states_->take_final(some.size(), context_.view(hidden_states_->outputs()));
    rows = rows.subspan(some.size());
  }
}

Result<AdapterInfo> CpuModel::load_adapter(AdapterId id, const std::filesystem::path& folder,
                                           int32_t rank_max) {
  if (!takes_adapters_) return Model::load_adapter(id, folder, rank_max);
  ESP_ASSIGN_OR_RETURN(const PeftAdapter file, open_adapter(folder, rank_max));
  const AdaptedModules modules(weight_layout(spec_), program_);
  auto adapter = Adapter::make(file, modules, weights_.type);
  if (!adapter) return fail(adapter.error().with_context(folder.string()));
  const AdapterInfo info{.rank = file.rank_max(),
                         .num_modules = static_cast<int32_t>(file.modules().size()),
                         .size_bytes = (*adapter)->size_bytes()};
  adapters_.add(id, *std::move(adapter));
  return info;
}

std::vector<float> CpuModel::finish_pooled(std::span<const float> row) {
  const Op& pool = *ops_[sections_.text_begin].op;
  std::ranges::copy(row, context_.view(pool.outputs[0]).data);
  run(sections_.text_begin + 1, ops_.size());
  const Operand& result = ops_.back().op->outputs[0];
  const float* data = context_.view(result).data;
  return {data, data + result.columns};
}

std::span<const float> CpuModel::pooled_rows(const ForwardBatch& batch) {
  picked_.clear();
  for (const WantedRows::Tail& tail : context_.wanted().tails()) {
    const BatchEntry& entry = batch.entries[static_cast<size_t>(tail.entry)];
    ESP_CHECK(!entry.sample && entry.input_logprob_targets.empty(), "{} does not generate",
              spec_.architecture);
    for (int32_t i = 0; i < tail.count; ++i) picked_.push_back(tail.row + i);
  }
  run_outputs(picked_, nullptr);
  const CpuView rows = context_.view(ops_[sections_.text_begin].op->inputs[0]);
  return {rows.data, picked_.size() * static_cast<size_t>(spec_.hidden_size)};
}

std::span<const float> CpuModel::sample_logits(const ForwardBatch& batch) {
  picked_.clear();
  for (const WantedRows::Tail& tail : context_.wanted().tails()) {
    const BatchEntry& entry = batch.entries[static_cast<size_t>(tail.entry)];
    if (!entry.sample) continue;
    const int32_t last_known = tail.row + entry.last_known() - tail.first_token;
    picked_.push_back(last_known);
    for (int32_t k = 0; k < entry.num_draft_samples; ++k) {
      const auto at = static_cast<size_t>(entry.draft_samples_begin + k);
      picked_.push_back(last_known + 1 + batch.draft_samples[at]);
    }
  }
  const RankRows* const ranks = context_.given().stage.ranks;
  float* out = ranks != nullptr ? ranks->sample_logits : logits_.as<float>();
  if (!picked_.empty()) run_outputs(picked_, out);
  return {out, picked_.size() * static_cast<size_t>(spec_.vocab_size)};
}

void CpuModel::input_logits(const ForwardBatch& batch, const InputLogitsSink& sink) {
  picked_.clear();
  targets_.clear();
  const auto block = static_cast<size_t>(std::min<int64_t>(kLogitBlock, max_tokens_));
  for (const WantedRows::Tail& tail : context_.wanted().tails()) {
    const BatchEntry& entry = batch.entries[static_cast<size_t>(tail.entry)];
    for (size_t target = 0; target < entry.input_logprob_targets.size(); ++target) {
      const int32_t token = entry.input_logprob_begin + static_cast<int32_t>(target);
      targets_.push_back({tail.entry, static_cast<int32_t>(target)});
      picked_.push_back(tail.row + token - tail.first_token);
      if (picked_.size() == block) flush_input_logits(sink);
    }
  }
  flush_input_logits(sink);
}

void CpuModel::flush_input_logits(const InputLogitsSink& sink) {
  const float* logits = block_logits_.as<float>();
  if (!picked_.empty()) run_outputs(picked_, block_logits_.as<float>());
  for (size_t i = 0; i < picked_.size(); ++i) {
    const auto vocab = static_cast<size_t>(spec_.vocab_size);
    sink(targets_[i].entry, targets_[i].target, {logits + i * vocab, vocab});
  }
  picked_.clear();
  targets_.clear();
}

}  // namespace espalier::program
