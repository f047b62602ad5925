// cuBLASLt, opened when the first GEMM on a GPU needs it. Linked against, the library (500 MB)
// would have to be installed for every command, and be mapped at every start.
//
// The functions that linear/cublaslt.cc and tuned_kernels.cc call are defined here under their own
// names and forward the call.
#include <cublasLt.h>
#include <dlfcn.h>

#include <cstdlib>
#include <string>

namespace {

void* open_library() {
  const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
  const char* home = std::getenv("CUDA_HOME");
  for (const std::string& path :
       {name, (home != nullptr ? std::string(home) : "/usr/local/cuda") + "/lib64/" + name,
        "/usr/local/cuda/lib64/" + name}) {
    if (void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  }
  return nullptr;
}

void* symbol(const char* name) {
  static void* const library = open_library();
  return library == nullptr ? nullptr : dlsym(library, name);
}

}  // namespace

// clang-format off
#define ESP_FORWARD(name, params, args)                                              \
  extern "C" cublasStatus_t name params {                                            \
    using Function = cublasStatus_t(*) params;                                       \
    static const auto function = reinterpret_cast<Function>(symbol(#name));          \
    return function == nullptr ? CUBLAS_STATUS_NOT_INITIALIZED : function args;      \
  }

ESP_FORWARD(cublasLtCreate, (cublasLtHandle_t* a), (a))
ESP_FORWARD(cublasLtDestroy, (cublasLtHandle_t a), (a))
ESP_FORWARD(cublasLtMatmul,
            (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
             cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
             const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
             cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo, void* workspace,
             size_t workspace_bytes, cudaStream_t stream),
            (handle, desc, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algo,
             workspace, workspace_bytes, stream))
ESP_FORWARD(cublasLtMatmulAlgoGetHeuristic,
            (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
             cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
             cublasLtMatmulPreference_t preference, int wanted,
             cublasLtMatmulHeuristicResult_t results[], int* found),
            (handle, desc, a, b, c, d, preference, wanted, results, found))
ESP_FORWARD(cublasLtMatmulDescCreate,
            (cublasLtMatmulDesc_t* a, cublasComputeType_t b, cudaDataType_t c), (a, b, c))
ESP_FORWARD(cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t a), (a))
ESP_FORWARD(cublasLtMatmulDescSetAttribute,
            (cublasLtMatmulDesc_t a, cublasLtMatmulDescAttributes_t b, const void* c, size_t d),
            (a, b, c, d))
ESP_FORWARD(cublasLtMatmulPreferenceCreate, (cublasLtMatmulPreference_t* a), (a))
ESP_FORWARD(cublasLtMatmulPreferenceDestroy, (cublasLtMatmulPreference_t a), (a))
ESP_FORWARD(cublasLtMatmulPreferenceSetAttribute,
            (cublasLtMatmulPreference_t a, cublasLtMatmulPreferenceAttributes_t b, const void* c,
             size_t d),
            (a, b, c, d))
ESP_FORWARD(cublasLtMatrixLayoutCreate,
            (cublasLtMatrixLayout_t* a, cudaDataType b, uint64_t c, uint64_t d, int64_t e),
            (a, b, c, d, e))
ESP_FORWARD(cublasLtMatrixLayoutDestroy, (cublasLtMatrixLayout_t a), (a))
// clang-format on

extern "C" const char* cublasLtGetStatusString(cublasStatus_t status) {
  using Function = const char* (*)(cublasStatus_t);
  static const auto function = reinterpret_cast<Function>(symbol("cublasLtGetStatusString"));
  return function != nullptr ? function(status)
                             : "libcublasLt was not found: install CUDA's libraries, or set "
                               "LD_LIBRARY_PATH or CUDA_HOME";
}

extern "C" size_t cublasLtGetVersion() {
  using Function = size_t (*)();
  static const auto function = reinterpret_cast<Function>(symbol("cublasLtGetVersion"));
  return function == nullptr ? 0 : function();
}
