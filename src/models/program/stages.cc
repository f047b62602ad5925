#include "models/program/stages.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <set>
#include <utility>

#include "models/program/cost.h"
#include "models/program/lower.h"
#include "models/weight_layout.h"

namespace espalier::program {
namespace {

constexpr StepShape kDecodeStep{
    .tokens = 64, .context = 1024, .activation_bytes = 2, .kv_bytes = 2};
constexpr StepShape kPromptStep{
    .tokens = 1024, .context = 4096, .activation_bytes = 2, .kv_bytes = 2};
// FLOPs in the time in which memory delivers a byte: a GEMM of kDecodeStep's rows is bounded by
// memory on one device and by arithmetic on another, and this value lies between them.
constexpr double kOperationsPerByte = 128;

double seconds_in_bytes(const OpCost& cost) {
  return static_cast<double>(cost.weight_bytes + cost.kv_bytes) +
         static_cast<double>(cost.flops) / kOperationsPerByte;
}

// The best division of the first layers: the costliest stage, then the sum of squares, which
// prefers even ones.
struct Division {
  double most = std::numeric_limits<double>::infinity();
  double squares = std::numeric_limits<double>::infinity();
  int32_t last = 0;  // layers of the last stage

  bool operator<(const Division& other) const {
    return std::pair(most, squares) < std::pair(other.most, other.squares);
  }
};

void add_names(const std::vector<WeightBlock>& blocks, std::set<std::string>& out) {
  for (const WeightBlock& block : blocks) out.insert(block.name);
}

void add_names(const ExpertsLayout& experts, std::set<std::string>& out) {
  for (const VectorLayout* vector : {&experts.router_bias, &experts.router_correction})
    add_names(vector->blocks, out);
  for (const MatrixLayout* matrix : {&experts.router, &experts.shared_gate})
    add_names(matrix->blocks, out);
  for (const MlpLayout& expert : experts.experts)
    for (std::string& name : tensor_names(expert)) out.insert(std::move(name));
  for (const std::string& name : {experts.fused_gate_up, experts.fused_down}) {
    if (name.empty()) continue;
    for (const char* part : {"", "_bias", "_blocks", "_scales"}) out.insert(name + part);
  }
}

void add_names(const LayerLayout& layer, std::set<std::string>& out) {
  for (const VectorLayout* vector :
       {&layer.input_norm, &layer.qkv_bias, &layer.q_norm, &layer.k_norm, &layer.latent.q_a_norm,
        &layer.latent.kv_a_norm, &layer.sinks, &layer.attention_output_bias,
        &layer.attention_output_norm, &layer.post_attention_norm, &layer.mlp.gate_up_bias,
        &layer.mlp.down_bias, &layer.mlp_output_norm})
    add_names(vector->blocks, out);
  for (const MatrixLayout* matrix :
       {&layer.qkv, &layer.latent.q_a, &layer.latent.q, &layer.latent.kv_a, &layer.latent.kv_b,
        &layer.attention_output, &layer.mlp.gate_up, &layer.mlp.down})
    add_names(matrix->blocks, out);
  add_names(layer.experts, out);
}

std::set<std::string> names_of(const WeightLayout& layout) {
  std::set<std::string> out;
  for (const MatrixLayout* matrix : {&layout.embedding, &layout.position_embedding, &layout.head})
    add_names(matrix->blocks, out);
  for (const PoolingLayout& layer : layout.pooling_head) {
    add_names(layer.matrix.blocks, out);
    add_names(layer.bias.blocks, out);
  }
  for (const LayerLayout& layer : layout.layers) add_names(layer, out);
  add_names(layout.final_norm.blocks, out);
  return out;
}

}  // namespace

Status check_stages(const DecoderSpec& spec, int32_t num_stages) {
  if (num_stages < 1) return invalid_argument("pp_size is {}, but must be at least 1", num_stages);
  if (num_stages == 1) return Status();
  if (std::cmp_less(spec.layers.size(), num_stages))
    return invalid_argument(
        "pp_size is {}, but the model has {} layers: choose at most one stage "
        "a layer",
        num_stages, spec.layers.size());
  if (!spec.kept_states.empty() || spec.draft)
    return error(StatusCode::kUnimplemented,
                 "draft heads are not divided into stages: leave --speculative-draft-model-path or "
                 "--pp-size out");
  return Status();
}

StageCosts stage_costs(const DecoderSpec& spec, StageBalance balance) {
  const bool decode = balance == StageBalance::kDecode;
  const Program program = lower(spec);
  const auto bytes = [](WeightId, int64_t elements) { return 2 * elements; };
  StageCosts out{.layers = std::vector<double>(spec.layers.size())};
  double* before = &out.embedding;
  for (const Op& op : program.ops) {
    const double cost =
        seconds_in_bytes(cost_of(program, op, decode ? kDecodeStep : kPromptStep, bytes));
    if (op.layer >= 0) {
      out.layers[static_cast<size_t>(op.layer)] += cost;
      before = &out.head;
    } else {
      *before += cost;
    }
  }
  if (!decode) out.head = 0;
  return out;
}

std::vector<int32_t> balance_stages(const StageCosts& costs, int32_t num_stages) {
  const auto num_layers = static_cast<int32_t>(costs.layers.size());
  std::vector<double> sums(1, 0);
  for (const double cost : costs.layers) sums.push_back(sums.back() + cost);
  // best[layers]: of the first so many layers in the stages so far.
  std::vector<std::vector<Division>> best(1, std::vector<Division>(sums.size()));
  best[0][0] = {.most = 0, .squares = 0};
  for (int32_t stage = 0; stage < num_stages; ++stage) {
    const std::vector<Division>& before = best.back();
    std::vector<Division> next(sums.size());
    for (int32_t layers = stage + 1; layers <= num_layers; ++layers) {
      for (int32_t last = 1; last <= layers; ++last) {
        const Division& rest = before[static_cast<size_t>(layers - last)];
        double cost = sums[static_cast<size_t>(layers)] - sums[static_cast<size_t>(layers - last)];
        if (stage == 0) cost += costs.embedding;
        if (stage == num_stages - 1) cost += costs.head;
        Division& to = next[static_cast<size_t>(layers)];
        to = std::min(to, {.most = std::max(rest.most, cost),
                           .squares = rest.squares + cost * cost,
                           .last = last});
      }
    }
    best.push_back(std::move(next));
  }
  std::vector<int32_t> out(static_cast<size_t>(num_stages));
  for (int32_t stage = num_stages, layers = num_layers; stage > 0; --stage) {
    const int32_t last = best[static_cast<size_t>(stage)][static_cast<size_t>(layers)].last;
    out[static_cast<size_t>(stage - 1)] = last;
    layers -= last;
  }
  return out;
}

std::vector<DecoderSpec> divide_layers(const DecoderSpec& spec, int32_t num_stages,
                                       StageBalance balance) {
  if (num_stages == 1) return {spec};
  const std::set<std::string> all = names_of(weight_layout(spec));
  std::vector<DecoderSpec> out;
  int32_t first = 0;
  for (const int32_t count : balance_stages(stage_costs(spec, balance), num_stages)) {
    DecoderSpec& stage = out.emplace_back(spec);
    stage.stage.first_layer = first;
    stage.stage.embeds = first == 0;
    stage.stage.samples = first + count == static_cast<int32_t>(spec.layers.size());
    stage.layers.assign(spec.layers.begin() + first, spec.layers.begin() + first + count);
    const std::set<std::string> here = names_of(weight_layout(stage));
    std::ranges::set_difference(all, here, std::back_inserter(stage.stage.tensors_elsewhere));
    first += count;
  }
  return out;
}

}  // namespace espalier::program
