#include "models/program/cost.h"

#include <algorithm>

namespace espalier::program {
namespace {

class CostVisitor {
 public:
  CostVisitor(const Program& program, const Op& op, const StepShape& step,
              const WeightBytes& weight_bytes)
      : program_(program), op_(op), step_(step), weight_bytes_(weight_bytes) {
    rows_ = num_rows(rows_of(program, op));
  }

  OpCost run() {
    for (const Operand& operand : op_.inputs) cost_.activation_bytes += bytes(operand);
    for (const Operand& operand : op_.outputs) cost_.activation_bytes += bytes(operand);
    if (op_.table && !op_.outputs.empty()) read(op_.table, rows_ * op_.outputs[0].columns);
    std::visit(*this, op_.attributes);
    return cost_;
  }

  template <typename T>
  void operator()(const T&) {}  // elementwise: bytes alone
  void operator()(const Norm& a) { read(a.weight, op_.inputs[0].columns / a.groups); }
  void operator()(const Matmul& a) { gemm(a, rows_); }
  void operator()(const HeadMatmul& a) {
    const int64_t size = int64_t{a.heads} * a.in_features * a.out_features;
    read(a.weight, size);
    cost_.flops += 2 * rows_ * size;
  }
  void operator()(const KvAppend& a) { append(a); }
  void operator()(const QkRopeAppend& a) { append(a.append); }
  void operator()(const Attention& a) {
    const int64_t all = a.causal ? step_.context + 1 : step_.context + step_.tokens;
    const int64_t seen = a.sliding_window > 0 ? std::min<int64_t>(a.sliding_window, all) : all;
    const int64_t planes = a.latent ? 1 : 2;
    cost_.kv_bytes += rows_ * seen * planes * a.num_kv_heads * a.head_dim * step_.kv_bytes;
    cost_.flops += 4 * rows_ * seen * a.num_heads * a.head_dim;
  }
  void operator()(const LatentPrefill& a) {
    const int64_t seen = step_.context + 1, size = int64_t{a.heads} * a.rank;
    read(a.weight, size * (a.nope_dim + a.value_dim));
    cost_.kv_bytes += seen * (a.rank + a.rope_dim) * step_.kv_bytes;
    cost_.flops += 2 * seen * size * (a.nope_dim + a.value_dim) +
                   2 * rows_ * seen * a.heads * (a.nope_dim + a.rope_dim + a.value_dim);
  }
  void operator()(const MoeRoute& a) {
    const int64_t size = int64_t{a.router.num_experts} * a.in_features;
    read(a.weight, size);
    cost_.flops += 2 * rows_ * size;
  }
  void operator()(const MoeMatmul& a) { experts(a, rows_); }
  void operator()(const MoeExperts& a) {
    const int64_t pairs = rows_ * a.combine.top_k;
    experts(a.gate_up, pairs);
    experts(a.down, pairs);
  }
  void operator()(const MoeBlock& a) {
    (*this)(a.route);
    (*this)(a.experts);
    if (!a.shared_down.weight) return;
    gemm(a.shared_gate_up, rows_);
    gemm(a.shared_down, rows_);
  }

 private:
  int64_t num_rows(const Rows& rows) const {
    return (rows.count == RowCount::kTexts ? 1 : step_.tokens) * rows.per_row;
  }
  int64_t bytes(const Operand& operand) const {
    const Buffer& buffer = program_.buffer(operand);
    const int64_t size =
        buffer.type == ElementType::kActivation ? step_.activation_bytes : int64_t{4};
    return num_rows(buffer.rows) * operand.columns * size;
  }
  void read(WeightId id, int64_t elements) {
    if (id) cost_.weight_bytes += weight_bytes_(id, elements);
  }
  void gemm(const Matmul& a, int64_t rows) {
    const int64_t size = int64_t{a.in_features} * a.out_features;
    if (a.norm) read(a.norm->weight, a.in_features);
    read(a.weight, size);
    read(a.bias, a.out_features);
    cost_.flops += 2 * rows * size;
  }
  void append(const KvAppend& a) {
    const int64_t planes =
        op_.kind == OpKind::kKvAppend ? std::ssize(op_.inputs) : std::ssize(op_.inputs) - 1;
    const int64_t size = planes * a.num_kv_heads * a.head_dim;
    cost_.kv_bytes += rows_ * size * step_.kv_bytes;
  }
  // Rows choose experts apart from each other at best.
  void experts(const MoeMatmul& a, int64_t pairs) {
    const int64_t size = int64_t{a.in_features} * a.out_features;
    const int64_t used = std::min<int64_t>(a.num_experts, pairs);
    read(a.weight, used * size);
    read(a.bias, used * a.out_features);
    cost_.flops += 2 * pairs * size;
  }

  const Program& program_;
  const Op& op_;
  const StepShape& step_;
  const WeightBytes& weight_bytes_;
  int64_t rows_ = 0;
  OpCost cost_;
};

}  // namespace

OpCost& OpCost::operator+=(const OpCost& other) {
  weight_bytes += other.weight_bytes;
  activation_bytes += other.activation_bytes;
  kv_bytes += other.kv_bytes;
  flops += other.flops;
  return *this;
}

OpCost cost_of(const Program& program, const Op& op, const StepShape& step,
               const WeightBytes& weight_bytes) {
  return CostVisitor(program, op, step, weight_bytes).run();
}

}  // namespace espalier::program
