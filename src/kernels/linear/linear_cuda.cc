// Linear on the GPU: chooses the kernel of each GEMM (gemv, gemm_small_batch or cuBLASLt), and
// tunes by measuring.
#include <algorithm>
#include <cstdlib>
#include <utility>

#include "kernels/activation/cuda.h"
#include "kernels/cuda/launch.h"
#include "kernels/linear/block_gemm.h"
#include "kernels/linear/cublaslt.h"
#include "kernels/linear/cuda.h"
#include "kernels/linear/gemm_int4.h"
#include "kernels/linear/gemm_small_batch.h"
#include "kernels/linear/gemv.h"
#include "kernels/linear/linear_tuning.h"
#include "kernels/linear/quantize_rows.h"
#include "kernels/linear/reorder_rows.h"
#include "kernels/linear/tuned_kernels.h"
#include "kernels/norm/cuda.h"

namespace espalier::kernels::cuda {
namespace {

// What programmatic dependent launch (PDL) saves a GEMM of our own in a step; cuBLASLt's kernels
// cannot have it. 2 to 3 us were measured.
constexpr float kPdlGainMs = 2e-3f;

size_t round_up(size_t bytes) { return (bytes + 255) / 256 * 256; }

Status check(const LinearArgs& args) {
  if (args.type == DType::kFloat16 || args.out_type == DType::kFloat16)
    return error(StatusCode::kUnimplemented, "linear: F16 is not supported");
  if (args.rows < 0 || args.in_features < 8 || args.in_features % 8 != 0 || args.out_features < 8 ||
      args.out_features % 8 != 0)
    return invalid_argument("linear: {} rows of {} x {}, but both features must be multiples of 8",
                            args.rows, args.out_features, args.in_features);
  if (args.weight_scales != nullptr &&
      (args.type != DType::kBFloat16 || args.in_features % kQuantizedRowMultiple != 0 ||
       gemm_outputs(args) % kQuantizedRowMultiple != 0))
    return invalid_argument(
        "linear: {} x {} weights of e4m3, but both features must be multiples of {} and the other "
        "type BF16",
        gemm_outputs(args), args.in_features, kQuantizedRowMultiple);
  if (args.int4.group != 0 && (args.type != DType::kBFloat16 || args.weight_scales != nullptr ||
                               args.in_features % 32 != 0 || gemm_outputs(args) % 16 != 0))
    return invalid_argument(
        "linear: {} x {} weights of 4 bits, but outputs must be a multiple of 16, inputs of 32 and "
        "the other type BF16",
        args.out_features, args.in_features);
  if (args.x_columns != nullptr && args.int4.group == 0)
    return invalid_argument("linear: another order of inputs is for weights of 4 bits");
  if (args.block_scales &&
      (args.weight_scales == nullptr || (args.silu_mul && args.out_features % kScaleBlock != 0)))
    return invalid_argument(
        "linear: scales of blocks need weights of e4m3, and of gate and up a multiple of {} "
        "outputs, not {}",
        kScaleBlock, args.out_features);
  if (args.silu_mul && (args.residual != nullptr || args.out_type != args.type))
    return error(StatusCode::kUnimplemented,
                 "linear: silu_mul takes no residual and no other output type");
  if (args.out_type != args.type && (args.bias != nullptr || args.residual != nullptr))
    return error(StatusCode::kUnimplemented,
                 "linear: bias and residual need an output of the weights' type");
  return {};
}

// Scratch behind cuBLASLt's part of the workspace: the rows that the GEMM reads where they are not
// x itself, [norm(x)] or of e4m3 [x, scales]; then the rows that it writes where they are not y:
// [gate | up], or of e4m3 those to which the residual is added afterwards.
bool is_e4m3(const LinearArgs& args) { return args.weight_scales != nullptr; }
size_t bytes_of(int64_t rows, int64_t features, DType type) {
  return round_up(static_cast<size_t>(rows * features) * dtype_size(type));
}
size_t e4m3_bytes(const LinearArgs& args) {
  return round_up(static_cast<size_t>(args.rows) * static_cast<size_t>(args.in_features));
}
size_t input_bytes(const LinearArgs& args) {
  const int64_t scales = args.block_scales ? scale_blocks(args.in_features) : 1;
  if (is_e4m3(args))
    return e4m3_bytes(args) + bytes_of(group_scale_stride(args.rows), scales, DType::kFloat32);
  return bytes_of(args.rows, args.in_features, args.type);
}
size_t scratch_bytes(const LinearArgs& args) {
  const bool has_input = is_e4m3(args) || args.norm_weight != nullptr || args.x_columns != nullptr;
  size_t bytes = has_input ? input_bytes(args) : 0;
  if (args.silu_mul || is_e4m3(args)) bytes += bytes_of(args.rows, gemm_outputs(args), args.type);
  return bytes;
}
// In front of all that: weights of 4 bits as bfloat16.
size_t widened_bytes(const LinearArgs& args) {
  return args.int4.group == 0 ? 0 : bytes_of(gemm_outputs(args), args.in_features, args.type);
}
// The same GEMM with such weights.
LinearArgs widened(LinearArgs args, void* weights) {
  args.weights = weights;
  args.int4 = {};
  args.x_columns = nullptr;
  return args;
}
char* scratch_of(void* workspace) { return static_cast<char*>(workspace) + kCublasLtBytes; }

// The rows in the order of the weights' inputs, normalised on the way.
Status reorder_first(LinearArgs& args, void* workspace, const LaunchOptions& launch) {
  void* rows = scratch_of(workspace);
  ESP_RETURN_IF_ERROR(reorder_rows({.x = args.x,
                                    .x_stride = args.x_stride,
                                    .norm_weight = args.norm_weight,
                                    .norm_epsilon = args.norm_epsilon,
                                    .columns = args.x_columns,
                                    .y = rows,
                                    .rows = args.rows,
                                    .dim = args.in_features},
                                   launch));
  args.x = rows;
  args.x_stride = args.in_features;
  args.x_columns = nullptr;
  args.norm_weight = nullptr;
  return {};
}

Status norm_first(LinearArgs& args, void* workspace, const LaunchOptions& launch) {
  if (args.x_columns != nullptr) return reorder_first(args, workspace, launch);
  if (args.norm_weight == nullptr) return {};
  void* normed = scratch_of(workspace);
  ESP_RETURN_IF_ERROR(rms_norm({.type = args.type,
                                .x = args.x,
                                .x_stride = args.x_stride,
                                .weight = args.norm_weight,
                                .y = normed,
                                .y_stride = args.in_features,
                                .rows = args.rows,
                                .dim = args.in_features,
                                .epsilon = args.norm_epsilon},
                               launch));
  args.x = normed;
  args.x_stride = args.in_features;
  return {};
}

// The rows as e4m3, normalised on the way, scales of blocks as cuBLASLt reads them.
Status quantize_first(LinearArgs& args, void* workspace, const LaunchOptions& launch) {
  if (args.x_scales != nullptr) return {};
  if (args.block_scales) args.x_scale_stride = args.rows;
  auto* rows = reinterpret_cast<uint8_t*>(scratch_of(workspace));
  auto* scales = reinterpret_cast<float*>(rows + e4m3_bytes(args));
  ESP_RETURN_IF_ERROR(quantize_rows({.type = args.type,
                                     .x = args.x,
                                     .x_stride = args.x_stride,
                                     .norm_weight = args.norm_weight,
                                     .norm_epsilon = args.norm_epsilon,
                                     .y = rows,
                                     .scales = scales,
                                     .group_stride = args.x_scale_stride,
                                     .rows = args.rows,
                                     .dim = args.in_features},
                                    launch));
  args.x = rows;
  args.x_stride = args.in_features;
  args.x_scales = scales;
  args.norm_weight = nullptr;
  return {};
}

// What the GEMM reads, ready.
Status prepare(LinearArgs& args, void* workspace, const LaunchOptions& launch) {
  return is_e4m3(args) ? quantize_first(args, workspace, launch)
                       : norm_first(args, workspace, launch);
}

// The scratch for the rows that a GEMM writes; behind those that prepare() made, if it made any.
void* output_scratch(const LinearArgs& args, void* workspace) {
  char* scratch = scratch_of(workspace);
  return args.x == scratch ? scratch + input_bytes(args) : scratch;
}

// y = silu(gate) * up from the [gate | up] rows of a GEMM.
Status silu_mul_rows(const LinearArgs& args, void* gate_up, const LaunchOptions& launch) {
  const size_t half = static_cast<size_t>(args.out_features) * dtype_size(args.type);
  return silu_mul({.type = args.type,
                   .gate = gate_up,
                   .gate_stride = gemm_stride(args),
                   .up = static_cast<char*>(gate_up) + half,
                   .up_stride = gemm_stride(args),
                   .y = args.y,
                   .y_stride = args.y_stride,
                   .rows = args.rows,
                   .dim = args.out_features},
                  launch);
}

// y = residual + the rows of `plain`, the same GEMM without one.
Status add_residual(const LinearArgs& args, const LinearArgs& plain, const LaunchOptions& launch) {
  const size_t bytes = static_cast<size_t>(args.out_features) * dtype_size(args.type);
  const auto pitch = static_cast<size_t>(args.y_stride) * dtype_size(args.type);
  if (args.residual != args.y)
    ESP_RETURN_IF_ERROR(cuda_status(
        cudaMemcpy2DAsync(args.y, pitch, args.residual, pitch, bytes,
                          static_cast<size_t>(args.rows), cudaMemcpyDeviceToDevice, launch.stream),
        "linear: residual"));
  return add_scaled({.type = args.type,
                     .x = plain.y,
                     .x_stride = plain.y_stride,
                     .y = args.y,
                     .y_stride = args.y_stride,
                     .rows = args.rows,
                     .dim = args.out_features},
                    {.stream = launch.stream});
}

// The configuration of gemm_small_batch that is measured. Others look 5 % better alone and are not
// in a layer, where the next kernel's first weights come meanwhile.
std::optional<SmallBatchConfig> batch_candidate(const LinearArgs& args,
                                                const DeviceTraits& traits) {
  if (args.rows <= kSmallRows && !is_e4m3(args)) return std::nullopt;
  return small_batch_config(args, traits);
}

// One and two rows of a step with PDL, where gemm_small_batch fetches more of its weights than gemv
// while the kernel in front of it ends: half an 8 B shape on each of two H100 3.69 to 3.43 ms a
// step.
std::optional<SmallBatchConfig> early_config(const LinearArgs& args, const DeviceTraits& traits,
                                             bool row_invariant, const LaunchOptions& launch) {
  if (args.rows > kSmallRows || !launch.pdl || args.norm_weight != nullptr || is_e4m3(args) ||
      row_invariant)
    return std::nullopt;
  const auto config = small_batch_config(args, traits);
  return config && gemm_small_batch_supports(args, *config, traits) ? config : std::nullopt;
}

// How few rows are multiplied with weights of 4 bits; nothing where these are widened first.
std::optional<Int4GemmConfig> int4_config(const LinearArgs& args, const DeviceTraits& traits,
                                          bool row_invariant) {
  LinearArgs gemm = args;
  gemm.norm_weight = nullptr;
  return row_invariant ? std::nullopt : int4_gemm_config(gemm, traits);
}

Status run_int4(const LinearArgs& args, const Int4GemmConfig& config, const DeviceTraits& traits,
                std::span<char> workspace, const LaunchOptions& launch) {
  const bool reads_x = args.norm_weight == nullptr && args.x_columns == nullptr;
  if (!reads_x && workspace.size() < kCublasLtBytes + input_bytes(args))
    return invalid_argument("linear: the workspace has {} bytes, but {} rows need {}",
                            workspace.size(), args.rows, kCublasLtBytes + input_bytes(args));
  LinearArgs gemm = args;
  ESP_RETURN_IF_ERROR(norm_first(gemm, workspace.data(), launch));
  return gemm_int4(gemm, config, traits, launch);
}

// The rows of a GEMM whose weights have been widened; nothing where they have one order.
Status reorder_widened(LinearArgs& args, std::span<char> workspace, Stream stream) {
  if (args.x_columns == nullptr) return {};
  if (workspace.size() < kCublasLtBytes + scratch_bytes(args))
    return invalid_argument("linear: the workspace has {} bytes behind weights of 4 bits",
                            workspace.size());
  return reorder_first(args, workspace.data(), {.stream = stream});
}

// Weights of 4 bits as bfloat16, at the front of the workspace, which becomes what is behind them.
// The GEMM with them may not begin early: it would read them too soon.
Status widen_first(LinearArgs& args, std::span<char>& workspace, Stream stream) {
  const size_t bytes = widened_bytes(args);
  if (workspace.size() < bytes)
    return invalid_argument("linear: the workspace has {} bytes, but weights of 4 bits need {}",
                            workspace.size(), bytes);
  ESP_RETURN_IF_ERROR(widen_int4({.format = args.int4,
                                  .records = args.weights,
                                  .out_features = gemm_outputs(args),
                                  .in_features = args.in_features,
                                  .y = workspace.data()},
                                 {.stream = stream}));
  const int32_t* columns = args.x_columns;  // of x, which is there as before
  args = widened(args, workspace.data());
  args.x_columns = columns;
  workspace = workspace.subspan(bytes);
  return reorder_widened(args, workspace, stream);
}

// The last rows of a GEMM with scales of blocks, which cuBLASLt does not multiply with those before
// them.
int32_t block_rest(const LinearArgs& args) {
  const bool alone = !args.block_scales || args.rows < kBlockGemmFour;
  return alone ? 0 : args.rows % kBlockGemmFour;
}

// The shapes that tuning measures: none with scales of blocks, for which cuBLASLt proposes an
// algorithm at each number of rows; those of 4 bits as they are where they are widened, with the
// front of the workspace as weights. Returns its bytes.
size_t measured_shapes(std::span<const LinearArgs> shapes, const DeviceTraits& traits,
                       bool row_invariant, void* workspace, std::vector<LinearArgs>& out) {
  size_t bytes = 0;
  for (const LinearArgs& shape : shapes) {
    bytes = std::max(bytes, widened_bytes(shape));
    if (shape.block_scales) continue;
    if (shape.int4.group == 0)
      out.push_back(shape);
    else if (!int4_config(shape, traits, row_invariant))
      out.push_back(widened(shape, workspace));
  }
  return bytes;
}

// Rows of this shape that its pointers have room for, to compare bits on.
int32_t rows_to_compare(std::span<const LinearArgs> shapes, const LinearArgs& shape) {
  int32_t compared = 0;
  for (const LinearArgs& other : shapes) {
    const bool same = shape_of(other) == shape_of(shape);
    if (same && (compared < kComparedRows || other.rows < compared) &&
        (other.rows >= kComparedRows || other.rows > compared))
      compared = other.rows;
  }
  return compared;
}

class LinearImpl final : public Linear {
 public:
  LinearImpl(std::unique_ptr<CublasLt> library, const DeviceTraits& traits,
             std::filesystem::path cache)
      : library_(std::move(library)), traits_(traits), tuned_(std::move(cache)) {}

  void set_row_invariant() override {
    library_->set_row_invariant();
    tuned_.set_row_invariant();
  }

  size_t workspace_bytes(std::span<const LinearArgs> shapes, int32_t max_rows) const override {
    size_t scratch = 0;
    for (const LinearArgs& shape : shapes) {
      LinearArgs args = shape;
      args.rows = max_rows;
      scratch = std::max(scratch, scratch_bytes(args) + widened_bytes(args));
    }
    return kCublasLtBytes + scratch;
  }

  Status tune(std::span<const LinearArgs> shapes, void* workspace, size_t workspace_bytes,
              Stream stream) override {
    bool changed = false;
    for (const LinearArgs& shape : shapes) ESP_RETURN_IF_ERROR(check(shape));
    std::vector<LinearArgs> measured;
    const size_t front =
        measured_shapes(shapes, traits_, library_->row_invariant(), workspace, measured);
    if (workspace_bytes < front)
      return invalid_argument("linear: tuning needs a workspace of {} bytes", front);
    shapes = measured;
    workspace = static_cast<char*>(workspace) + front;
    workspace_bytes -= front;
    for (const LinearArgs& shape : shapes) {
      if (shape.rows == 0 || tuned_.known(shape)) continue;
      LinearArgs args = shape;
      args.norm_weight = nullptr;  // the norm runs before either kernel; only the GEMM is compared
      ESP_RETURN_IF_ERROR(
          measure(args, rows_to_compare(shapes, shape), workspace, workspace_bytes, stream));
      changed = true;
    }
    if (changed) tuned_.share();
    return {};
  }

  Status run(const LinearArgs& args, void* workspace, size_t workspace_bytes,
             const LaunchOptions& launch) override {
    ESP_RETURN_IF_ERROR(check(args));
    if (args.rows == 0) return {};
    if (args.int4.group != 0) {
      std::span<char> room(static_cast<char*>(workspace), workspace_bytes);
      if (const auto config = int4_config(args, traits_, library_->row_invariant()))
        return run_int4(args, *config, traits_, room, launch);
      LinearArgs plain = args;
      ESP_RETURN_IF_ERROR(widen_first(plain, room, launch.stream));
      return run(plain, room.data(), room.size(), {.stream = launch.stream});
    }
    TunedKernel kernel = tuned_.nearest(args);
    const bool own = !kernel.algorithm && !kernel.batch;
    if (const auto config = early_config(args, traits_, library_->row_invariant(), launch))
      return gemm_small_batch(args, *config, traits_, launch);
    if (own && use_gemv(args)) return gemv(args, traits_, launch);
    if (workspace_bytes < kCublasLtBytes + scratch_bytes(args))
      return invalid_argument("linear: the workspace has {} bytes, but {} rows of {} x {} need {}",
                              workspace_bytes, args.rows, args.out_features, args.in_features,
                              kCublasLtBytes + scratch_bytes(args));
    if (block_gemm_supports(args, traits_, library_->row_invariant()))
      return block_gemm(args, traits_, library_->row_invariant(), scratch_of(workspace), launch);
    if (const int32_t others = block_rest(args); others > 0) {
      const int32_t fours = args.rows - others;
      ESP_RETURN_IF_ERROR(run(gemm_rows_of(args, 0, fours), workspace, workspace_bytes, launch));
      return run(gemm_rows_of(args, fours, others), workspace, workspace_bytes, launch);
    }
    LinearArgs gemm = args;
    ESP_RETURN_IF_ERROR(prepare(gemm, workspace, launch));
    if (own && use_gemv(gemm)) return gemv(gemm, traits_, launch);
    if (own && is_e4m3(gemm) && !library_->row_invariant())
      kernel.batch = small_batch_config(gemm, traits_);
    if (kernel.batch && gemm_small_batch_supports(gemm, *kernel.batch, traits_))
      return gemm_small_batch(gemm, *kernel.batch, traits_, launch);
    return cublaslt_matmul(gemm, kernel.algorithm, workspace, {.stream = launch.stream});
  }

 private:
  bool use_gemv(const LinearArgs& args) const {
    return !library_->row_invariant() && !is_e4m3(args) && gemv_supports(args, traits_);
  }

  // Runs the GEMM on cuBLASLt, without an algorithm by its first proposal, which is kept.
  Status cublaslt_matmul(const LinearArgs& args, std::optional<CublasLt::Algorithm> algorithm,
                         void* workspace, const LaunchOptions& launch) {
    if (args.block_scales && args.residual) return add_afterwards(args, workspace, launch);
    void* y = args.silu_mul ? output_scratch(args, workspace) : args.y;
    const bool row_invariant = library_->row_invariant();
    const auto propose = [&]() -> Result<CublasLt::Algorithm> {
      if (row_invariant) return library_->standard(args);
      ESP_ASSIGN_OR_RETURN(const auto proposals, library_->propose(args, 1));
      return proposals.front();
    };
    if (!algorithm) {
      auto proposal = propose();
      if (!proposal && is_e4m3(args) && args.residual != nullptr)
        return add_afterwards(args, workspace, launch);
      ESP_ASSIGN_OR_RETURN(algorithm, std::move(proposal));
      tuned_.set(args, {.algorithm = algorithm});
    }
    Status status = library_->multiply(args, *algorithm, y, workspace, launch.stream);
    if (!status.ok()) {  // the algorithm of another number of rows may not support these
      auto proposal = propose();
      if (!proposal && is_e4m3(args) && args.residual != nullptr)
        return add_afterwards(args, workspace, launch);
      if (!proposal) return proposal.error();
      status = library_->multiply(args, *proposal, y, workspace, launch.stream);
      if (!row_invariant) tuned_.set(args, {.algorithm = *proposal});
    }
    ESP_RETURN_IF_ERROR(std::move(status));
    return args.silu_mul ? silu_mul_rows(args, y, launch) : Status();
  }

  // cuBLASLt has no GEMM of e4m3 with a residual for some shapes: without it, then the sum.
  Status add_afterwards(const LinearArgs& args, void* workspace, const LaunchOptions& launch) {
    LinearArgs plain = args;
    plain.residual = nullptr;
    plain.y = output_scratch(args, workspace);
    plain.y_stride = args.out_features;
    ESP_RETURN_IF_ERROR(cublaslt_matmul(plain, tuned_.nearest(plain).algorithm, workspace, launch));
    return add_residual(args, plain, launch);
  }

  // compared: rows that the pointers of args have room for, to compare bits on.
  Status measure(const LinearArgs& args, int32_t compared, void* workspace, size_t workspace_bytes,
                 Stream stream) {
    if (workspace_bytes < kCublasLtBytes + scratch_bytes(args))
      return invalid_argument("linear: tuning {} rows needs a workspace of {} bytes", args.rows,
                              kCublasLtBytes + scratch_bytes(args));
    // The GEMM alone, whose output may be overwritten; the rows of e4m3 are made anew each time,
    // since the measurements overwrite the workspace.
    LinearArgs plain = args;
    const LaunchOptions launch{.stream = stream};
    plain.rows = std::max(plain.rows, compared);
    ESP_RETURN_IF_ERROR(prepare(plain, workspace, launch));
    plain.rows = args.rows;
    std::vector<CublasLt::Algorithm> algorithms;
    if (auto found = tuning_candidates(*library_, plain); found) {
      algorithms = *std::move(found);
    } else if (!is_e4m3(args) || args.residual == nullptr) {
      return found.error();
    }
    if (library_->row_invariant()) {
      ESP_ASSIGN_OR_RETURN(algorithms, same_bits(*library_, plain, compared, std::move(algorithms),
                                                 workspace, stream));
    }
    TunedKernel best;
    std::optional<float> best_ms;
    for (const auto& algorithm : algorithms) {
      const auto ms = time_ms(
          [&]() -> Status {
            LinearArgs gemm = args;
            ESP_RETURN_IF_ERROR(prepare(gemm, workspace, launch));
            return cublaslt_matmul(gemm, algorithm, workspace, launch);
          },
          workspace, workspace_bytes, stream);
      if (ms && (!best_ms || *ms < *best_ms)) best_ms = ms, best = {.algorithm = algorithm};
    }
    if (library_->row_invariant()) return keep(args, best, best_ms);
    if (const auto config = batch_candidate(plain, traits_)) {
      const auto ms = time_ms(
          [&]() -> Status {
            LinearArgs gemm = args;
            ESP_RETURN_IF_ERROR(prepare(gemm, workspace, launch));
            return gemm_small_batch(gemm, *config, traits_, launch);
          },
          workspace, workspace_bytes, stream);
      if (ms && (!best_ms || *ms - kPdlGainMs < *best_ms)) {
        best_ms = *ms - kPdlGainMs;
        best = {.batch = *config};
      }
    }
    if (use_gemv(args)) {
      const auto ms =
          time_ms([&] { return gemv(args, traits_, launch); }, workspace, workspace_bytes, stream);
      if (ms && (!best_ms || *ms <= *best_ms)) best_ms = ms, best = {};
    }
    return keep(args, best, best_ms);
  }

  Status keep(const LinearArgs& args, const TunedKernel& best, std::optional<float> best_ms) {
    ESP_RETURN_IF_ERROR(cuda_status(cudaGetLastError(), "linear: tuning"));
    if (!best_ms)
      return error(StatusCode::kInternal,
                   "linear: no kernel multiplies {} rows of {} x {} on this device", args.rows,
                   args.out_features, args.in_features);
    tuned_.set(args, best);
    return {};
  }

  const std::unique_ptr<CublasLt> library_;
  const DeviceTraits traits_;
  TunedKernels tuned_;
};

}  // namespace

std::filesystem::path default_linear_cache() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != 0)
    return std::filesystem::path(cache) / "espalier";
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home == 0) return {};
  return std::filesystem::path(home) / ".cache" / "espalier";
}

Result<bool> Linear::multiplies_e4m3() {
  ESP_ASSIGN_OR_RETURN(const DeviceTraits traits, device_traits());
  return traits.compute_capability == 90;
}

Result<std::unique_ptr<Linear>> Linear::create(const LinearOptions& options) {
  ESP_ASSIGN_OR_RETURN(const DeviceTraits traits, device_traits());
  ESP_ASSIGN_OR_RETURN(auto library, CublasLt::create());
  return std::make_unique<LinearImpl>(std::move(library), traits, options.cache_folder);
}

}  // namespace espalier::kernels::cuda
