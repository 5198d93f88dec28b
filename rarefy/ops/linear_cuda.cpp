// Products with weights on CUDA: cuBLASLt, with the choice of algorithm kept per shape.
#include <cublasLt.h>

#include <map>
#include <mutex>
#include <tuple>

#include "rarefy/base/cuda_check.h"
#include "rarefy/ops/cuda.h"

#define CUBLAS_CHECK(call) check_cublas((call), #call)

namespace rarefy::ops::cuda {
namespace {

constexpr std::size_t kScratch = std::size_t{32} << 20;  // what NVIDIA advises for Hopper

void check_cublas(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  fail(ErrorCode::Cuda, "E_CUBLAS", "{}: {}", call, cublasLtGetStatusString(status));
}

cudaDataType_t type_of(DType dtype) {
  return dtype == DType::F32 ? CUDA_R_32F : dtype == DType::F16 ? CUDA_R_16F : CUDA_R_16BF;
}

/// One way of calling cublasLtMatmul: descriptions and the algorithm that the library advises.
/// Row-major y = x W^T is, by columns, y^T = W^T' x^T with W stored as [in, out].
class Plan {
 public:
  Plan(cublasLtHandle_t library, std::int64_t rows, std::int64_t out, std::int64_t in, DType dtype, DType y) {
    CUBLAS_CHECK(cublasLtMatmulDescCreate(&product_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t transposed = CUBLAS_OP_T;
    CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(product_, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed));
    const auto layout = [](cublasLtMatrixLayout_t* to, DType type, std::int64_t r, std::int64_t c) {
      CUBLAS_CHECK(cublasLtMatrixLayoutCreate(to, type_of(type), static_cast<std::uint64_t>(r),
                                              static_cast<std::uint64_t>(c), r));
    };
    layout(&w_, dtype, in, out);
    layout(&x_, dtype, in, rows);
    layout(&y_, y, out, rows);
    cublasLtMatmulPreference_t preference = nullptr;
    CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
    const std::size_t scratch = kScratch;
    CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &scratch,
                                                      sizeof scratch));
    int found = 0;
    cublasLtMatmulHeuristicResult_t best{};
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(library, product_, w_, x_, y_, y_, preference, 1, &best, &found);
    CUBLAS_CHECK(cublasLtMatmulPreferenceDestroy(preference));
    CUBLAS_CHECK(status);
    if (found == 0)
      fail(ErrorCode::Unsupported, "E_CUBLAS", "cuBLASLt has no product of [{}, {}] by [{}, {}]", rows, in, out, in);
    algorithm_ = best.algo;
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    (void)cublasLtMatrixLayoutDestroy(w_);
    (void)cublasLtMatrixLayoutDestroy(x_);
    (void)cublasLtMatrixLayoutDestroy(y_);
    (void)cublasLtMatmulDescDestroy(product_);
  }

  void run(cublasLtHandle_t library, const void* w, const void* x, bool accumulate, void* y, void* scratch,
           cudaStream_t stream) const {
    const float one = 1, beta = accumulate ? 1.f : 0.f;
    CUBLAS_CHECK(cublasLtMatmul(library, product_, &one, w, w_, x, x_, &beta, y, y_, y, y_, &algorithm_, scratch,
                                kScratch, stream));
  }

 private:
  cublasLtMatmulDesc_t product_ = nullptr;
  cublasLtMatrixLayout_t w_ = nullptr, x_ = nullptr, y_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_{};
};

/// The library and the plans made so far on one device. Lives as long as the process: the driver may be gone at exit.
struct Library {
  cublasLtHandle_t handle = nullptr;
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t, DType, DType>, Plan> plans;
};

}  // namespace

void linear(const TensorView& x, const LinearWeight& weight, bool accumulate, const TensorView& y, Workspace& workspace,
            Stream& stream) {
  static std::mutex mutex;
  static auto* libraries = new std::map<int, Library>;
  const std::lock_guard lock(mutex);
  Library& library = (*libraries)[stream.device().index];
  if (library.handle == nullptr) CUBLAS_CHECK(cublasLtCreate(&library.handle));
  const std::int64_t rows = x.shape[0];
  const auto [plan, made] =
      library.plans.try_emplace({rows, weight.out, weight.in, weight.dtype, y.dtype}, library.handle, rows, weight.out,
                                weight.in, weight.dtype, y.dtype);
  plan->second.run(library.handle, weight.data, x.data, accumulate, y.data,
                   workspace.reserve(static_cast<std::int64_t>(kScratch)), static_cast<cudaStream_t>(stream.handle()));
}

}  // namespace rarefy::ops::cuda
