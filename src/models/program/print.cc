#include "models/program/print.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>

namespace espalier::program {
namespace {

std::string_view norm_name(const NormSpec& spec) {
  switch (spec.kind) {
    case NormSpec::Kind::kRms:
      return "rms";
    case NormSpec::Kind::kRmsOneCentred:
      return "rms_one_centred";
    case NormSpec::Kind::kLayer:
      return "layer";
    case NormSpec::Kind::kScale:
      return "scale";
    case NormSpec::Kind::kGate:
      return "gate";
  }
  return {};
}

std::string_view activation_name(const Activation& a) {
  if (a.gelu) return *a.gelu == kernels::Gelu::kErf ? "gelu" : "quick_gelu";
  switch (a.kind) {
    case kernels::Activation::kSilu:
      return "silu";
    case kernels::Activation::kGeluTanh:
      return "gelu_tanh";
    case kernels::Activation::kClampedSwiglu:
      return "clamped_swiglu";
  }
  return {};
}

std::string_view element_name(ElementType type) {
  switch (type) {
    case ElementType::kActivation:
      return "activation";
    case ElementType::kFloat32:
      return "float32";
    case ElementType::kInt32:
      return "int32";
  }
  return {};
}

// Writes attributes as "name=value", separated by blanks.
class Writer {
 public:
  void operator()(const std::monostate&) {}
  void operator()(const VocabularyPart& a) {
    put("first", a.first);
    put("count", a.count);
  }
  void operator()(const Input& a) {
    put("kind", a.kind == Input::Kind::kStates       ? "states"
                : a.kind == Input::Kind::kEmbeddings ? "embeddings"
                                                     : "stage");
  }
  void operator()(const Scale& a) {
    put("factor", a.factor);
    if (a.tokens) put("tokens", true);
  }
  void operator()(const Softcap& a) { put("cap", a.cap); }
  void operator()(const MergeRows& a) { put("rows", a.count); }
  void operator()(const SpanPart& a) { put("part", a.index); }
  void operator()(const Norm& a) {
    put("kind", norm_name(a.spec));
    put("epsilon", a.spec.epsilon);
    if (a.groups != 1) put("groups", a.groups);
  }
  void operator()(const Activation& a) {
    put("kind", activation_name(a));
    if (!a.gated) put("gated", false);
    if (a.limit != 0) put("limit", a.limit);
  }
  void operator()(const Matmul& a) {
    if (a.norm) put("norm", norm_name(a.norm->spec));
    if (a.activation) put("activation", activation_name(*a.activation));
    if (a.residual) put("residual", true);
    if (a.adapters) put("adapters", true);
  }
  void operator()(const HeadMatmul& a) {
    put("heads", a.heads);
    put("in", a.in_features);
    put("out", a.out_features);
  }
  void operator()(const HeadCopy& a) {
    put("heads", a.heads);
    put("count", a.count);
  }
  void operator()(const Rope& a) {
    put("rope", a.rope);
    put("heads", a.heads);
    if (a.begin > 0) put("begin", a.begin);
  }
  void operator()(const KvAppend& a) {
    put("kv_heads", a.num_kv_heads);
    if (a.sliding_window > 0) put("window", a.sliding_window);
  }
  void operator()(const Attention& a) {
    put("heads", a.num_heads);
    put("kv_heads", a.num_kv_heads);
    put("head_dim", a.head_dim);
    put("scale", a.scale);
    if (a.sliding_window > 0) put("window", a.sliding_window);
    if (a.softcap > 0) put("softcap", a.softcap);
    if (!a.causal) put("causal", false);
    if (a.windowed) put("windowed", true);
    if (a.reach > 0) put("reach", a.reach);
    if (a.pictures) put("pictures", true);
  }
  void operator()(const CrossAttention& a) {
    put("heads", a.num_heads);
    put("kv_heads", a.num_kv_heads);
    put("head_dim", a.head_dim);
    put("index", a.index);
  }
  void operator()(const Fill& a) { put("value", a.value); }
  void operator()(const ResidualAdd& a) {
    if (a.scale != 1) put("scale", a.scale);
  }
  void operator()(const AllReduce& a) {
    if (a.residual) put("residual", true);
    if (a.norm) put("norm", norm_name(a.norm->spec));
  }
  void operator()(const MoeRoute& a) {
    put("experts", a.router.num_experts);
    put("top_k", a.router.top_k);
    if (a.num_slots > 0) put("slots", a.num_slots);
  }
  void operator()(const MoeMatmul& a) {
    put("experts", a.num_experts);
    if (a.first_expert > 0) put("first", a.first_expert);
    if (a.activation) put("activation", activation_name(*a.activation));
  }
  void operator()(const MoeCombine& a) {
    put("top_k", a.top_k);
    if (a.residual) put("residual", true);
    if (a.scale != 1) put("scale", a.scale);
  }
  void operator()(const Pool& a) {
    put("kind", a.kind == PoolingSpec::Kind::kMean ? "mean" : "last");
  }
  void operator()(const QkRopeAppend& a) {
    if (a.q_norm) put("norm", norm_name(a.q_norm->spec));
    if (a.rope) put("rope", a.rope->rope);
    (*this)(a.append);
  }
  void operator()(const MoeExperts& a) {
    (*this)(a.gate_up);
    put("top_k", a.combine.top_k);
  }
  void operator()(const MoeBlock& a) {
    (*this)(a.route);
    if (a.shared_down.weight) put("shared", true);
  }
  void operator()(const LatentPrefill& a) {
    put("heads", a.heads);
    put("nope", a.nope_dim);
    put("rope", a.rope_dim);
    put("value", a.value_dim);
    put("scale", a.scale);
  }
  void operator()(const Megakernel& a) { put("layers", a.num_layers); }

  std::string take() { return std::move(text_); }

 private:
  template <typename T>
  void put(std::string_view name, const T& value) {
    fmt::format_to(std::back_inserter(text_), "{}{}={}", text_.empty() ? "" : " ", name, value);
  }
  std::string text_;
};

}  // namespace

std::string to_string(const Rows& rows) {
  const std::string_view name = row_count_name(rows.count);
  return rows.per_row == 1 ? std::string(name) : fmt::format("{} * {}", rows.per_row, name);
}

std::string to_string(const Program& program, const Operand& operand) {
  const Buffer& buffer = program.buffer(operand);
  if (operand.columns == buffer.columns) return buffer.name;
  return fmt::format("{}[:, {}:{}]", buffer.name, operand.column, operand.column + operand.columns);
}

std::string attributes_text(const Op& op) {
  Writer writer;
  std::visit(writer, op.attributes);
  return writer.take();
}

std::string to_string(const Program& program, const Op& op) {
  std::vector<std::string> results, arguments;
  for (const Operand& operand : op.outputs) results.push_back(to_string(program, operand));
  for (const Operand& operand : op.inputs) arguments.push_back(to_string(program, operand));
  for (const WeightId& id : weights_of(op)) {
    arguments.push_back(fmt::format("%{}", weight_name(id.kind)));
  }
  std::string line = fmt::format("{:<14} {}", op_name(op.kind), fmt::join(results, ", "));
  fmt::format_to(std::back_inserter(line), "{}{}", results.empty() ? "" : " = ",
                 fmt::join(arguments, ", "));
  if (const std::string text = attributes_text(op); !text.empty()) line += "  {" + text + "}";
  return line;
}

std::string to_string(const Program& program) {
  std::string out = fmt::format("program {}\n", program.name);
  for (const Buffer& buffer : program.buffers) {
    fmt::format_to(std::back_inserter(out), "  buffer {:<18} [{}, {}] {}, storage {}\n",
                   buffer.name, to_string(buffer.rows), buffer.columns, element_name(buffer.type),
                   buffer.storage);
  }
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    const std::string layer = op.layer < 0 ? "-" : std::to_string(op.layer);
    fmt::format_to(std::back_inserter(out), "  {:>4} layer {:>3}  {}\n", i, layer,
                   to_string(program, op));
  }
  return out;
}

}  // namespace espalier::program
