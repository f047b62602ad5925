#include "models/program/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "kernels/attention/latent_prefill.h"
#include "kernels/moe/cuda_small_batch.h"
#include "models/program/gpu_passes.h"
#include "models/program/print.h"

namespace espalier::program {
namespace {

size_t end_of_layer(const Program& program, size_t first) {
  size_t last = first;
  while (last < program.ops.size() && program.ops[last].layer == program.ops[first].layer) ++last;
  return last;
}

bool alike(const Program& program, const Section& a, size_t first, size_t last) {
  if (last - first != a.last - a.first) return false;
  for (size_t i = 0; i < last - first; ++i) {
    const Op &x = program.ops[a.first + i], &y = program.ops[first + i];
    if (to_string(program, x) != to_string(program, y)) return false;
  }
  return true;
}

std::string scaled(double value, double step, std::initializer_list<const char*> units) {
  const char* const* unit = units.begin();
  while (value >= step && unit + 1 != units.end()) {
    value /= step;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", value, unit == units.begin() ? 0 : 1, *unit);
}

}  // namespace

std::vector<Section> sections(const Program& program) {
  std::vector<Section> out;
  for (size_t first = 0; first < program.ops.size();) {
    const size_t last = end_of_layer(program, first);
    const int32_t layer = program.ops[first].layer;
    if (layer >= 0 && !out.empty() && out.back().first_layer >= 0 &&
        alike(program, out.back(), first, last)) {
      ++out.back().count;
    } else {
      out.push_back({first, last, layer, 1});
    }
    first = last;
  }
  return out;
}

std::string title_of(const Section& section) {
  if (section.first_layer < 0) return section.first == 0 ? "before the layers" : "output";
  if (section.count == 1) return fmt::format("layer {}", section.first_layer);
  return fmt::format("layers {} to {} ({} alike)", section.first_layer,
                     section.first_layer + section.count - 1, section.count);
}

Report make_report(Program program, const StepShape& step, const WeightBytes& weight_bytes) {
  Report report{.program = std::move(program), .step = step};
  for (const Op& op : report.program.ops) {
    report.costs.push_back(cost_of(report.program, op, step, weight_bytes));
    report.total += report.costs.back();
  }
  return report;
}

namespace {

// The steps that take an alternative.
std::string steps_of(const Alternative& alternative) {
  if (alternative.op.kind == OpKind::kLatentPrefill) {
    return fmt::format("entries of at least {} tokens, bfloat16, Hopper, not deterministic",
                       kernels::cuda::kExpandedTokens);
  }
  if (alternative.op.kind != OpKind::kMoeBlock) return "bfloat16, Hopper, not deterministic";
  const auto top_k = alternative.op.as<MoeBlock>().route.router.top_k;
  const int32_t most = kernels::cuda::kSmallBatchMoePairs / std::max(1, top_k);
  return fmt::format("a step of at most {} tokens, bfloat16",
                     std::min(kernels::cuda::kSmallBatchMoeRows, most));
}

}  // namespace

std::vector<Variant> gpu_variants(const Program& program, const Program& lowered) {
  std::vector<Variant> out;
  if (const std::optional<Program> one_token = fuse_megakernel(lowered)) {
    out.push_back({.when = "a step of one token of one entry, bfloat16",
                   .replaces = "all operations before the output",
                   .line = to_string(*one_token, one_token->ops[0])});
  }
  const std::vector<Alternative> alternatives = find_alternatives(program);
  for (const Section& section : sections(program)) {
    for (const Alternative& alternative : alternatives) {
      if (alternative.first < section.first || alternative.first >= section.last) continue;
      out.push_back({.when = steps_of(alternative),
                     .replaces = fmt::format("{}: operations {} to {}", title_of(section),
                                             alternative.first - section.first,
                                             alternative.last - 1 - section.first),
                     .line = to_string(program, alternative.op)});
    }
  }
  return out;
}

std::string bytes_text(int64_t bytes) {
  return scaled(static_cast<double>(bytes), 1024, {"B", "KiB", "MiB", "GiB", "TiB"});
}

std::string flops_text(int64_t flops) {
  return scaled(static_cast<double>(flops), 1000, {"FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"});
}

std::string to_table(const Report& report) {
  const Program& program = report.program;
  std::string out = fmt::format(
      "program of {}: {} operations, {} buffers; a step of {} token{} "
      "after {} cached\n",
      program.name, program.ops.size(), program.buffers.size(), report.step.tokens,
      report.step.tokens == 1 ? "" : "s", report.step.context);
  auto to = std::back_inserter(out);
  for (const Buffer& buffer : program.buffers) {
    fmt::format_to(to, "  {:<22} [{}, {}]\n", buffer.name, to_string(buffer.rows), buffer.columns);
  }
  const auto line = [&](const std::string& what, const OpCost& cost) {
    fmt::format_to(to, "  {:>10} {:>10} {:>10} {:>12}  {}\n", bytes_text(cost.weight_bytes),
                   bytes_text(cost.activation_bytes), bytes_text(cost.kv_bytes),
                   flops_text(cost.flops), what);
  };
  for (const Section& section : sections(program)) {
    fmt::format_to(to, "{}\n  {:>10} {:>10} {:>10} {:>12}\n", title_of(section), "weights",
                   "buffers", "KV", "operations");
    for (size_t i = section.first; i < section.last; ++i) {
      line(to_string(program, program.ops[i]), report.costs[i]);
    }
  }
  out += "total\n";
  line("", report.total);
  if (!report.variants.empty()) out += "instead, where the device's kernels take the step\n";
  for (const Variant& variant : report.variants) {
    fmt::format_to(to, "  in {}, for {}:\n    {}\n", variant.when, variant.replaces, variant.line);
  }
  return out;
}

}  // namespace espalier::program
