// The CUDA version of sealing: jobs that lie on the device, and the entry that compress() calls.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "rarefy/format24/compress.h"

namespace rarefy::format24::cuda {

/// One page to seal. Every pointer is of the device.
struct DeviceJob {
  const std::byte* dense = nullptr;    // [dense_page_bytes]
  std::byte* sparse = nullptr;         // [sparse_page_bytes], null: only the loss is computed
  const float* weights = nullptr;      // Calibrated: channel_weights (keys, >= 0) or token_weights; may be null
  const std::uint8_t* mask = nullptr;  // Elements, Channels: as in PruneInput
  float* loss = nullptr;               // one float32, may be null
};

/// Many pages of one side and one rule.
struct CompressLaunch {
  Side side = Side::K;
  DType dtype = DType::F16;
  int head_dim = 0;
  PruneRule rule = PruneRule::Magnitude;
  LossKind kind = LossKind::L1;
  bool losses = false;                   // whether any job wants its loss
  const DeviceJob* jobs = nullptr;       // [count] device
  std::int64_t count = 0;                // below 2^31
  const std::uint8_t* chosen = nullptr;  // [count] device: 0 leaves a job undone; null: all are done
  int* bad_job = nullptr;  // Elements: lowered to the index of a job whose mask keeps more than two of a group of four,
                           // which is then sealed with the first two; device, may be null
};

/// Seals as compress() does, to the bit, without waiting for the device.
///   stream  cudaStream_t
void launch_compress(const CompressLaunch& launch, void* stream);

/// compress() on the stream's device with checked formats. Pointers inside the jobs, and `loss`, are of the device.
/// Waits for the device only for Elements, whose masks it checks there.
void compress(Side side, DType dtype, int head_dim, std::span<const CompressJob> jobs, LossKind kind, float* loss,
              Stream& stream);

}  // namespace rarefy::format24::cuda
