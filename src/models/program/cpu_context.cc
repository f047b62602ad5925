#include "models/program/cpu_context.h"

#include <algorithm>

#include "kernels/linear/op.h"

namespace espalier::program {
namespace {

// Buffers hold float32 or int32.
constexpr size_t kElementBytes = 4;

// The inputs of an operation's widest GEMM; 0 where it has none.
int64_t widest_input(const Op& op) {
  switch (op.kind) {
    case OpKind::kMatmul:
      return op.as<Matmul>().in_features;
    case OpKind::kHeadMatmul:
      return op.as<HeadMatmul>().in_features;
    case OpKind::kMoeRoute:
      return op.as<MoeRoute>().in_features;
    case OpKind::kMoeExperts:
      return std::max(op.as<MoeExperts>().gate_up.in_features,
                      op.as<MoeExperts>().down.in_features);
    default:
      return 0;
  }
}

}  // namespace

CpuContext::CpuContext(const DecoderSpec& spec, const Program& program,
                       const DecoderWeights& weights, kernels::CpuBackend& backend,
                       Collective* collective)
    : spec_(spec),
      program_(program),
      weights_(weights),
      backend_(backend),
      collective_(collective),
      tokens_(spec),
      views_(program.buffers.size()),
      ropes_(spec) {
  if (const size_t begin = output_begin(program); begin < program.ops.size()) {
    const auto is_output = [&](const Op& op) {
      return espalier::program::rows_of(program, op).count == RowCount::kOutputs;
    };
    const auto last = std::find_if(program.ops.rbegin(), program.ops.rend(), is_output);
    last_output_ = last->outputs[0].buffer;
  }
}

int64_t CpuContext::max_rows(const Rows& rows) const {
  switch (rows.count) {
    case RowCount::kTokens:
    case RowCount::kWanted:
    case RowCount::kRankTokens:  // those of a step, whichever rank has them
    case RowCount::kRankWanted:
      return int64_t{max_tokens_} * rows.per_row;
    case RowCount::kOutputs:
      return max_output_rows_ * rows.per_row;
    case RowCount::kTexts:
      return rows.per_row;
  }
  return 0;
}

Status CpuContext::reserve(int32_t max_tokens, int32_t max_entries, int64_t output_rows) {
  max_tokens_ = max_tokens;
  max_output_rows_ = output_rows;
  ESP_RETURN_IF_ERROR(allocate_storages());
  ESP_RETURN_IF_ERROR(ropes_.reserve(max_tokens));
  ESP_RETURN_IF_ERROR(experts_.reserve(program_, max_tokens));
  ESP_RETURN_IF_ERROR(reserve_linear());
  wanted_.reserve(static_cast<size_t>(max_entries));
  adapters_.reserve(static_cast<size_t>(max_entries));
  if (is_encoder(spec_)) inputs_.rows.reserve(static_cast<size_t>(max_tokens));
  if (spec_.texts) inputs_.reaches.reserve(static_cast<size_t>(max_tokens));
  if (spec_.images && spec_.images->bidirectional)
    inputs_.pictures.reserve(static_cast<size_t>(max_tokens));
  tokens_.reserve(max_tokens, collective_ != nullptr);
  place_buffers();
  return Status();
}

Status CpuContext::allocate_storages() {
  std::vector<size_t> sizes(static_cast<size_t>(program_.num_storages));
  for (const Buffer& buffer : program_.buffers) {
    size_t& size = sizes[static_cast<size_t>(buffer.storage)];
    size = std::max(size, static_cast<size_t>(max_rows(buffer.rows) * buffer.columns));
  }
  storages_.clear();
  for (const size_t size : sizes) {
    ESP_ASSIGN_OR_RETURN(espalier::Buffer storage,
                         espalier::Buffer::allocate(size * kElementBytes));
    storages_.push_back(std::move(storage));
  }
  return Status();
}

Status CpuContext::reserve_linear() {
  int64_t widest = spec_.hidden_size;
  for (const Op& op : program_.ops) widest = std::max(widest, widest_input(op));
  return backend_.reserve_linear(std::max<int64_t>(max_tokens_, experts_.max_pass_rows()), widest);
}

void CpuContext::place_buffers() {
  for (size_t i = 0; i < views_.size(); ++i) {
    const Buffer& buffer = program_.buffers[i];
    views_[i] = {storages_[static_cast<size_t>(buffer.storage)].as<float>(), buffer.columns};
  }
}

void CpuContext::begin(const ForwardBatch& batch, std::span<const TokenId> token_ids,
                       const KvView& kv, const GivenRows& given) {
  inputs_.given = given;
  batch_ = &batch;
  kv_ = &kv;
  tokens_.begin(batch, token_ids);
  output_rows_ = {};
  wanted_.plan(batch.entries);
  place_buffers();
  ropes_.fill(batch, given.places);
}

void CpuContext::begin_outputs(std::span<const int32_t> rows, float* out) {
  output_rows_ = rows;
  CpuView& last = views_[static_cast<size_t>(last_output_)];
  const Buffer& buffer = program_.buffer(last_output_);
  last.data = out != nullptr ? out : storages_[static_cast<size_t>(buffer.storage)].as<float>();
}

int64_t CpuContext::num_rows(const Rows& rows) const {
  switch (rows.count) {
    case RowCount::kTokens:
      return std::ssize(token_ids()) * rows.per_row;
    case RowCount::kWanted:
      return int64_t{wanted_.num_rows()} * rows.per_row;
    case RowCount::kOutputs:
      return std::ssize(output_rows_) * rows.per_row;
    case RowCount::kTexts:
      return rows.per_row;
    case RowCount::kRankTokens:
      return std::ssize(inputs_.given.stage.ranks->positions) * rows.per_row;
    case RowCount::kRankWanted:
      return std::ssize(inputs_.given.stage.ranks->wanted_positions) * rows.per_row;
  }
  return 0;
}

CpuView CpuContext::view(const Operand& operand) const {
  CpuView view = views_[static_cast<size_t>(operand.buffer)];
  view.data += operand.column;
  return view;
}

int32_t* CpuContext::ints(const Operand& operand) const {
  return reinterpret_cast<int32_t*>(view(operand).data);
}

void CpuContext::alias(const Operand& to, const Operand& from) {
  views_[static_cast<size_t>(to.buffer)] = view(from);
}

CpuContext::SeeingRows CpuContext::each_row(RowCount count, bool windowed, int32_t reach) {
  inputs_.rows.clear();
  inputs_.reaches.clear();
  for (const BatchEntry& entry : windowed ? inputs_.given.windows : entries(count)) {
    const int32_t first = entry.prefix_len, last = first + entry.num_query_tokens - 1;
    BatchEntry row = entry;
    row.num_query_tokens = 1;
    for (int32_t at = first; at <= last; ++at) {
      row.query_begin = entry.query_begin + at - first;
      row.prefix_len = reach > 0 ? std::min(last, at + reach) : last;
      inputs_.rows.push_back(row);
      if (reach > 0) inputs_.reaches.push_back(row.prefix_len - std::max(0, at - reach) + 1);
    }
  }
  return {inputs_.rows, inputs_.reaches};
}

const PictureRows& CpuContext::picture_rows(RowCount count, int32_t sliding_window) {
  inputs_.pictures.begin(sliding_window);
  const std::span<const BatchEntry> of = entries(count);
  const bool all = of.data() == batch_->entries.data();
  for (size_t i = 0; i < of.size(); ++i) {
    const int32_t first_token = all ? of[i].query_begin : wanted_.tails()[i].source_row;
    inputs_.pictures.add(of[i], first_token, batch_->embedding_spans);
  }
  return inputs_.pictures;
}

std::span<const BatchEntry> CpuContext::entries(RowCount count) const {
  const bool all = count == RowCount::kTokens || wanted_.num_rows() == std::ssize(token_ids());
  return all ? std::span<const BatchEntry>(batch_->entries) : wanted_.entries();
}

}  // namespace espalier::program
