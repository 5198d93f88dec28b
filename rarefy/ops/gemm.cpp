// Matrix products by oneDNN 2.x (Debian 12) or 3.x (Ubuntu 24.04).
#include "rarefy/ops/gemm.h"

#include <oneapi/dnnl/dnnl_version.h>
#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>

#include "rarefy/base/check.h"

namespace rarefy::ops {
namespace {

using Memory = dnnl::memory;

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

struct Descriptors {
  Memory::desc x, w, bias, y;
};

Descriptors describe(const GemmShape& s) {
  const auto type = s.bf16 ? Memory::data_type::bf16 : Memory::data_type::f32;
  Descriptors d;
  d.x = Memory::desc({s.m, s.k}, type, Memory::format_tag::ab);
  d.w = Memory::desc({s.k, s.n}, type, Memory::format_tag::ba);
  d.y = Memory::desc({s.m, s.n}, Memory::data_type::f32, Memory::dims{s.y_stride, 1});
  if (s.bias) d.bias = Memory::desc({1, s.n}, Memory::data_type::f32, Memory::format_tag::ab);
  return d;
}

dnnl::matmul::primitive_desc plan(const GemmShape& s) {
  const Descriptors d = describe(s);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);  // the library's own is not safe between threads
  if (s.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
#if DNNL_VERSION_MAJOR >= 3
  if (s.bias) return dnnl::matmul::primitive_desc(cpu_engine(), d.x, d.w, d.bias, d.y, attributes);
  return dnnl::matmul::primitive_desc(cpu_engine(), d.x, d.w, d.y, attributes);
#else
  const auto operation = s.bias ? dnnl::matmul::desc(d.x, d.w, d.bias, d.y) : dnnl::matmul::desc(d.x, d.w, d.y);
  return dnnl::matmul::primitive_desc(operation, attributes, cpu_engine());
#endif
}

struct Product {
  Descriptors descriptors;
  Memory::desc scratch;
  dnnl::matmul primitive;
};

struct ShapeHash {
  std::size_t operator()(const GemmShape& s) const {
    std::size_t hash = s.bf16 | s.bias << 1 | s.accumulate << 2;
    for (const std::int64_t size : {s.m, s.n, s.k, s.y_stride})
      hash = hash * 0x9e3779b97f4a7c15u + static_cast<std::size_t>(size);
    return hash;
  }
};

// One product per shape for the whole process. Chunk lengths vary, so the table is emptied when it has grown large.
Product product(const GemmShape& shape) {
  constexpr std::size_t kMaxProducts = 512;
  static std::mutex mutex;
  static std::unordered_map<GemmShape, Product, ShapeHash> products;
  const std::lock_guard lock(mutex);
  if (const auto found = products.find(shape); found != products.end()) return found->second;
  if (products.size() >= kMaxProducts) products.clear();
  try {
    const auto descriptor = plan(shape);
    const Product made{describe(shape), descriptor.scratchpad_desc(), dnnl::matmul(descriptor)};
    return products.emplace(shape, made).first->second;
  } catch (const dnnl::error& error) {
    fail(ErrorCode::Unsupported, "E_GEMM", "oneDNN has no product [{}, {}] x [{}, {}]: {}", shape.m, shape.k, shape.n,
         shape.k, error.what());
  }
}

Memory wrap(const Memory::desc& desc, const void* data) { return Memory(desc, cpu_engine(), const_cast<void*>(data)); }

}  // namespace

bool gemm_has_bf16() {
  static const bool has = __builtin_cpu_supports("avx512bf16") != 0;
  return has;
}

std::int64_t gemm_scratch_bytes(const GemmShape& shape) {
  return static_cast<std::int64_t>(product(shape).scratch.get_size());
}

void gemm(const GemmShape& shape, const void* x, const void* w, const float* bias, float* y, std::byte* scratch) {
  const Product p = product(shape);
  std::unordered_map<int, Memory> arguments{{DNNL_ARG_SRC, wrap(p.descriptors.x, x)},
                                            {DNNL_ARG_WEIGHTS, wrap(p.descriptors.w, w)},
                                            {DNNL_ARG_DST, wrap(p.descriptors.y, y)},
                                            {DNNL_ARG_SCRATCHPAD, wrap(p.scratch, scratch)}};
  if (shape.bias) arguments.emplace(DNNL_ARG_BIAS, wrap(p.descriptors.bias, bias));
  dnnl::stream stream(cpu_engine());
  p.primitive.execute(stream, arguments);
  stream.wait();
}

}  // namespace rarefy::ops
