// Linear on the GPU: chooses the kernel of each GEMM (gemv, gemm_small_batch or cuBLASLt), tunes
// cuBLASLt's algorithms by measuring, and shares the results through a tuning file.
//
// cuBLASLt is column-major: our rows [rows, in] are its [in x rows], so y = x W^T is its D = op(A)
// B with A = W [in x out] transposed, B = x, D = y [out x rows].
#include <cublasLt.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <tuple>
#include <vector>

#include "kernels/activation/cuda.h"
#include "kernels/cuda/launch.h"
#include "kernels/linear/cuda.h"
#include "kernels/linear/digest.h"
#include "kernels/linear/gemm_small_batch.h"
#include "kernels/linear/gemv.h"
#include "kernels/linear/tuning_file.h"
#include "kernels/norm/cuda.h"

namespace espalier::kernels::cuda {
namespace {

constexpr size_t kLibraryBytes = size_t{32} << 20;  // what cuBLASLt's manual advises for Hopper
constexpr int kProposals = 12;                      // algorithms that are measured for a shape
constexpr int kTimedRuns = 7;
constexpr size_t kFlushedBytes = size_t{128} << 20;
// What programmatic dependent launch (PDL) saves a GEMM of our own in a step; cuBLASLt's kernels
// cannot have it. 2 to 3 us were measured.
constexpr float kPdlGainMs = 2e-3f;
// Row-invariant GEMMs: cuBLASLt's first algorithm for kStandardRows rows is the standard of a
// shape, and others are compared with it on at least kComparedRows rows.
constexpr int32_t kStandardRows = 256;
constexpr int32_t kComparedRows = 64;

size_t round_up(size_t bytes) { return (bytes + 255) / 256 * 256; }

Status lt_status(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  return error(StatusCode::kInternal, "linear: {}: {}", what, cublasLtGetStatusString(status));
}

cudaDataType data_type(DType type) { return type == DType::kBFloat16 ? CUDA_R_16BF : CUDA_R_32F; }

int32_t gemm_outputs(const LinearArgs& args) {
  return args.silu_mul ? 2 * args.out_features : args.out_features;
}

// What an algorithm is chosen by, besides the number of rows.
struct Shape {
  int type = 0, out_type = 0, in = 0, out = 0, bias = 0, residual = 0;
  auto tied() const { return std::tie(type, out_type, in, out, bias, residual); }
  friend bool operator<(const Shape& a, const Shape& b) { return a.tied() < b.tied(); }
};

Shape shape_of(const LinearArgs& args) {
  return {.type = static_cast<int>(args.type),
          .out_type = static_cast<int>(args.silu_mul ? args.type : args.out_type),
          .in = args.in_features,
          .out = gemm_outputs(args),
          .bias = args.bias != nullptr,
          .residual = args.residual != nullptr};
}

using Algorithm = std::optional<cublasLtMatmulAlgo_t>;

// A chosen kernel: an algorithm of cuBLASLt, or gemm_small_batch in a configuration, or, without
// either, gemv.
struct Choice {
  Algorithm algorithm;
  std::optional<SmallBatchConfig> batch;
};

struct LayoutDeleter {
  void operator()(cublasLtMatrixLayout_t layout) const { cublasLtMatrixLayoutDestroy(layout); }
};
struct DescDeleter {
  void operator()(cublasLtMatmulDesc_t desc) const { cublasLtMatmulDescDestroy(desc); }
};
struct PreferenceDeleter {
  void operator()(cublasLtMatmulPreference_t p) const { cublasLtMatmulPreferenceDestroy(p); }
};
template <typename Handle, typename Deleter>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Deleter>;

// One GEMM in cuBLASLt's descriptors.
struct Matmul {
  Owned<cublasLtMatmulDesc_t, DescDeleter> desc;
  Owned<cublasLtMatrixLayout_t, LayoutDeleter> a, b, d;

  static Result<Matmul> describe(const LinearArgs& args, int64_t y_stride) {
    Matmul p;
    cublasLtMatmulDesc_t desc = nullptr;
    ESP_RETURN_IF_ERROR(
        lt_status(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), "description"));
    p.desc.reset(desc);
    const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
      return lt_status(cublasLtMatmulDescSetAttribute(desc, attribute, &value, sizeof(value)),
                       "attribute");
    };
    ESP_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T));
    if (args.bias != nullptr) {
      ESP_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS));
      ESP_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, args.bias));
      ESP_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, data_type(args.type)));
    }
    const auto in = static_cast<uint64_t>(args.in_features);
    const auto out = static_cast<uint64_t>(gemm_outputs(args));
    const auto rows = static_cast<uint64_t>(args.rows);
    const DType out_type = args.silu_mul ? args.type : args.out_type;
    cublasLtMatrixLayout_t layout = nullptr;
    ESP_RETURN_IF_ERROR(lt_status(
        cublasLtMatrixLayoutCreate(&layout, data_type(args.type), in, out, args.in_features),
        "layout"));
    p.a.reset(layout);
    ESP_RETURN_IF_ERROR(lt_status(
        cublasLtMatrixLayoutCreate(&layout, data_type(args.type), in, rows, args.x_stride),
        "layout"));
    p.b.reset(layout);
    ESP_RETURN_IF_ERROR(lt_status(
        cublasLtMatrixLayoutCreate(&layout, data_type(out_type), out, rows, y_stride), "layout"));
    p.d.reset(layout);
    return p;
  }
};

class LinearImpl final : public Linear {
 public:
  LinearImpl(cublasLtHandle_t handle, const DeviceTraits& traits, std::filesystem::path cache)
      : handle_(handle), traits_(traits), cache_(std::move(cache)) {
    take(tuning_file().read());
  }
  ~LinearImpl() override { cublasLtDestroy(handle_); }

  void set_row_invariant() override {
    row_invariant_ = true;
    choices_.clear();
    take(tuning_file().read());
  }

  size_t workspace_bytes(std::span<const LinearArgs> shapes, int32_t max_rows) const override {
    size_t scratch = 0;
    for (const LinearArgs& shape : shapes) {
      LinearArgs args = shape;
      args.rows = max_rows;
      scratch = std::max(scratch, scratch_bytes(args));
    }
    return kLibraryBytes + scratch;
  }

  Status tune(std::span<const LinearArgs> shapes, void* workspace, size_t workspace_bytes,
              Stream stream) override {
    bool changed = false;
    for (const LinearArgs& shape : shapes) {
      ESP_RETURN_IF_ERROR(check(shape));
      if (shape.rows == 0 || known(shape)) continue;
      LinearArgs args = shape;
      args.norm_weight = nullptr;  // the norm runs before either kernel; only the GEMM is compared
      int32_t compared = 0;        // rows of this shape that args' pointers have room for
      for (const LinearArgs& other : shapes) {
        const bool same =
            !(shape_of(other) < shape_of(shape)) && !(shape_of(shape) < shape_of(other));
        if (same && (compared < kComparedRows || other.rows < compared) &&
            (other.rows >= kComparedRows || other.rows > compared))
          compared = other.rows;
      }
      ESP_RETURN_IF_ERROR(measure(args, compared, workspace, workspace_bytes, stream));
      changed = true;
    }
    if (changed) share_choices();
    return {};
  }

  Status run(const LinearArgs& args, void* workspace, size_t workspace_bytes,
             const LaunchOptions& launch) override {
    ESP_RETURN_IF_ERROR(check(args));
    if (args.rows == 0) return {};
    const Choice choice = chosen(args);
    const bool own = !choice.algorithm && !choice.batch;
    if (own && use_gemv(args)) return gemv(args, traits_, launch);
    if (workspace_bytes < kLibraryBytes + scratch_bytes(args))
      return invalid_argument("linear: the workspace has {} bytes, but {} rows of {} x {} need {}",
                              workspace_bytes, args.rows, args.out_features, args.in_features,
                              kLibraryBytes + scratch_bytes(args));
    LinearArgs gemm = args;
    ESP_RETURN_IF_ERROR(norm_first(gemm, workspace, launch));
    if (own && use_gemv(gemm)) return gemv(gemm, traits_, launch);
    if (choice.batch && gemm_small_batch_supports(gemm, *choice.batch, traits_))
      return gemm_small_batch(gemm, *choice.batch, traits_, launch);
    return cublaslt_matmul(gemm, choice.algorithm, workspace, {.stream = launch.stream});
  }

 private:
  bool use_gemv(const LinearArgs& args) const {
    return !row_invariant_ && gemv_supports(args, traits_);
  }

  Status check(const LinearArgs& args) const {
    if (args.type == DType::kFloat16 || args.out_type == DType::kFloat16)
      return error(StatusCode::kUnimplemented, "linear: F16 is not supported");
    if (args.rows < 0 || args.in_features < 8 || args.in_features % 8 != 0 ||
        args.out_features < 8 || args.out_features % 8 != 0)
      return invalid_argument(
          "linear: {} rows of {} x {}, but both features must be multiples of 8", args.rows,
          args.out_features, args.in_features);
    if (args.silu_mul && (args.residual != nullptr || args.out_type != args.type))
      return error(StatusCode::kUnimplemented,
                   "linear: silu_mul takes no residual and no other output type");
    if (args.out_type != args.type && (args.bias != nullptr || args.residual != nullptr))
      return error(StatusCode::kUnimplemented,
                   "linear: bias and residual need an output of the weights' type");
    return {};
  }

  // Scratch behind cuBLASLt's part of the workspace: [norm(x)] and [gate | up].
  static size_t norm_bytes(const LinearArgs& args) {
    if (args.norm_weight == nullptr) return 0;
    return round_up(static_cast<size_t>(args.rows) * static_cast<size_t>(args.in_features) *
                    dtype_size(args.type));
  }
  static size_t scratch_bytes(const LinearArgs& args) {
    size_t bytes = norm_bytes(args);
    if (args.silu_mul)
      bytes += round_up(static_cast<size_t>(args.rows) * 2 *
                        static_cast<size_t>(args.out_features) * dtype_size(args.type));
    return bytes;
  }

  Status norm_first(LinearArgs& args, void* workspace, const LaunchOptions& launch) const {
    if (args.norm_weight == nullptr) return {};
    void* normed = static_cast<char*>(workspace) + kLibraryBytes;
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

  // Runs the GEMM on cuBLASLt. Without an algorithm it takes cuBLASLt's first proposal and
  // remembers it.
  Status cublaslt_matmul(const LinearArgs& args, Algorithm algorithm, void* workspace,
                         const LaunchOptions& launch) {
    void* y = args.y;
    int64_t y_stride = args.y_stride;
    if (args.silu_mul) {
      // Where norm_first() ran, x lies at the front of the scratch.
      char* scratch = static_cast<char*>(workspace) + kLibraryBytes;
      y = args.x == scratch
              ? scratch + round_up(static_cast<size_t>(args.rows) *
                                   static_cast<size_t>(args.in_features) * dtype_size(args.type))
              : scratch;
      y_stride = 2 * int64_t{args.out_features};
    }
    ESP_ASSIGN_OR_RETURN(const Matmul gemm, Matmul::describe(args, y_stride));
    if (!algorithm) {
      ESP_ASSIGN_OR_RETURN(algorithm, proposed(gemm, args));
      const std::lock_guard lock(mutex_);
      choices_[shape_of(args)][args.rows] = {.algorithm = algorithm};
    }
    Status status = multiply(gemm, args, *algorithm, y, workspace, launch.stream);
    if (!status.ok() && row_invariant_) {
      ESP_ASSIGN_OR_RETURN(const auto safe, standard(args));
      status = multiply(gemm, args, safe, y, workspace, launch.stream);
    } else if (!status.ok()) {  // the algorithm of another number of rows does not support these
      ESP_ASSIGN_OR_RETURN(const auto proposals, propose(gemm, args, 1));
      status = multiply(gemm, args, proposals.front().algo, y, workspace, launch.stream);
      const std::lock_guard lock(mutex_);
      choices_[shape_of(args)][args.rows] = {.algorithm = proposals.front().algo};
    }
    ESP_RETURN_IF_ERROR(std::move(status));
    if (!args.silu_mul) return {};
    const size_t half = static_cast<size_t>(args.out_features) * dtype_size(args.type);
    return cuda::silu_mul({.type = args.type,
                           .gate = y,
                           .gate_stride = y_stride,
                           .up = static_cast<char*>(y) + half,
                           .up_stride = y_stride,
                           .y = args.y,
                           .y_stride = args.y_stride,
                           .rows = args.rows,
                           .dim = args.out_features},
                          launch);
  }

  Status multiply(const Matmul& gemm, const LinearArgs& args, const cublasLtMatmulAlgo_t& algo,
                  void* y, void* workspace, Stream stream,
                  size_t library_bytes = kLibraryBytes) const {
    const float one = 1.0f, beta = args.residual != nullptr ? 1.0f : 0.0f;
    const void* c = args.residual != nullptr ? args.residual : y;
    return lt_status(cublasLtMatmul(handle_, gemm.desc.get(), &one, args.weights, gemm.a.get(),
                                    args.x, gemm.b.get(), &beta, c, gemm.d.get(), y, gemm.d.get(),
                                    &algo, workspace, library_bytes, stream),
                     "matmul");
  }

  Result<cublasLtMatmulAlgo_t> proposed(const Matmul& gemm, const LinearArgs& args) const {
    if (row_invariant_) return standard(args);
    ESP_ASSIGN_OR_RETURN(const auto proposals, propose(gemm, args, 1));
    return proposals.front().algo;
  }

  // The algorithm that defines the shape's bits, whatever the number of rows.
  Result<cublasLtMatmulAlgo_t> standard(const LinearArgs& args) const {
    LinearArgs many = args;
    many.rows = kStandardRows;
    ESP_ASSIGN_OR_RETURN(
        const Matmul gemm,
        Matmul::describe(many, args.silu_mul ? 2 * int64_t{args.out_features} : args.y_stride));
    ESP_ASSIGN_OR_RETURN(const auto proposals, propose(gemm, many, 1));
    return proposals.front().algo;
  }

  Result<std::vector<cublasLtMatmulHeuristicResult_t>> propose(const Matmul& gemm,
                                                               const LinearArgs& args,
                                                               int count) const {
    cublasLtMatmulPreference_t raw = nullptr;
    ESP_RETURN_IF_ERROR(lt_status(cublasLtMatmulPreferenceCreate(&raw), "preference"));
    const Owned<cublasLtMatmulPreference_t, PreferenceDeleter> preference(raw);
    const size_t bytes = kLibraryBytes;
    const uint32_t alignment = 16;
    cublasLtMatmulPreferenceSetAttribute(raw, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                         sizeof(bytes));
    if (row_invariant_) {
      const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE;
      cublasLtMatmulPreferenceSetAttribute(raw, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                           &schemes, sizeof(schemes));
    }
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      cublasLtMatmulPreferenceSetAttribute(raw, attribute, &alignment, sizeof(alignment));
    std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(count));
    int returned = 0;
    ESP_RETURN_IF_ERROR(
        lt_status(cublasLtMatmulAlgoGetHeuristic(handle_, gemm.desc.get(), gemm.a.get(),
                                                 gemm.b.get(), gemm.d.get(), gemm.d.get(), raw,
                                                 count, found.data(), &returned),
                  "heuristic"));
    if (returned == 0)
      return fail(error(StatusCode::kUnimplemented,
                        "linear: cuBLASLt has no algorithm for {} rows of {} x {}", args.rows,
                        args.out_features, args.in_features));
    found.resize(static_cast<size_t>(returned));
    return found;
  }

  // Milliseconds of one `work`, the least of several runs; nothing where it fails. Each run finds
  // L2 full of other data, as in a forward pass.
  template <typename Work>
  static std::optional<float> time(Work&& work, void* workspace, size_t workspace_bytes,
                                   Stream stream) {
    cudaEvent_t begin = nullptr, end = nullptr;
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    std::optional<float> best;
    for (int i = 0; i < kTimedRuns; ++i) {
      cudaMemsetAsync(workspace, i, std::min(workspace_bytes, kFlushedBytes), stream);
      cudaEventRecord(begin, stream);
      const bool done = work().ok();
      cudaEventRecord(end, stream);
      if (cudaEventSynchronize(end) != cudaSuccess || !done) break;
      float ms = 0;
      cudaEventElapsedTime(&ms, begin, end);
      if (i > 1) best = std::min(best.value_or(ms), ms);
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return best;
  }

  // What cuBLASLt proposes for args and for some other numbers of rows, which sometimes has a
  // better algorithm: without split-K its best one for 1 row is among those for 17 or 100.
  Result<std::vector<cublasLtMatmulAlgo_t>> candidates(const LinearArgs& args) const {
    std::vector<cublasLtMatmulAlgo_t> out;
    std::vector<int32_t> numbers{args.rows, args.rows + 1};
    if (row_invariant_ && args.rows < 100) numbers.insert(numbers.end(), {17, 100});
    for (const int32_t rows : numbers) {
      LinearArgs asked = args;
      asked.rows = rows;
      ESP_ASSIGN_OR_RETURN(
          const Matmul gemm,
          Matmul::describe(asked, args.silu_mul ? 2 * int64_t{args.out_features} : args.y_stride));
      ESP_ASSIGN_OR_RETURN(const auto proposals, propose(gemm, asked, kProposals));
      for (const auto& proposal : proposals)
        if (std::ranges::none_of(out, [&](const auto& known) {
              return std::memcmp(&known, &proposal.algo, sizeof(known)) == 0;
            }))
          out.push_back(proposal.algo);
    }
    return out;
  }

  // A hash of the bits of `rows` rows that the algorithm computes; nothing where it does not run.
  Result<std::optional<uint64_t>> bits_of(LinearArgs args, int32_t rows,
                                          const cublasLtMatmulAlgo_t& algorithm, void* workspace,
                                          Stream stream) const {
    args.rows = rows;
    const size_t bytes =
        static_cast<size_t>(rows) * static_cast<size_t>(args.y_stride) * dtype_size(args.out_type);
    auto* sum = reinterpret_cast<uint64_t*>(static_cast<char*>(workspace) + kLibraryBytes - 256);
    ESP_ASSIGN_OR_RETURN(const Matmul gemm, Matmul::describe(args, args.y_stride));
    cudaMemsetAsync(args.y, 0, bytes, stream);
    // The library gets its part of the workspace but for the 256 bytes of the hash.
    if (!multiply(gemm, args, algorithm, args.y, workspace, stream, kLibraryBytes - 256).ok())
      return std::optional<uint64_t>();
    cudaMemsetAsync(sum, 0, sizeof(*sum), stream);
    ESP_RETURN_IF_ERROR(digest(args.y, bytes, sum, stream));
    uint64_t value = 0;
    cudaMemcpyAsync(&value, sum, sizeof(value), cudaMemcpyDeviceToHost, stream);
    ESP_RETURN_IF_ERROR(cuda_status(cudaStreamSynchronize(stream), "linear: tuning"));
    return std::optional(value);
  }

  // Those of `all` whose bits equal those of the shape's standard algorithm, the standard among
  // them. Too few rows show too few bits: then the standard alone.
  Result<std::vector<cublasLtMatmulAlgo_t>> same_bits(const LinearArgs& args, int32_t rows,
                                                      std::vector<cublasLtMatmulAlgo_t> all,
                                                      void* workspace, Stream stream) const {
    LinearArgs plain = args;
    if (args.silu_mul) {  // gate and up together take the room of twice as many rows
      plain.silu_mul = false;
      plain.out_features = 2 * args.out_features;
      plain.y_stride = plain.out_features;
      rows /= 2;
    }
    ESP_ASSIGN_OR_RETURN(const auto first, standard(args));
    std::vector<cublasLtMatmulAlgo_t> out{first};
    if (rows < kComparedRows / 2) return out;
    const int32_t own_rows = std::min(rows, std::max(1, args.silu_mul ? args.rows / 2 : args.rows));
    ESP_ASSIGN_OR_RETURN(const auto wanted, bits_of(plain, rows, first, workspace, stream));
    ESP_ASSIGN_OR_RETURN(const auto own, bits_of(plain, own_rows, first, workspace, stream));
    for (const auto& algorithm : all) {
      ESP_ASSIGN_OR_RETURN(const auto bits, bits_of(plain, rows, algorithm, workspace, stream));
      if (!bits || bits != wanted) continue;
      ESP_ASSIGN_OR_RETURN(const auto at_own,
                           bits_of(plain, own_rows, algorithm, workspace, stream));
      if (at_own && at_own == own) out.push_back(algorithm);
    }
    return out;
  }

  // compared: rows that the pointers of args have room for, to compare bits on.
  Status measure(const LinearArgs& args, int32_t compared, void* workspace, size_t workspace_bytes,
                 Stream stream) {
    if (workspace_bytes < kLibraryBytes + scratch_bytes(args))
      return invalid_argument("linear: tuning {} rows needs a workspace of {} bytes", args.rows,
                              kLibraryBytes + scratch_bytes(args));
    LinearArgs plain = args;  // the GEMM alone; its output may be overwritten
    const LaunchOptions launch{.stream = stream};
    ESP_ASSIGN_OR_RETURN(auto algorithms, candidates(plain));
    if (row_invariant_) {
      ESP_ASSIGN_OR_RETURN(algorithms,
                           same_bits(plain, compared, std::move(algorithms), workspace, stream));
    }
    Choice best;
    std::optional<float> best_ms;
    for (const auto& algorithm : algorithms) {
      const auto ms = time([&] { return cublaslt_matmul(plain, algorithm, workspace, launch); },
                           workspace, workspace_bytes, stream);
      if (ms && (!best_ms || *ms < *best_ms)) best_ms = ms, best = {.algorithm = algorithm};
    }
    const auto config = small_batch_config(args, traits_);
    if (config && !row_invariant_ && args.rows > kSmallRows) {
      const auto ms = time([&] { return gemm_small_batch(args, *config, traits_, launch); },
                           workspace, workspace_bytes, stream);
      if (ms && (!best_ms || *ms - kPdlGainMs < *best_ms)) {
        best_ms = *ms - kPdlGainMs;
        best = {.batch = *config};
      }
    }
    if (use_gemv(args)) {
      const auto ms =
          time([&] { return gemv(args, traits_, launch); }, workspace, workspace_bytes, stream);
      if (ms && (!best_ms || *ms <= *best_ms)) best_ms = ms, best = {};
    }
    ESP_RETURN_IF_ERROR(cuda_status(cudaGetLastError(), "linear: tuning"));
    if (!best_ms)
      return error(StatusCode::kInternal, "linear: no config to multiply {} rows of {} x {} works",
                   args.rows, args.out_features, args.in_features);
    const std::lock_guard lock(mutex_);
    choices_[shape_of(args)][args.rows] = best;
    return {};
  }

  bool known(const LinearArgs& args) const {
    const std::lock_guard lock(mutex_);
    const auto found = choices_.find(shape_of(args));
    return found != choices_.end() && found->second.contains(args.rows);
  }

  // The choice of the nearest tuned number of rows, from above if there is one; gemv for few rows
  // that were not tuned themselves.
  Choice chosen(const LinearArgs& args) const {
    const std::lock_guard lock(mutex_);
    const auto found = choices_.find(shape_of(args));
    if (found == choices_.end() || found->second.empty()) return {};
    const auto& by_rows = found->second;
    if (!row_invariant_ && args.rows <= kSmallRows && !by_rows.contains(args.rows)) return {};
    auto at = by_rows.lower_bound(args.rows);
    if (at == by_rows.end()) --at;
    return at->second;
  }

  // The tuning file of this device, driver and library version, on which a choice depends.
  TuningFile tuning_file() const {
    int device = 0, driver = 0;
    cudaDeviceProp properties{};
    if (cache_.empty() || cudaGetDevice(&device) != cudaSuccess ||
        cudaGetDeviceProperties(&properties, device) != cudaSuccess ||
        cudaDriverGetVersion(&driver) != cudaSuccess)
      return {{}, {}, {}};
    std::string name = properties.name;
    std::replace_if(
        name.begin(), name.end(), [](char c) { return std::isalnum(c) == 0; }, '-');
    const std::string ways = row_invariant_ ? "linear-invariant" : "linear-and-batch";
    return {cache_, fmt::format("{}-{}-cublaslt-{}.txt", ways, name, cublasLtGetVersion()),
            fmt::format("{} of {}, {}.{}, {} multiprocessors, driver {}, cuBLASLt {}", ways,
                        properties.name, properties.major, properties.minor,
                        properties.multiProcessorCount, driver, cublasLtGetVersion())};
  }

  // "type out_type in out bias residual rows"
  static std::string key_of(const Shape& s, int32_t rows) {
    return fmt::format("{} {} {} {} {} {} {}", s.type, s.out_type, s.in, s.out, s.bias, s.residual,
                       rows);
  }

  // "own" for gemv, or "batch" and the three numbers of a configuration of gemm_small_batch, or
  // each word of the algorithm as 16 hexadecimal digits.
  static std::string text_of(const Choice& choice) {
    if (choice.batch)
      return fmt::format("batch {} {} {}", choice.batch->groups, choice.batch->splits,
                         choice.batch->half_shared ? 1 : 0);
    if (!choice.algorithm) return "own";
    std::string text;
    for (const uint64_t word : choice.algorithm->data) text += fmt::format("{:016x}", word);
    return text;
  }

  void take(const TuningFile::Choices& choices) {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, text] : choices) {
      std::istringstream in(key);
      Shape s;
      int32_t rows = 0;
      if (!(in >> s.type >> s.out_type >> s.in >> s.out >> s.bias >> s.residual >> rows)) continue;
      if (text == "own") {
        if (rows <= kSmallRows) choices_[s][rows] = {};
      } else if (text.size() == 16 * std::size(cublasLtMatmulAlgo_t{}.data)) {
        cublasLtMatmulAlgo_t algo{};
        for (size_t i = 0; i < std::size(algo.data); ++i)
          algo.data[i] = std::strtoull(text.substr(16 * i, 16).c_str(), nullptr, 16);
        choices_[s][rows] = {.algorithm = algo};
      } else if (std::istringstream config_in(text); text.starts_with("batch ")) {
        SmallBatchConfig config;
        std::string word;
        int half = 0;
        if (config_in >> word >> config.groups >> config.splits >> half) {
          config.half_shared = half != 0;
          choices_[s][rows] = {.batch = config};
        }
      }
    }
  }

  // Writes the choices to the tuning file; what another process has measured meanwhile replaces
  // ours.
  void share_choices() {
    TuningFile::Choices measured;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [s, by_rows] : choices_)
        for (const auto& [rows, choice] : by_rows) measured[key_of(s, rows)] = text_of(choice);
    }
    take(tuning_file().add(measured));
  }

  cublasLtHandle_t handle_;
  const DeviceTraits traits_;
  const std::filesystem::path cache_;
  bool row_invariant_ = false;
  mutable std::mutex mutex_;
  std::map<Shape, std::map<int32_t, Choice>> choices_;
};

}  // namespace

std::filesystem::path default_linear_cache() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != 0)
    return std::filesystem::path(cache) / "espalier";
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home == 0) return {};
  return std::filesystem::path(home) / ".cache" / "espalier";
}

Result<std::unique_ptr<Linear>> Linear::create(const LinearOptions& options) {
  ESP_ASSIGN_OR_RETURN(const DeviceTraits traits, device_traits());
  cublasLtHandle_t handle = nullptr;
  ESP_RETURN_IF_ERROR(lt_status(cublasLtCreate(&handle), "cuBLASLt"));
  return std::make_unique<LinearImpl>(handle, traits, options.cache_folder);
}

}  // namespace espalier::kernels::cuda
