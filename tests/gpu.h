// Tests that need a GPU are skipped, visibly, where there is none; and arrays in its memory.
#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "rarefy/base/buffer.h"
#include "rarefy/base/check.h"
#include "rarefy/base/device.h"
#include "rarefy/base/tensor.h"

namespace rarefy {

inline constexpr Device kGpu{Device::Kind::Cuda, 0};

/// Why the GPU cannot be used, empty if it can.
inline std::string no_gpu() {
  try {
    require_device(kGpu);
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

/// Float32 values, held on the GPU in `dtype`.
class GpuArray {
 public:
  GpuArray(const std::vector<float>& values, DType dtype) : dtype_(dtype), stream_(kGpu) {
    std::vector<std::uint16_t> bits;
    if (dtype != DType::F32)
      for (const float x : values)
        bits.push_back(dtype == DType::F16 ? from_float<Half>(x).bits : from_float<BFloat16>(x).bits);
    const auto size = static_cast<std::int64_t>(values.size()) * (dtype == DType::F32 ? 4 : 2);
    buffer_ = Buffer(size, kGpu);
    copy_bytes(buffer_.data(), dtype == DType::F32 ? static_cast<const void*>(values.data()) : bits.data(), size,
               stream_);
    stream_.synchronize();
  }
  TensorView view(Shape shape) const { return {buffer_.data(), dtype_, shape, kGpu}; }
  float* floats() const { return buffer_.as<float>(); }
  std::vector<float> values(Stream& stream) const {
    const std::size_t count = static_cast<std::size_t>(buffer_.size()) / (dtype_ == DType::F32 ? 4 : 2);
    std::vector<float> out(count);
    std::vector<std::uint16_t> bits(count);
    copy_bytes(dtype_ == DType::F32 ? static_cast<void*>(out.data()) : bits.data(), buffer_.data(), buffer_.size(),
               stream);
    stream.synchronize();
    if (dtype_ != DType::F32)
      for (std::size_t i = 0; i < count; ++i)
        out[i] = dtype_ == DType::F16 ? to_float(Half{bits[i]}) : to_float(BFloat16{bits[i]});
    return out;
  }

 private:
  DType dtype_;
  Stream stream_;
  Buffer buffer_;
};

inline Buffer gpu_ints(const std::vector<std::int32_t>& values) {
  Stream stream(kGpu);
  Buffer out(static_cast<std::int64_t>(values.size()) * 4, kGpu);
  copy_bytes(out.data(), values.data(), out.size(), stream);
  stream.synchronize();
  return out;
}

/// `x` as `dtype` holds it.
inline std::vector<float> rounded_to(DType dtype, std::vector<float> x) {
  for (float& value : x)
    value = dtype == DType::F16    ? to_float(from_float<Half>(value))
            : dtype == DType::BF16 ? to_float(from_float<BFloat16>(value))
                                   : value;
  return x;
}

}  // namespace rarefy

#define RAREFY_NEEDS_GPU() \
  if (const std::string reason = ::rarefy::no_gpu(); !reason.empty()) GTEST_SKIP() << reason
