#include "models/program/cpu_experts.h"

#include <algorithm>
#include <utility>

#include "kernels/activation/op.h"
#include "kernels/embedding/op.h"
#include "kernels/router/op.h"

namespace espalier::program {
namespace {

// The largest sizes of a program's experts.
struct Sizes {
  int64_t experts = 0, top_k = 0, hidden = 0, inner = 0;
};

Sizes sizes_of(const Program& program) {
  Sizes out;
  for (const Op& op : program.ops) {
    if (op.kind == OpKind::kMoeRoute)
      out.experts = std::max<int64_t>(out.experts, op.as<MoeRoute>().router.num_experts);
    if (op.kind != OpKind::kMoeExperts) continue;
    const auto& a = op.as<MoeExperts>();
    out.top_k = std::max<int64_t>(out.top_k, a.combine.top_k);
    out.hidden = std::max<int64_t>(out.hidden, a.gate_up.in_features);
    out.inner = std::max<int64_t>(out.inner, a.gate_up.out_features);
  }
  return out;
}

}  // namespace

Status allocate_floats(int64_t rows, int64_t width, espalier::Buffer& out) {
  ESP_ASSIGN_OR_RETURN(
      out, espalier::Buffer::allocate(static_cast<size_t>(rows * width) * sizeof(float)));
  return Status();
}

Status CpuExperts::reserve(const Program& program, int32_t max_tokens) {
  const Sizes sizes = sizes_of(program);
  if (sizes.experts == 0) return Status();
  // All rows may go to one expert, and few rows to as many experts as there are pairs.
  pass_rows_ =
      std::max(kernels::padded_group_rows(max_tokens),
               kernels::padded_group_rows(1) * std::min(sizes.experts, max_tokens * sizes.top_k));
  ESP_RETURN_IF_ERROR(allocate_floats(max_tokens, sizes.experts, logits_));
  ESP_RETURN_IF_ERROR(allocate_floats(pass_rows_, sizes.hidden, x_));
  ESP_RETURN_IF_ERROR(allocate_floats(pass_rows_, sizes.hidden, y_));
  ESP_RETURN_IF_ERROR(allocate_floats(pass_rows_, sizes.inner, inner_));
  const auto pairs = static_cast<size_t>(max_tokens * sizes.top_k);
  positions_.reserve(static_cast<size_t>(max_tokens));
  rows_.resize(pairs);
  slots_.resize(pairs);
  begins_.resize(static_cast<size_t>(sizes.experts) + 1);
  groups_.reserve(static_cast<size_t>(sizes.experts));
  return Status();
}

void CpuExperts::count_to(ExpertCounts& counts, const DecoderSpec& spec) {
  ExpertPlaces places = expert_places(spec);
  if (places.num_experts == 0) return;
  tally_ = std::make_shared<HostExpertTally>(static_cast<int32_t>(places.layers.size()),
                                             places.num_slots());
  counts.add(tally_, std::move(places));
}

std::span<const int32_t> CpuExperts::positions_of(const WantedRows& rows,
                                                  const ForwardBatch& batch) {
  positions_.clear();
  for (const WantedRows::Tail& tail : rows.tails()) {
    const auto first = batch.positions.begin() + tail.source_row;
    positions_.insert(positions_.end(), first, first + tail.count);
  }
  return positions_;
}

void CpuExperts::run(kernels::CpuBackend& backend, const ExpertsArgs& args) {
  std::fill_n(args.y, args.rows * args.op->down.out_features, 0.0f);
  sort_pairs(args);
  const auto count = static_cast<size_t>(args.op->gate_up.num_experts);
  for (size_t first = 0, last; first < count; first = last) {
    last = end_of_pass(first, count);
    run_pass(backend, args, first, last);
  }
}

// Fills begins_, rows_ and slots_.
void CpuExperts::sort_pairs(const ExpertsArgs& args) {
  const int64_t top_k = args.op->combine.top_k, pairs = args.rows * top_k;
  const int32_t first = args.op->gate_up.first_expert, count = args.op->gate_up.num_experts;
  const auto local = [&](int64_t pair) { return args.experts[pair] - first; };
  const auto is_here = [&](int64_t pair) { return local(pair) >= 0 && local(pair) < count; };
  std::ranges::fill(begins_, 0);
  for (int64_t i = 0; i < pairs; ++i)
    if (is_here(i)) ++begins_[static_cast<size_t>(local(i)) + 1];
  for (size_t i = 1; i < begins_.size(); ++i) begins_[i] += begins_[i - 1];
  // Each begin moves to its end, which is the next one's begin; they are moved back at last.
  for (int64_t i = 0; i < pairs; ++i) {
    if (!is_here(i)) {
      slots_[static_cast<size_t>(i)] = -1;
      continue;
    }
    const int32_t to = begins_[static_cast<size_t>(local(i))]++;
    rows_[static_cast<size_t>(to)] = static_cast<int32_t>(i / top_k);
    slots_[static_cast<size_t>(i)] = to;
  }
  std::shift_right(begins_.begin(), begins_.end(), 1);
  begins_[0] = 0;
}

// As many experts from `first` on as the buffers have room for.
size_t CpuExperts::end_of_pass(size_t first, size_t count) const {
  int64_t rows = 0;
  size_t last = first;
  for (; last < count; ++last) {
    rows += kernels::padded_group_rows(begins_[last + 1] - begins_[last]);
    if (rows > pass_rows_ && last > first) break;
  }
  return last;
}

// y += the results of experts [first, last). All of them are one grouped GEMM, then another, of
// which each thread takes a share: one wait for all instead of one for each expert.
void CpuExperts::run_pass(kernels::CpuBackend& backend, const ExpertsArgs& args, size_t first,
                          size_t last) {
  const int32_t begin = begins_[first], count = begins_[last] - begin;
  if (count == 0) return;
  const int64_t hidden = args.op->gate_up.in_features;
  kernels::gather_rows(backend, {.table = args.x,
                                 .type = DType::kFloat32,
                                 .dim = hidden,
                                 .ids = std::span<const int32_t>(rows_).subspan(
                                     static_cast<size_t>(begin), static_cast<size_t>(count)),
                                 .out = x_.as<float>(),
                                 .out_stride = hidden});
  run_gemms(backend, args, first, last);
  kernels::combine_experts(backend, {.x = y_.as<float>(),
                                     .slots = slots_.data(),
                                     .weights = args.pair_weights,
                                     .y = args.y,
                                     .rows = args.rows,
                                     .top_k = args.op->combine.top_k,
                                     .dim = hidden,
                                     .first_slot = begin,
                                     .num_slots = count});
}

// The matrices of those experts that have rows.
std::span<const kernels::LinearGroup> CpuExperts::groups(const ExpertsWeights& weights,
                                                         size_t first, size_t last,
                                                         kernels::PackedMatrix MlpWeights::*matrix,
                                                         std::vector<float> MlpWeights::*bias) {
  groups_.clear();
  for (size_t i = first; i < last; ++i) {
    const MlpWeights& expert = weights.experts[i];
    const int64_t rows = begins_[i + 1] - begins_[i];
    if (rows == 0) continue;
    const float* const vector = bias == nullptr ? nullptr : or_null(expert.*bias);
    groups_.push_back({.w = &(expert.*matrix), .rows = rows, .bias = vector});
  }
  return groups_;
}

void CpuExperts::show(InputObserver* observer, size_t first, size_t last,
                      MatrixInputs inputs) const {
  if (observer == nullptr) return;
  const int32_t first_expert = inputs.expert;
  for (size_t i = first; i < last; ++i) {
    inputs.rows = begins_[i + 1] - begins_[i];
    inputs.expert = first_expert + static_cast<int32_t>(i);
    if (inputs.rows > 0) observer->see(inputs);
    inputs.x += inputs.rows * inputs.stride;
  }
}

// y_ = each expert's MLP of its rows of x_.
void CpuExperts::run_gemms(kernels::CpuBackend& backend, const ExpertsArgs& args, size_t first,
                           size_t last) {
  const MoeExperts& op = *args.op;
  const int64_t rows = begins_[last] - begins_[first];
  const int64_t stride = op.activation ? op.gate_up.out_features : op.down.in_features;
  const kernels::LinearArgs into = {.x = x_.as<float>(),
                                    .x_stride = op.gate_up.in_features,
                                    .y = inner_.as<float>(),
                                    .y_stride = stride,
                                    .rows = rows};
  show(args.observer, first, last,
       {.weight = op.gate_up.weight,
        .expert = op.gate_up.first_expert,
        .x = into.x,
        .stride = into.x_stride,
        .columns = op.gate_up.in_features});
  const auto gate_up =
      groups(*args.weights, first, last, &MlpWeights::gate_up, &MlpWeights::gate_up_bias);
  if (op.activation) {
    kernels::linear_grouped(backend, gate_up, into);
    float* gate = inner_.as<float>();
    kernels::gated(backend, {.activation = op.activation->kind,
                             .limit = op.activation->limit,
                             .gate = gate,
                             .gate_stride = stride,
                             .up = op.activation->gated ? gate + op.activation->dim : nullptr,
                             .up_stride = stride,
                             .y = gate,
                             .y_stride = stride,
                             .rows = rows,
                             .dim = op.activation->dim});
  } else {
    kernels::linear_silu_mul_grouped(backend, gate_up, into);
  }
  show(args.observer, first, last,
       {.weight = op.down.weight,
        .expert = op.down.first_expert,
        .x = into.y,
        .stride = stride,
        .columns = op.down.in_features});
  kernels::linear_grouped(backend,
                          groups(*args.weights, first, last, &MlpWeights::down,
                                 op.down.bias ? &MlpWeights::down_bias : nullptr),
                          {.x = inner_.as<float>(),
                           .x_stride = stride,
                           .y = y_.as<float>(),
                           .y_stride = op.down.out_features,
                           .rows = rows});
}

}  // namespace espalier::program
