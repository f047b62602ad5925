// The MLP blocks of DecoderModel: dense, or a mixture of experts.
#include <algorithm>
#include <cmath>

#include "kernels/activation/op.h"
#include "kernels/embedding/op.h"
#include "kernels/linear/op.h"
#include "kernels/router/op.h"
#include "models/decoder_model.h"

namespace espalier {
// x += mlp(norm(x))
void DecoderModel::run_mlp(size_t layer, int64_t rows) {
  const LayerSpec& spec = spec_.layers[layer];
  const LayerWeights& weights = weights_.layers[layer];
  const bool drop = spec_.faults.drop_mlp_residual;
  const bool direct = adds_directly(spec.mlp_output_norm) && !spec.experts;
  const float* x = normed(spec.post_attention_norm, weights.post_attention_norm, rows);
  if (spec.experts) {
    run_experts(*spec.experts, weights, x, rows);
  } else {
    apply_mlp(spec.mlp, weights.mlp, x, rows, direct ? hidden_.as<float>() : branch_.as<float>(),
              direct && !drop);
  }
  if (!direct) add_branch(spec.mlp_output_norm, weights.mlp_output_norm, rows, drop);
}

void DecoderModel::apply_mlp(const MlpSpec& spec, const MlpWeights& weights, const float* x,
                             int64_t rows, float* y, bool accumulate) {
  const int64_t ffn = spec.intermediate_size;
  float* inner = mlp_.as<float>();
  kernels::LinearArgs args{
      .x = x, .x_stride = spec_.hidden_size, .y = inner, .y_stride = ffn, .rows = rows};
  int64_t stride = ffn;
  if (weights.gate_up.gate_up()) {
    kernels::linear_silu_mul(*backend_, weights.gate_up, args);
  } else {
    args.y_stride = stride = weights.gate_up.out_features();
    args.bias = or_null(weights.gate_up_bias);
    kernels::linear(*backend_, weights.gate_up, args);
    activate(spec, rows);
  }
  kernels::linear(*backend_, weights.down,
                  {.x = inner,
                   .x_stride = stride,
                   .y = y,
                   .y_stride = spec_.hidden_size,
                   .rows = rows,
                   .bias = or_null(weights.down_bias),
                   .accumulate = accumulate});
}

// mlp_ = activation(gate) * up, rows of [gate; up]; or activation(up) of rows of up.
void DecoderModel::activate(const MlpSpec& spec, int64_t rows) {
  const int64_t ffn = spec.intermediate_size, stride = (spec.gated ? 2 : 1) * ffn;
  float* gate = mlp_.as<float>();
  if (spec_.faults.linear_activation) {
    for (int64_t row = 0; spec.gated && row < rows; ++row) {
      float* values = gate + row * stride;
      for (int64_t i = 0; i < ffn; ++i) values[i] *= values[ffn + i];
    }
    return;
  }
  kernels::gated(*backend_, {.activation = spec.activation,
                             .limit = spec.activation_limit,
                             .gate = gate,
                             .gate_stride = stride,
                             .up = spec.gated ? gate + ffn : nullptr,
                             .up_stride = stride,
                             .y = gate,
                             .y_stride = stride,
                             .rows = rows,
                             .dim = ffn});
}

// A row's experts add to it in ascending order, so the sum does not depend on the other rows.
void DecoderModel::run_experts(const ExpertsSpec& spec, const LayerWeights& weights, const float* x,
                               int64_t rows) {
  std::fill_n(branch_.as<float>(), rows * spec_.hidden_size, 0.0f);
  if (!spec_.faults.drop_experts) {
    choose_experts(spec, weights.experts, x, rows);
    const auto count = static_cast<size_t>(spec.router.num_experts);
    for (size_t first = 0, last; first < count; first = last) {
      last = end_of_pass(first, count);
      run_pass(spec, weights.experts, x, rows, first, last);
    }
  }
  if (spec.shared && !spec_.faults.drop_shared_expert) add_shared(spec, weights, x, rows);
}

// As many experts from `first` on as the buffers have room for.
size_t DecoderModel::end_of_pass(size_t first, size_t count) const {
  int64_t rows = 0;
  size_t last = first;
  for (; last < count; ++last) {
    rows += kernels::padded_group_rows(expert_begin_[last + 1] - expert_begin_[last]);
    if (rows > pass_rows_ && last > first) break;
  }
  return last;
}

// branch_ += what experts [first, last) make of their rows of x. All of them are one product, then
// another, of which each thread takes a share: one wait for all instead of one for each expert.
void DecoderModel::run_pass(const ExpertsSpec& spec, const ExpertsWeights& weights, const float* x,
                            int64_t rows, size_t first, size_t last) {
  const int32_t begin = expert_begin_[first], count = expert_begin_[last] - begin;
  if (count == 0) return;
  kernels::gather_rows(*backend_,
                       {.table = x,
                        .type = DType::kFloat32,
                        .dim = spec_.hidden_size,
                        .ids = std::span<const int32_t>(expert_rows_)
                                   .subspan(static_cast<size_t>(begin), static_cast<size_t>(count)),
                        .out = expert_x_.as<float>(),
                        .out_stride = spec_.hidden_size});
  apply_experts(spec.expert, weights, first, last, count);
  kernels::combine_experts(*backend_, {.x = expert_y_.as<float>(),
                                       .slots = expert_slots_.data(),
                                       .weights = expert_weights_.as<float>(),
                                       .y = branch_.as<float>(),
                                       .rows = rows,
                                       .top_k = spec.router.top_k,
                                       .dim = spec_.hidden_size,
                                       .first_slot = begin,
                                       .num_slots = count});
}

// expert_y_ = each expert's MLP of its rows of expert_x_.
void DecoderModel::apply_experts(const MlpSpec& spec, const ExpertsWeights& weights, size_t first,
                                 size_t last, int64_t rows) {
  const auto grouped = [&](kernels::PackedMatrix MlpWeights::*matrix,
                           std::vector<float> MlpWeights::*bias) {
    expert_groups_.clear();
    for (size_t i = first; i < last; ++i) {
      const MlpWeights& expert = weights.experts[i];
      const int64_t taken = expert_begin_[i + 1] - expert_begin_[i];
      if (taken == 0) continue;
      expert_groups_.push_back(
          {.w = &(expert.*matrix), .rows = taken, .bias = or_null(expert.*bias)});
    }
    return std::span<const kernels::LinearGroup>(expert_groups_);
  };
  const kernels::PackedMatrix& gate_up = weights.experts[first].gate_up;
  const int64_t hidden = spec_.hidden_size, stride = gate_up.out_features();
  const kernels::LinearArgs into = {.x = expert_x_.as<float>(),
                                    .x_stride = hidden,
                                    .y = mlp_.as<float>(),
                                    .y_stride = stride,
                                    .rows = rows};
  const auto groups = grouped(&MlpWeights::gate_up, &MlpWeights::gate_up_bias);
  if (gate_up.gate_up()) {
    kernels::linear_silu_mul_grouped(*backend_, groups, into);
  } else {
    kernels::linear_grouped(*backend_, groups, into);
    activate(spec, rows);
  }
  kernels::linear_grouped(*backend_, grouped(&MlpWeights::down, &MlpWeights::down_bias),
                          {.x = mlp_.as<float>(),
                           .x_stride = stride,
                           .y = expert_y_.as<float>(),
                           .y_stride = hidden,
                           .rows = rows});
}

// Fills expert_begin_ and expert_rows_, the rows of each expert in order, and expert_slots_, where
// each choice lies among them.
void DecoderModel::choose_experts(const ExpertsSpec& spec, const ExpertsWeights& weights,
                                  const float* x, int64_t rows) {
  const kernels::RouterSpec& router = spec.router;
  float* logits = expert_logits_.as<float>();
  kernels::linear(*backend_, weights.router,
                  {.x = x,
                   .x_stride = spec_.hidden_size,
                   .y = logits,
                   .y_stride = router.num_experts,
                   .rows = rows,
                   .bias = or_null(weights.router_bias)});
  kernels::route(router, {.logits = logits,
                          .rows = rows,
                          .correction = or_null(weights.router_correction),
                          .experts = expert_ids_.data(),
                          .weights = expert_weights_.as<float>()});
  const int64_t choices = rows * router.top_k;
  std::ranges::fill(expert_begin_, 0);
  for (int64_t i = 0; i < choices; ++i) {
    ++expert_begin_[static_cast<size_t>(expert_ids_[static_cast<size_t>(i)]) + 1];
  }
  for (size_t i = 1; i < expert_begin_.size(); ++i) expert_begin_[i] += expert_begin_[i - 1];
  // Each begin moves to its end, which is the next one's begin; they are moved back at last.
  for (int64_t i = 0; i < choices; ++i) {
    const auto expert = static_cast<size_t>(expert_ids_[static_cast<size_t>(i)]);
    const int32_t to = expert_begin_[expert]++;
    expert_rows_[static_cast<size_t>(to)] = static_cast<int32_t>(i / router.top_k);
    expert_slots_[static_cast<size_t>(i)] = to;
  }
  std::shift_right(expert_begin_.begin(), expert_begin_.end(), 1);
  expert_begin_[0] = 0;
}

void DecoderModel::add_shared(const ExpertsSpec& spec, const LayerWeights& weights, const float* x,
                              int64_t rows) {
  if (!spec.shared_gate) {
    apply_mlp(*spec.shared, weights.mlp, x, rows, branch_.as<float>(), true);
    return;
  }
  float* gate = shared_weights_.as<float>();
  kernels::linear(*backend_, weights.experts.shared_gate,
                  {.x = x, .x_stride = spec_.hidden_size, .y = gate, .y_stride = 1, .rows = rows});
  for (int64_t row = 0; row < rows; ++row) gate[row] = 1.0f / (1.0f + std::exp(-gate[row]));
  apply_mlp(*spec.shared, weights.mlp, x, rows, expert_y_.as<float>(), false);
  kernels::scatter_add(*backend_, {.x = expert_y_.as<float>(),
                                   .rows = std::span(row_index_).first(static_cast<size_t>(rows)),
                                   .weights = gate,
                                   .y = branch_.as<float>(),
                                   .y_stride = spec_.hidden_size,
                                   .dim = spec_.hidden_size});
}

}  // namespace espalier
