#include "models/cuda/recording_kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "kernels/activation/cuda.h"
#include "kernels/attention/bidirectional.h"
#include "kernels/attention/cuda.h"
#include "kernels/attention/latent_prefill.h"
#include "kernels/control/cuda.h"
#include "kernels/embedding/cuda.h"
#include "kernels/kv_append/cuda.h"
#include "kernels/linear/cuda.h"
#include "kernels/linear/quantize_rows.h"
#include "kernels/lora/cuda.h"
#include "kernels/megakernel/cuda.h"
#include "kernels/moe/cuda.h"
#include "kernels/moe/cuda_small_batch.h"
#include "kernels/norm/cuda.h"
#include "kernels/random/cuda.h"
#include "kernels/relayout/cuda.h"
#include "kernels/rope/cuda.h"
#include "kernels/router/cuda.h"
#include "models/cuda/tensor_loader.h"
#include "tensor/cuda/device.h"
#include "tensor/cuda/memory.h"
#include "tensor/cuda/stream.h"

namespace espalier {
namespace recording {
namespace {

// Rows of a matrix in memory, in bytes.
struct Area {
  const std::byte* data = nullptr;
  int64_t rows = 0, columns = 0, stride = 0;

  const std::byte* end() const { return data + (rows - 1) * stride + columns; }
};

bool overlap(const Area& a, const Area& b) {
  if (a.end() <= b.data || b.end() <= a.data) return false;
  if (a.stride != b.stride || a.rows == 1 || b.rows == 1) return true;
  const int64_t shift = (((b.data - a.data) % a.stride) + a.stride) % a.stride;
  return shift < a.columns || shift + b.columns > a.stride;
}

// Whether all of b lies in a.
bool covers(const Area& a, const Area& b) {
  if (b.data < a.data || b.end() > a.end()) return false;
  if (a.columns == a.stride || a.rows == 1) return true;
  return a.stride == b.stride && (b.data - a.data) % a.stride + b.columns <= a.columns;
}

struct Written {
  Area area;
  std::string label;
};

// What lies where: every write with its label, the newest last.
class Memory {
 public:
  void write(const Area& area, const std::string& label) {
    std::erase_if(written_, [&](const Written& w) { return covers(area, w.area); });
    written_.push_back({area, label});
  }
  // The labels of what was written there, the newest first, until nothing older shows.
  std::string read(const Area& area) const {
    if (area.data == nullptr) return "-";
    std::string out;
    for (auto it = written_.rbegin(); it != written_.rend(); ++it) {
      if (!overlap(it->area, area)) continue;
      out += (out.empty() ? "" : "+") + it->label;
      if (covers(it->area, area)) break;
    }
    return out.empty() ? "?" : out;
  }
  // A step reads nothing that another step computed.
  void forget_launches() {
    std::erase_if(written_, [](const Written& w) { return w.label.starts_with('%'); });
  }
  void release(const std::byte* begin, int64_t bytes) {
    std::erase_if(written_, [&](const Written& w) {
      return w.area.data >= begin && w.area.data < begin + bytes;
    });
  }

 private:
  std::vector<Written> written_;
};

Memory memory;
std::vector<std::string> recorded;

Area area(const void* data, int64_t rows, int64_t columns, int64_t stride, DType type) {
  const auto size = static_cast<int64_t>(dtype_size(type));
  return {static_cast<const std::byte*>(data), rows, columns * size, stride * size};
}
Area flat(const void* data, int64_t bytes) {
  return {static_cast<const std::byte*>(data), 1, bytes, bytes};
}
// A weight by the tensor that begins there.
std::string weight(const void* data) { return memory.read(flat(data, 1)); }
std::string pointer(const void* data) { return data == nullptr ? "-" : "set"; }

// One launch: its line, then what it writes.
class Launch {
 public:
  Launch(std::string_view name, const kernels::cuda::LaunchOptions& options)
      : line_(fmt::format("%{} {}{}", recorded.size(), name, options.pdl ? " pdl" : "")),
        label_(fmt::format("%{}", recorded.size())) {}
  ~Launch() {
    recorded.push_back(line_);
    for (const Area& area : writes_) memory.write(area, label_);
  }
  Launch& read(std::string_view name, const Area& area) { return add(name, memory.read(area)); }
  template <typename T>
  Launch& add(std::string_view name, const T& value) {
    line_ += fmt::format(" {}={}", name, value);
    return *this;
  }
  Launch& write(const Area& area) {
    if (area.data != nullptr) writes_.push_back(area);
    return *this;
  }

 private:
  std::string line_, label_;
  std::vector<Area> writes_;
};

std::string shape_text(const kernels::cuda::AttentionShape& s) {
  return fmt::format("{}/{}x{},page={},window={},split={}", s.num_heads, s.num_kv_heads, s.head_dim,
                     s.page_size, s.sliding_window, s.fixed_split);
}
std::string entries_text(const kernels::cuda::EntryArrays& e) {
  return fmt::format("{}of{},table={}", e.num_tokens, e.num_entries, weight(e.page_tables));
}

// Loads nothing: remembers which tensor lies where.
class Loader final : public CudaTensorLoader {
 public:
  Status put(const TensorPart& part, DType type, std::byte* device) override {
    const auto size = static_cast<int64_t>(dtype_size(type));
    if (!part.slice) return label(part.name, part.shape, size, device);
    const TensorSlice& s = *part.slice;
    memory.write(
        flat(device, s.num_elements() * size),
        fmt::format("{}[{}+{},{}+{}]", part.name, s.first_row, s.rows, s.first_column, s.columns));
    return Status();
  }
  WeightCodes stored_codes(const std::string&) const override { return {}; }
  Status put_e4m3(const TensorPart& part, std::byte* device, float* scales) override {
    ESP_RETURN_IF_ERROR(label(part.name, part.shape, 1, device));
    const std::array<int64_t, 1> rows{part.shape[0]};
    return label(part.name + ":scales", rows, 4, reinterpret_cast<std::byte*>(scales));
  }
  Status put_block_e4m3(const TensorPart& part, std::byte* device, float* scales) override {
    return put_e4m3(part, device, scales);
  }
  Status put_int4(const TensorPart& part, const kernels::cuda::Int4Destination& to) override {
    const int64_t bytes = kernels::cuda::int4_bytes(to.format, to.out_features, to.in_features);
    memory.write(flat(static_cast<std::byte*>(to.records), bytes),
                 fmt::format("{}:int4", part.name));
    return Status();
  }
  Status put_mxfp4(const std::string& name, int64_t count,
                   const kernels::cuda::Mxfp4Destination& to) override {
    memory.write(flat(static_cast<std::byte*>(to.records), count * to.shape.size_bytes()),
                 fmt::format("{}:mxfp4", name));
    return Status();
  }
  Status put_rounded_mxfp4(const TensorPart& part,
                           const kernels::cuda::Mxfp4Destination& to) override {
    return put_mxfp4(part.name, 1, to);
  }
  Status put_bytes(const std::string& name, std::span<const int64_t> shape,
                   std::byte* device) override {
    return label(name, shape, 1, device);
  }
  Status start() override { return Status(); }
  Status finish() override { return Status(); }

 private:
  static Status label(const std::string& name, std::span<const int64_t> shape, int64_t size,
                      std::byte* device) {
    for (const int64_t extent : shape) size *= extent;
    memory.write(flat(device, size), name);
    return Status();
  }
};

}  // namespace

void begin() {
  recorded.clear();
  memory.forget_launches();
}
const std::vector<std::string>& lines() { return recorded; }

}  // namespace recording

using recording::area;
using recording::flat;
using recording::Launch;
using recording::weight;

Result<std::unique_ptr<CudaTensorLoader>> make_checkpoint_loader(const ModelLoadOptions&,
                                                                 const DecoderSpec&) {
  return std::make_unique<recording::Loader>();
}
Result<std::unique_ptr<CudaTensorLoader>> make_shared_loader(std::vector<SharedTensor>) {
  return std::make_unique<recording::Loader>();
}
Result<std::unique_ptr<CudaTensorLoader>> make_partial_loader(const std::filesystem::path&,
                                                              const DecoderSpec&) {
  return std::make_unique<recording::Loader>();
}

Result<std::unique_ptr<CudaTensorLoader>> make_dummy_loader(const ModelLoadOptions&) {
  return std::make_unique<recording::Loader>();
}

namespace cuda {

Result<DeviceBuffer> DeviceBuffer::allocate(int64_t size_bytes, std::string_view) {
  DeviceBuffer buffer;
  const auto rounded = static_cast<size_t>((size_bytes + 255) / 256 * 256);
  buffer.data_ = static_cast<std::byte*>(std::aligned_alloc(256, rounded));
  buffer.size_bytes_ = size_bytes;
  return buffer;
}
DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  swap(other);
  return *this;
}
DeviceBuffer::~DeviceBuffer() {
  recording::memory.release(data_, size_bytes_);
  std::free(data_);
}
void DeviceBuffer::swap(DeviceBuffer& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
}

// Its memory stays while it is released.
Result<std::unique_ptr<ReleasableBuffer>> ReleasableBuffer::allocate(int64_t size_bytes,
                                                                     std::string_view what) {
  std::unique_ptr<ReleasableBuffer> buffer(new ReleasableBuffer(size_bytes, what));
  const auto rounded = static_cast<size_t>((size_bytes + 255) / 256 * 256);
  buffer->address_ = reinterpret_cast<uint64_t>(std::aligned_alloc(256, rounded));
  buffer->handle_ = 1;
  return buffer;
}
ReleasableBuffer::~ReleasableBuffer() {
  recording::memory.release(data(), size_bytes_);
  std::free(data());
}
Status ReleasableBuffer::release() {
  handle_ = 0;
  return Status();
}
Status ReleasableBuffer::restore() {
  handle_ = 1;
  return Status();
}

Status copy_to_device(void* device, const void*, int64_t size_bytes, const Stream&) {
  recording::memory.write(flat(device, size_bytes), "copied");
  return Status();
}

}  // namespace cuda

namespace kernels::cuda {

Status token_rows(const TokenRowsArgs& args, const LaunchOptions& launch) {
  const int64_t bytes = int64_t{4} * args.entries.num_tokens;
  Launch("token_rows", launch)
      .add("entries", recording::entries_text(args.entries))
      .add("page", args.page_size)
      .write(flat(args.kv_rows, bytes))
      .write(flat(args.positions, bytes));
  return Status();
}

int32_t fixed_split(const AttentionShape&, int32_t, int32_t) { return 256; }
Result<bool> shares_segments(const AttentionShape&) { return false; }
Result<size_t> attention_workspace_bytes(const AttentionShape&, int32_t max_entries, int32_t) {
  return static_cast<size_t>(1024 * max_entries);
}

Status attention_plan(const AttentionShape& shape, const EntryArrays& entries, void* workspace,
                      size_t bytes, const LaunchOptions& launch) {
  Launch("attention_plan", launch)
      .add("shape", recording::shape_text(shape))
      .add("entries", recording::entries_text(entries))
      .write(flat(workspace, static_cast<int64_t>(bytes)));
  return Status();
}

Status attention(const AttentionArgs& args, const LaunchOptions& launch) {
  const AttentionShape& s = args.shape;
  const int64_t q = int64_t{s.num_heads} * s.head_dim, kv = int64_t{s.num_kv_heads} * s.head_dim;
  const int64_t rows = args.entries.num_tokens;
  Launch("attention", launch)
      .add("shape", recording::shape_text(s))
      .add("entries", recording::entries_text(args.entries))
      .read("plan", flat(args.workspace, 1))
      .read("q", area(args.q, rows, q, args.q_stride, s.type))
      .read("k", area(args.new_keys, rows, kv, args.new_kv_stride, s.type))
      .read("v", area(args.new_values, rows, kv, args.new_kv_stride, s.type))
      .add("pages", weight(args.kv.k))
      .add("scale", args.scale)
      .add("softcap", args.softcap)
      .add("sinks", weight(args.sinks))
      .add("cached_early", args.prefetch_cached_kv)
      .write(area(args.out, rows, q, args.out_stride, s.type));
  return Status();
}

Result<bool> expands_latents(const LatentHead& head, int32_t rank, DType type) {
  return type == DType::kBFloat16 && head.nope_dim == 128 && head.rope_dim == 64 &&
         head.value_dim == 128 && rank == 512;
}

Status plan_expanded(const EntryArrays& entries, const ExpandedPlan& plan,
                     const LaunchOptions& launch) {
  const int64_t bytes = int64_t{4} * (entries.num_entries + 1);
  Launch("plan_expanded", launch)
      .add("entries", recording::entries_text(entries))
      .write(flat(plan.row_begin, bytes))
      .write(flat(plan.tile_begin, bytes))
      .write(flat(plan.counters, 8));
  return Status();
}

Status gather_latents(const GatherLatentsArgs& args, const LaunchOptions& launch) {
  Launch("gather_latents", launch)
      .read("plan", flat(args.plan.row_begin, 4))
      .add("pages", weight(args.kv.k))
      .write(flat(args.out, int64_t{2} * args.rows * args.kv.head_dim));
  return Status();
}

Status attention_expanded(const ExpandedAttentionArgs& args, const LaunchOptions& launch) {
  const int64_t tokens = args.entries.num_tokens;
  Launch("attention_expanded", launch)
      .add("heads", args.num_heads)
      .read("plan", flat(args.plan.tile_begin, 4))
      .read("q_nope", flat(args.q_nope, 256))
      .read("q_rope", flat(args.q_rope, 128))
      .read("keys_values", flat(args.keys_values, int64_t{512} * args.rows * args.num_heads))
      .read("k_rope", flat(args.k_rope, 128))
      .add("scale", args.scale)
      .write(
          area(args.out, tokens, int64_t{128} * args.num_heads, args.out_stride, DType::kBFloat16));
  return Status();
}

Status qk_rope_append(const QkRopeAppendArgs& args, const LaunchOptions& launch) {
  const int64_t q = int64_t{args.num_heads} * args.kv.head_dim;
  const int64_t kv = int64_t{args.kv.num_kv_heads} * args.kv.head_dim;
  Launch("qk_rope_append", launch)
      .read("q", area(args.q, args.tokens, q, args.q_stride, args.type))
      .read("k", area(args.k, args.tokens, kv, args.k_stride, args.type))
      .read("v", area(args.v, args.tokens, kv, args.v_stride, args.type))
      .add("tokens", args.tokens)
      .add("heads", args.num_heads)
      .add("norms", weight(args.q_norm) + "," + weight(args.k_norm))
      .add("epsilon", args.epsilon)
      .add("offset", args.norm_offset)
      .add("rope",
           fmt::format("{}:{}+{}*{},{}", recording::pointer(args.frequencies), args.rotary_begin,
                       args.rotary_dim, args.attention_factor, args.interleaved))
      .read("positions", flat(args.positions, 4))
      .read("kv_rows", flat(args.kv_rows, 4))
      .add("pages", weight(args.kv.k))
      .write(area(args.q, args.tokens, q, args.q_stride, args.type))
      .write(area(args.new_keys, args.tokens, kv, args.k_stride, args.type));
  return Status();
}

Status gather_rows(const GatherArgs& args, const LaunchOptions& launch) {
  Launch("gather_rows", launch)
      .read("table", area(args.table, args.num_rows, args.dim, args.dim, args.type))
      .add("of", args.num_rows)
      .add("ids", weight(args.ids))
      .add("rows", args.tokens)
      .add("dim", args.dim)
      .write(area(args.out, args.tokens, args.dim, args.out_stride, args.type));
  return Status();
}

Status add_control(const AddControlArgs& args, const LaunchOptions& launch) {
  const recording::Area x = area(args.x, args.rows, args.dim, args.x_stride, args.type);
  Launch("add_control", launch)
      .read("x", x)
      .add("rows", args.rows)
      .add("dim", args.dim)
      .add("layer", args.layer)
      .add("tokens", recording::pointer(args.tokens))
      .write(x);
  return Status();
}

Status scale(const ScaleArgs& args, const LaunchOptions& launch) {
  const recording::Area x = area(args.x, args.rows, args.dim, args.x_stride, args.type);
  Launch("scale", launch)
      .read("x", x)
      .add("rows", args.rows)
      .add("dim", args.dim)
      .add("scale", args.scale)
      .add("softcap", args.softcap)
      .write(x);
  return Status();
}

Status add_scaled(const AddScaledArgs& args, const LaunchOptions& launch) {
  const recording::Area y = area(args.y, args.rows, args.dim, args.y_stride, args.type);
  Launch("add_scaled", launch)
      .read("x", area(args.x, args.rows, args.dim, args.x_stride, args.type))
      .read("y", y)
      .add("rows", args.rows)
      .add("dim", args.dim)
      .add("scale", args.scale)
      .write(y);
  return Status();
}

Status gated(const GatedArgs& args, const LaunchOptions& launch) {
  Launch("gated", launch)
      .read("gate", area(args.gate, args.rows, args.dim, args.gate_stride, args.type))
      .read("up", area(args.up, args.rows, args.dim, args.up_stride, args.type))
      .add("rows", args.rows)
      .add("dim", args.dim)
      .add("activation", static_cast<int>(args.activation))
      .add("limit", args.limit)
      .write(area(args.y, args.rows, args.dim, args.y_stride, args.type));
  return Status();
}

Status gelu(const GeluRowsArgs& args, const LaunchOptions& launch) {
  const auto rows = [&](const void* data, int64_t stride) {
    return area(data, args.rows, args.dim, stride, args.type);
  };
  Launch("gelu", launch)
      .read("x", rows(args.x, args.x_stride))
      .add("kind", static_cast<int>(args.kind))
      .write(rows(args.y, args.y_stride));
  return Status();
}

Status place_rows(const PlaceRowsArgs& args, const LaunchOptions& launch) {
  Launch("place_rows", launch)
      .add("rows", args.count)
      .write(area(args.out, args.count, args.dim, args.out_stride, args.type));
  return Status();
}

Status mix_rows(const MixRowsArgs& args, const LaunchOptions& launch) {
  Launch("mix_rows", launch)
      .add("rows", args.count)
      .write(area(args.out, args.count, args.dim, args.dim, args.type));
  return Status();
}

Status placed_rope(const PlacedRopeArgs& args, const LaunchOptions& launch) {
  const recording::Area x =
      area(args.x, args.rows, int64_t{args.heads} * args.head_dim, args.x_stride, args.type);
  Launch("placed_rope", launch).read("x", x).add("rows", args.rows).write(x);
  return Status();
}

Status place_patches(const PlacePatchesArgs& args, const LaunchOptions& launch) {
  const int32_t rows = args.pictures * (args.patches_each + (args.class_row ? 1 : 0));
  Launch("place_patches", launch)
      .add("rows", rows)
      .add("columns", args.columns)
      .write(area(args.out, rows, args.columns, args.columns, args.type));
  return Status();
}

Status bidirectional_attention(const BidirectionalArgs& args, const LaunchOptions& launch) {
  const auto rows = [&](const void* data, int64_t stride) {
    return area(data, int64_t{args.sequences} * args.rows, int64_t{args.num_heads} * args.head_dim,
                stride, args.type);
  };
  Launch("bidirectional_attention", launch)
      .read("q", rows(args.q, args.stride))
      .read("k", rows(args.k, args.stride))
      .read("v", rows(args.v, args.stride))
      .add("sequences", args.sequences)
      .write(rows(args.out, args.out_stride));
  return Status();
}

Status rms_norm(const RmsNormArgs& args, const LaunchOptions& launch) {
  Launch("rms_norm", launch)
      .read("x", area(args.x, args.rows, args.dim, args.x_stride, args.type))
      .add("weight", weight(args.weight))
      .add("offset", args.weight_offset)
      .add("epsilon", args.epsilon)
      .add("rows", args.rows)
      .add("dim", args.dim)
      .write(area(args.y, args.rows, args.dim, args.y_stride, args.type));
  return Status();
}

Status layer_norm(const LayerNormArgs& args, const LaunchOptions& launch) {
  Launch("layer_norm", launch)
      .read("x", area(args.x, args.rows, args.dim, args.x_stride, args.type))
      .add("weight", weight(args.weight) + "," + weight(args.bias))
      .add("epsilon", args.epsilon)
      .add("rows", args.rows)
      .add("dim", args.dim)
      .write(area(args.y, args.rows, args.dim, args.y_stride, args.type));
  return Status();
}

Status scale_columns(const ScaleColumnsArgs& args, const LaunchOptions& launch) {
  Launch("scale_columns", launch)
      .read("x", area(args.x, args.rows, args.dim, args.x_stride, args.type))
      .add("weight", weight(args.weight))
      .add("rows", args.rows)
      .write(area(args.y, args.rows, args.dim, args.y_stride, args.type));
  return Status();
}

Status mean_parts(const MeanPartsArgs& args, const LaunchOptions& launch) {
  Launch("mean_parts", launch)
      .read("x", area(args.x, args.rows, args.parts * args.dim, args.x_stride, args.type))
      .add("parts", args.parts)
      .add("rows", args.rows)
      .write(area(args.y, args.rows, args.dim, args.y_stride, args.type));
  return Status();
}

Status pool_rows(const PoolRowsArgs& args, const LaunchOptions& launch) {
  Launch("pool_rows", launch)
      .read("begins", flat(args.begins, int64_t{args.texts + 1} * 4))
      .add("texts", args.texts)
      .write(area(args.y, args.texts, args.dim, args.dim, DType::kFloat32));
  return Status();
}

Status score(const ScoreArgs& args, const LaunchOptions& launch) {
  Launch("score", launch)
      .read("x", area(args.x, args.rows, args.dim, args.x_stride, args.type))
      .add("weight", weight(args.weights) + "," + weight(args.bias))
      .add("rows", args.rows)
      .add("dim", args.dim)
      .add("outputs", args.outputs)
      .write(flat(args.y, int64_t{4} * args.rows * args.outputs));
  return Status();
}

Status route_and_arrange(const RouteArgs& chosen, const ArrangeArgs& args,
                         const LaunchOptions& launch) {
  const int64_t bytes = int64_t{4} * args.num_pairs;
  Launch("route_and_arrange", launch)
      .read("scores", flat(chosen.logits, int64_t{4} * chosen.rows * chosen.spec.num_experts))
      .add("rows", chosen.rows)
      .add("top_k", chosen.spec.top_k)
      .add("correction", weight(chosen.correction))
      .add("of", args.num_experts)
      .read("replicas", flat(args.replicas.table, 4 * (args.replicas.num_experts + 1)))
      .write(flat(chosen.experts, bytes))
      .write(flat(chosen.weights, bytes))
      .write(flat(args.plan.slots, bytes))
      .write(flat(args.plan.pairs, bytes));
  return Status();
}

Status quantize_rows(const QuantizeRowsArgs& args, const LaunchOptions& launch) {
  Launch("quantize_rows", launch)
      .read("x", area(args.x, args.rows, args.dim, args.x_stride, args.type))
      .add("norm", weight(args.norm_weight))
      .add("rows", args.rows)
      .write(flat(args.y, int64_t{args.rows} * args.dim))
      .write(flat(args.scales, int64_t{4} * args.rows));
  return Status();
}

Result<bool> grouped_linear_fuses(const GroupedArgs& args) {
  return args.activation.has_value() && args.type == DType::kBFloat16 &&
         (args.weight_scales != nullptr || !args.row_invariant);
}

Status grouped_linear(const GroupedArgs& args, const LaunchOptions& launch) {
  const bool by_plan = args.plan != nullptr;
  const int64_t y_rows = by_plan ? args.num_pairs : args.rows;
  const int64_t x_rows =
      by_plan && args.pairs_per_row > 0 ? args.num_pairs / args.pairs_per_row : y_rows;
  const int64_t groups = by_plan ? 0 : args.num_groups - 1;
  const int64_t x_columns = groups * args.x_group_stride + args.in_features;
  const int64_t outputs = args.activation ? args.out_features / 2 : args.out_features;
  const int64_t y_columns = groups * args.y_group_stride + outputs;
  Launch l(args.activation ? "grouped_gated_linear" : "grouped_linear", launch);
  if (args.weight_scales == nullptr)
    l.read("x", area(args.x, x_rows, x_columns, args.x_stride, args.type));
  else
    l.read("x", flat(args.x, x_rows * x_columns)).read("x_scales", flat(args.x_scales, 4 * x_rows));
  const std::string scales = args.weight_scales == nullptr ? "" : "," + weight(args.weight_scales);
  l.add("weight", weight(args.weights) + "," + weight(args.bias) + scales)
      .add("apart", args.weights_stride)
      .add("shape", fmt::format("{}x{}x{}", args.num_groups, args.in_features, args.out_features))
      .add("groups_apart", fmt::format("{},{}", args.x_group_stride, args.y_group_stride))
      .read("plan", flat(by_plan ? args.plan->slots : nullptr, 4))
      .add("rows", fmt::format("{}/{}", y_rows, args.pairs_per_row))
      .write(area(args.y, y_rows, y_columns, args.y_stride, args.type));
  return Status();
}

Status combine(const CombineArgs& args, const LaunchOptions& launch) {
  const auto rows = [&](const void* data) {
    return area(data, args.rows, args.dim, args.dim, args.type);
  };
  const int64_t pairs = int64_t{args.rows} * args.top_k;
  Launch l("combine", launch);
  if (args.top_k > 0) {
    l.read("x", area(args.x, pairs, args.dim, args.dim, args.type))
        .read("slots", flat(args.slots, 4 * pairs))
        .read("weights", flat(args.weights, 4 * pairs));
  }
  l.read("shared", rows(args.shared))
      .read("gate", flat(args.shared_gate, int64_t{4} * args.rows))
      .read("residual", rows(args.residual))
      .add("rows", args.rows)
      .add("dim", args.dim)
      .add("top_k", args.top_k)
      .add("scale", args.scale)
      .write(rows(args.y));
  return Status();
}

Status copy_parts(const CopyPartsArgs& args, const LaunchOptions& launch) {
  const auto rows = [&](const void* data, int64_t stride, int32_t head, int32_t begin) {
    const auto size = static_cast<int64_t>(dtype_size(args.type));
    return area(static_cast<const std::byte*>(data) + begin * size, args.rows,
                int64_t{args.heads - 1} * head + args.count, stride, args.type);
  };
  Launch("copy_parts", launch)
      .read("x", rows(args.x, args.x_stride, args.x_head, args.from_begin))
      .add("heads", fmt::format("{}:{}+{}->{}+{}", args.heads, args.x_head, args.from_begin,
                                args.y_head, args.to_begin))
      .add("count", args.count)
      .add("rows", args.rows)
      .write(rows(args.y, args.y_stride, args.y_head, args.to_begin));
  return Status();
}

Result<bool> small_batch_moe_supports(const SmallBatchMoeArgs& args) {
  return args.type == DType::kBFloat16 && args.rows <= kSmallBatchMoeRows &&
         args.rows * args.router.top_k <= kSmallBatchMoePairs &&
         ((!args.int4 && !args.mxfp4) || args.rows == 1) &&
         (args.gate_up_scales == nullptr) == (args.down_scales == nullptr);
}

Status small_batch_moe(const SmallBatchMoeArgs& args, const LaunchOptions& launch) {
  const auto rows = [&](const void* data, int64_t columns) {
    return area(data, args.rows, columns, columns, args.type);
  };
  const int64_t inner = int64_t{args.router.top_k} * args.ffn;
  Launch l("small_batch_moe", launch);
  l.read("x", rows(args.x, args.dim))
      .read("residual", rows(args.residual, args.dim))
      .add("norm",
           fmt::format("{},{},{}", weight(args.norm_weight), args.norm_offset, args.norm_epsilon))
      .add("router", weight(args.router_weights) + "," + weight(args.router_bias) + "," +
                         weight(args.correction))
      .add("experts", weight(args.gate_up) + "," + weight(args.gate_up_bias) + "," +
                          weight(args.down) + "," + weight(args.down_bias))
      .add("shape", fmt::format("{}x{},ffn={},{},limit={}", args.rows, args.dim, args.ffn,
                                static_cast<int>(args.activation), args.limit))
      .add("scale", args.scale)
      .add("shared", args.shared_ffn);
  if (args.gate_up_scales != nullptr)
    l.add("scales", weight(args.gate_up_scales) + "," + weight(args.down_scales));
  if (args.shared_ffn > 0) {
    if (args.shared_gate_up_scales != nullptr)
      l.add("of_shared",
            weight(args.shared_gate_up_scales) + "," + weight(args.shared_down_scales));
    l.add("of", weight(args.shared_gate_up) + "," + weight(args.shared_down) + "," +
                    weight(args.shared_gate_weights));
    l.write(rows(args.shared_inner, args.shared_ffn));
  }
  l.write(rows(args.normed, args.dim)).write(rows(args.inner, inner)).write(rows(args.y, args.dim));
  return Status();
}

int64_t lora_workspace_bytes(const LoraMatrix&, int32_t, int32_t) { return 4096; }

// The workspace stands for what shrinking leaves there.
Status lora_shrink(const LoraArgs& args, const LaunchOptions& launch) {
  Launch("lora_shrink", launch)
      .read("x",
            area(args.x, args.rows.max_rows, args.matrix.in_features, args.x_stride, args.type))
      .add("matrix", args.matrix.index)
      .write(flat(args.workspace, args.workspace_bytes));
  return Status();
}
Status lora_expand(const LoraArgs& args, const LaunchOptions& launch) {
  const LoraMatrix::Part& last = args.matrix.parts[args.matrix.part_count - 1];
  const auto y =
      area(args.y, args.rows.max_rows, last.column + last.out_features, args.y_stride, args.type);
  Launch("lora_expand", launch)
      .read("t", flat(args.workspace, args.workspace_bytes))
      .add("matrix", args.matrix.index)
      .read("y", y)
      .write(y);
  return Status();
}

bool megakernel_supports(const MegakernelShape& shape) { return shape.num_layers > 0; }
bool megakernel_supports_page_size(int32_t) { return true; }
Result<size_t> megakernel_workspace_bytes(const MegakernelShape&) { return size_t{4096}; }

Status megakernel(const MegakernelArgs& args, const LaunchOptions& launch) {
  const MegakernelShape& s = args.shape;
  Launch l("megakernel", launch);
  l.add("shape", fmt::format("{}x{},ffn={},{}/{}x{}", s.num_layers, s.hidden, s.ffn, s.num_heads,
                             s.num_kv_heads, s.head_dim))
      .add("embedding", weight(args.embedding))
      .add("of", args.vocab_size)
      .add("entries", recording::entries_text(args.entries));
  for (const MegakernelLayer& layer : args.layers) {
    l.add("layer",
          fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{}:{}*{},{},w{},{},{},{},{}",
                      weight(layer.input_norm), weight(layer.qkv), weight(layer.qkv_bias),
                      weight(layer.q_norm), weight(layer.k_norm), weight(layer.output),
                      weight(layer.output_bias), weight(layer.mlp_norm), weight(layer.gate_up),
                      weight(layer.gate_up_bias), weight(layer.down), weight(layer.down_bias),
                      weight(layer.k), recording::pointer(layer.frequencies), layer.rotary_dim,
                      layer.attention_factor, layer.interleaved, layer.sliding_window, layer.scale,
                      layer.softcap, layer.norm_epsilon, layer.qk_epsilon));
  }
  l.write(flat(args.out, int64_t{2} * s.hidden));
  return Status();
}

Status draw(const DrawArgs&, const LaunchOptions&) { return Status(); }

// The result is known by what it was made from.
Status relayout(const RelayoutArgs& args, const LaunchOptions&) {
  const int64_t bytes =
      int64_t{args.groups} * args.rows * args.columns * static_cast<int64_t>(dtype_size(args.type));
  recording::memory.write(flat(args.to, bytes), "relayout(" + weight(args.from) + ")");
  return Status();
}

namespace {

class RecordingLinear final : public Linear {
 public:
  void set_row_invariant() override {}
  size_t workspace_bytes(std::span<const LinearArgs>, int32_t) const override { return 4096; }
  Status tune(std::span<const LinearArgs> shapes, void*, size_t, Stream) override {
    for (const LinearArgs& args : shapes) record("tune", args, {});
    return Status();
  }
  Status run(const LinearArgs& args, void*, size_t, const LaunchOptions& launch) override {
    record("linear", args, launch);
    return Status();
  }

 private:
  static void record(std::string_view name, const LinearArgs& args, const LaunchOptions& launch) {
    const auto y = [&](const void* data) {
      return area(data, args.rows, args.out_features, args.y_stride, args.out_type);
    };
    const std::string scales =
        args.weight_scales == nullptr ? "" : "," + weight(args.weight_scales);
    Launch(name, launch)
        .read("x", area(args.x, args.rows, args.in_features, args.x_stride, args.type))
        .add("weight", weight(args.weights) + "," + weight(args.bias) + scales)
        .add("shape", fmt::format("{}x{}x{}", args.rows, args.in_features, args.out_features))
        .add("out", args.out_type == args.type ? "same" : "float32")
        .add("silu_mul", args.silu_mul)
        .read("residual", y(args.residual))
        .add("norm", fmt::format("{},{}", weight(args.norm_weight),
                                 args.norm_weight == nullptr ? 0 : args.norm_epsilon))
        .write(y(args.y));
  }
};

}  // namespace

Result<bool> Linear::multiplies_e4m3() { return true; }
Result<std::unique_ptr<Linear>> Linear::create(const LinearOptions&) {
  return std::make_unique<RecordingLinear>();
}
std::filesystem::path default_linear_cache() { return {}; }

}  // namespace kernels::cuda
}  // namespace espalier
