#include "apps/inspect_program.h"

#include <boost/json.hpp>
#include <fstream>
#include <utility>

#include "models/model_plan.h"
#include "models/program/print.h"
#include "tensor/dtype.h"

namespace espalier::apps {
namespace {

boost::json::object cost_json(const program::OpCost& cost) {
  return {{"weight_bytes", cost.weight_bytes},
          {"buffer_bytes", cost.activation_bytes},
          {"kv_bytes", cost.kv_bytes},
          {"flops", cost.flops}};
}

boost::json::array operands_json(const program::Program& program,
                                 const std::vector<program::Operand>& operands) {
  boost::json::array out;
  for (const program::Operand& operand : operands) {
    out.emplace_back(program::to_string(program, operand));
  }
  return out;
}

}  // namespace

Result<program::Report> report_program(const ModelLoadOptions& options, bool gpu, int64_t kv_bytes,
                                       const ProgramRequest& request) {
  ESP_ASSIGN_OR_RETURN(ProgramPlan plan,
                       plan_program(options, gpu ? ProgramKind::kGpu : ProgramKind::kCpu));
  const program::StepShape step{.tokens = request.tokens,
                                .context = request.context,
                                .activation_bytes = static_cast<int64_t>(dtype_size(plan.type)),
                                .kv_bytes = kv_bytes};
  program::Report report = program::make_report(std::move(plan.program), step, plan.weight_bytes);
  report.variants = std::move(plan.variants);
  return report;
}

boost::json::object program_json(const program::Report& report) {
  const program::Program& program = report.program;
  boost::json::array buffers, ops;
  for (const program::Buffer& buffer : program.buffers) {
    buffers.push_back({{"name", buffer.name},
                       {"rows", program::to_string(buffer.rows)},
                       {"columns", buffer.columns},
                       {"storage", buffer.storage}});
  }
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const program::Op& op = program.ops[i];
    boost::json::array weights;
    for (const WeightId& id : program::weights_of(op)) weights.emplace_back(weight_name(id.kind));
    boost::json::object out = cost_json(report.costs[i]);
    out["op"] = program::op_name(op.kind);
    out["layer"] = op.layer;
    out["inputs"] = operands_json(program, op.inputs);
    out["outputs"] = operands_json(program, op.outputs);
    out["weights"] = std::move(weights);
    out["attributes"] = program::attributes_text(op);
    ops.push_back(std::move(out));
  }
  boost::json::array variants;
  for (const program::Variant& variant : report.variants) {
    variants.push_back(
        {{"when", variant.when}, {"replaces", variant.replaces}, {"op", variant.line}});
  }
  return {{"tokens", report.step.tokens},     {"context", report.step.context},
          {"buffers", std::move(buffers)},    {"ops", std::move(ops)},
          {"total", cost_json(report.total)}, {"variants", std::move(variants)}};
}

Status write_svg(const program::Report& report, const std::filesystem::path& file) {
  std::ofstream out(file, std::ios::binary);
  out << program::to_svg(report);
  out.flush();
  if (out) return Status();
  return error(StatusCode::kNotFound, "the picture cannot be written to {}", file.string());
}

}  // namespace espalier::apps
