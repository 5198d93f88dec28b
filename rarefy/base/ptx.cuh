// Single GPU instructions of compute capability 8.0 as functions: one instruction, one function.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace rarefy::ptx {

__device__ inline std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

/// Copies 16 bytes from global to shared memory without the L1 cache; ends with the group that it is committed to.
__device__ inline void cp_async_16(std::uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from));
}
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;"); }
/// Waits until at most N of the latest groups are under way.
template <int N>
__device__ inline void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

__device__ inline std::uint32_t load_shared(std::uint32_t address) {
  std::uint32_t x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
  return x;
}
__device__ inline void store_shared_zero16(std::uint32_t address) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(address), "r"(0) : "memory");
}
__device__ inline void store_shared_zero2(std::uint32_t address) {
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(address), "h"(static_cast<short>(0)) : "memory");
}

/// Four 8x8 matrices of 16-bit values; lanes 8 i .. 8 i + 7 give the row addresses of matrix i.
__device__ inline void ldmatrix(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ inline void ldmatrix_transposed(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

/// Transposes an 8x8 matrix of 16-bit values held as a fragment.
__device__ inline std::uint32_t movmatrix(std::uint32_t x) {
  std::uint32_t y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

/// d += a b, a [16, 16] by rows, b [16, 8] by columns, d [16, 8] float32.
template <typename T>
__device__ void mma_16816(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1);
template <>
__device__ inline void mma_16816<__half>(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                         std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ inline void mma_16816<__nv_bfloat16>(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                                std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// d += a b, a [16, 32] 2:4 sparse (its 16 columns of non-zeros), b [32, 8]. Selector: which lanes of a quad hold the
/// metadata, 0 for lanes 0 and 1, 1 for lanes 2 and 3.
template <typename T, int kSelector>
__device__ inline void mma_sp_16832(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[4],
                                    std::uint32_t metadata) {
  if constexpr (std::is_same_v<T, __half>)
    asm("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9, %10, %11}, {%0, %1, %2, %3}, %12, %13;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(metadata),
          "n"(kSelector));
  else
    asm("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9, %10, %11}, {%0, %1, %2, %3}, %12, %13;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(metadata),
          "n"(kSelector));
}

/// Two float32 values as a pair of 16-bit ones, `low` in the low half.
template <typename T>
__device__ inline std::uint32_t pack(float low, float high) {
  std::uint32_t out;
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 pair = __floats2half2_rn(low, high);
    out = reinterpret_cast<const std::uint32_t&>(pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    out = reinterpret_cast<const std::uint32_t&>(pair);
  }
  return out;
}

/// Bytes of `low` (0 to 3) and `high` (4 to 7) in the order of the selector's nibbles; 8 added to a nibble gives the
/// byte's sign in all its bits.
template <unsigned kSelector>
__device__ inline std::uint32_t permute(std::uint32_t low, std::uint32_t high) {
  std::uint32_t out;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(low), "r"(high), "n"(kSelector));
  return out;
}

/// The same value, of which the compiler knows nothing.
__device__ inline int opaque(int x) {
  asm("" : "+r"(x));
  return x;
}

/// 2^x, relative error 2^-22, results below 2^-126 as 0; without the scaling of small results that exp2f adds.
__device__ inline float exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace rarefy::ptx
