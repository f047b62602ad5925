#include "kernels/linear/cublaslt.h"

#include <type_traits>

namespace espalier::kernels::cuda {
namespace {

Status lt_status(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  return error(StatusCode::kInternal, "linear: {}: {}", what, cublasLtGetStatusString(status));
}

cudaDataType data_type(DType type) { return type == DType::kBFloat16 ? CUDA_R_16BF : CUDA_R_32F; }

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

  static Result<Matmul> describe(const LinearArgs& args) {
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
    if (args.weight_scales != nullptr) ESP_RETURN_IF_ERROR(scale_rows(args, desc));
    const cudaDataType in_type =
        args.weight_scales != nullptr ? CUDA_R_8F_E4M3 : data_type(args.type);
    const auto in = static_cast<uint64_t>(args.in_features);
    const auto out = static_cast<uint64_t>(gemm_outputs(args));
    const auto rows = static_cast<uint64_t>(args.rows);
    const DType out_type = args.silu_mul ? args.type : args.out_type;
    cublasLtMatrixLayout_t layout = nullptr;
    ESP_RETURN_IF_ERROR(lt_status(
        cublasLtMatrixLayoutCreate(&layout, in_type, in, out, args.in_features), "layout"));
    p.a.reset(layout);
    ESP_RETURN_IF_ERROR(
        lt_status(cublasLtMatrixLayoutCreate(&layout, in_type, in, rows, args.x_stride), "layout"));
    p.b.reset(layout);
    ESP_RETURN_IF_ERROR(lt_status(
        cublasLtMatrixLayoutCreate(&layout, data_type(out_type), out, rows, gemm_stride(args)),
        "layout"));
    p.d.reset(layout);
    return p;
  }

  // Terms of e4m3 are added up as the tensor cores do it, to about 14 bits: beside the rounding
  // of the factors, to 4, that is nothing, and GEMMs that add up by parts take 8 to 10 % longer.
  static Status scale_rows(const LinearArgs& args, cublasLtMatmulDesc_t desc) {
    const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
      return lt_status(cublasLtMatmulDescSetAttribute(desc, attribute, &value, sizeof(value)),
                       "attribute");
    };
    const int32_t rows = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    const int32_t blocks_a = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    const int32_t blocks_b = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    const int8_t fast = args.block_scales ? 0 : 1;
    ESP_RETURN_IF_ERROR(
        set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, args.block_scales ? blocks_a : rows));
    ESP_RETURN_IF_ERROR(
        set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, args.block_scales ? blocks_b : rows));
    ESP_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, args.weight_scales));
    ESP_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, args.x_scales));
    return set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, fast);
  }
};

}  // namespace

Result<std::unique_ptr<CublasLt>> CublasLt::create() {
  cublasLtHandle_t handle = nullptr;
  ESP_RETURN_IF_ERROR(lt_status(cublasLtCreate(&handle), "cuBLASLt"));
  return std::unique_ptr<CublasLt>(new CublasLt(handle));
}

CublasLt::~CublasLt() { cublasLtDestroy(handle_); }

Result<std::vector<CublasLt::Algorithm>> CublasLt::propose(const LinearArgs& args,
                                                           int count) const {
  ESP_ASSIGN_OR_RETURN(const Matmul gemm, Matmul::describe(args));
  cublasLtMatmulPreference_t raw = nullptr;
  ESP_RETURN_IF_ERROR(lt_status(cublasLtMatmulPreferenceCreate(&raw), "preference"));
  const Owned<cublasLtMatmulPreference_t, PreferenceDeleter> preference(raw);
  const size_t bytes = kCublasLtBytes;
  const uint32_t alignment = 16;
  cublasLtMatmulPreferenceSetAttribute(raw, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                       sizeof(bytes));
  if (row_invariant_) {
    const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE;
    cublasLtMatmulPreferenceSetAttribute(raw, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes,
                                         sizeof(schemes));
  }
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    cublasLtMatmulPreferenceSetAttribute(raw, attribute, &alignment, sizeof(alignment));
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(count));
  int returned = 0;
  ESP_RETURN_IF_ERROR(
      lt_status(cublasLtMatmulAlgoGetHeuristic(handle_, gemm.desc.get(), gemm.a.get(), gemm.b.get(),
                                               gemm.d.get(), gemm.d.get(), raw, count, found.data(),
                                               &returned),
                "heuristic"));
  if (returned == 0)
    return fail(error(StatusCode::kUnimplemented,
                      "linear: cuBLASLt has no algorithm for {} rows of {} x {}", args.rows,
                      args.out_features, args.in_features));
  std::vector<Algorithm> algorithms;
  for (int i = 0; i < returned; ++i) algorithms.push_back(found[static_cast<size_t>(i)].algo);
  return algorithms;
}

Result<CublasLt::Algorithm> CublasLt::standard(const LinearArgs& args) const {
  LinearArgs many = args;
  many.rows = kStandardRows;
  ESP_ASSIGN_OR_RETURN(const auto proposals, propose(many, 1));
  return proposals.front();
}

Status CublasLt::multiply(const LinearArgs& args, const Algorithm& algorithm, void* y,
                          void* workspace, Stream stream, size_t workspace_bytes) const {
  ESP_ASSIGN_OR_RETURN(const Matmul gemm, Matmul::describe(args));
  const float one = 1.0f, beta = args.residual != nullptr ? 1.0f : 0.0f;
  const void* c = args.residual != nullptr ? args.residual : y;
  return lt_status(cublasLtMatmul(handle_, gemm.desc.get(), &one, args.weights, gemm.a.get(),
                                  args.x, gemm.b.get(), &beta, c, gemm.d.get(), y, gemm.d.get(),
                                  &algorithm, workspace, workspace_bytes, stream),
                   "matmul");
}

}  // namespace espalier::kernels::cuda
