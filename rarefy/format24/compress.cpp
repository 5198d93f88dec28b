// Checks and dispatch of sealing; decompression.
#include "rarefy/format24/compress.h"

#include <cstring>

#include "rarefy/base/check.h"
#include "rarefy/format24/compress_cpu.h"
#include "rarefy/format24/compress_cuda.h"

namespace rarefy::format24 {
namespace {

void check_format(DType dtype, int head_dim) {
  if (dtype != DType::F16 && dtype != DType::BF16)
    fail(ErrorCode::Unsupported, "E_DTYPE", "pages of {} are not supported (F16 and BF16 are)", to_string(dtype));
  if (!supported_head_dim(head_dim))
    fail(ErrorCode::Unsupported, "E_HEAD_DIM", "head_dim {} is not supported (64 and 128 are)", head_dim);
}

void check_pointers(const CompressJob& job, std::size_t index) {
  CHECK(job.dense != nullptr, "job {}: no dense page", index);
  const PruneInput& prune = job.prune;
  if (prune.rule == PruneRule::Channels) CHECK(prune.channels != nullptr, "job {}: no channel mask", index);
  if (prune.rule == PruneRule::Elements) CHECK(prune.elements != nullptr, "job {}: no element mask", index);
}

/// That an element mask keeps at most two of each group of four.
void check_mask(Side side, int head_dim, const PruneInput& prune, std::size_t index) {
  if (prune.rule != PruneRule::Elements) return;
  for (int token = 0; token < kBlock; ++token)
    for (int channel = 0; channel < head_dim; ++channel) {
      if (side == Side::K ? channel % 4 != 0 : token % 4 != 0) continue;
      int kept = 0;
      for (int i = 0; i < 4; ++i)
        kept +=
            prune.elements[side == Side::K ? token * head_dim + channel + i : (token + i) * head_dim + channel] != 0;
      CHECK(kept <= 2, "job {}: the mask keeps {} of four at token {}, channel {}", index, kept, token, channel);
    }
}

}  // namespace

void compress(Side side, DType dtype, int head_dim, std::span<const CompressJob> jobs, LossKind kind, float* loss,
              Stream& stream) {
  require_device(stream.device());
  check_format(dtype, head_dim);
  for (std::size_t i = 0; i < jobs.size(); ++i) check_pointers(jobs[i], i);
  if constexpr (kCudaBuild)
    if (!stream.device().is_cpu()) return cuda::compress(side, dtype, head_dim, jobs, kind, loss, stream);
  for (std::size_t i = 0; i < jobs.size(); ++i) check_mask(side, head_dim, jobs[i].prune, i);
#pragma omp parallel for schedule(dynamic, 4) if (jobs.size() > 8)
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const float value = cpu::has_fast_rule(side, head_dim, jobs[i].prune)
                            ? cpu::compress_page_fast(side, dtype, head_dim, jobs[i], kind)
                            : cpu::compress_page(side, dtype, head_dim, jobs[i], kind);
    if (loss != nullptr) loss[i] = value;
  }
}

void decompress(Side side, DType dtype, int head_dim, const std::byte* sparse, std::byte* dense) {
  check_format(dtype, head_dim);
  std::memset(dense, 0, static_cast<std::size_t>(dense_page_bytes(head_dim)));
  const auto* words = reinterpret_cast<const std::uint32_t*>(sparse + nonzero_bytes(head_dim));
  const int rows = side == Side::K ? kBlock : head_dim;
  const int reduction = side == Side::K ? head_dim : kBlock;
  for (int row = 0; row < rows; ++row)
    for (int group = 0; group < reduction / 4; ++group) {
      const MetadataPlace place = metadata_place(row, group, reduction);
      const std::uint32_t bits = (words[place.word] >> place.shift) & 15;
      const int index[2] = {static_cast<int>(bits & 3), static_cast<int>(bits >> 2)};
      if (index[0] >= index[1])
        fail(ErrorCode::BadFile, "E_METADATA", "metadata of row {}, group {} names {} and {}, must ascend", row, group,
             index[0], index[1]);
      for (int z = 0; z < 2; ++z) {
        const int at = group * 4 + index[z];
        const int from =
            side == Side::K ? k_nonzero_offset(row, group * 2 + z, head_dim) : v_nonzero_offset(group * 2 + z, row);
        const int to = side == Side::K ? dense_offset(row, at) : dense_offset(at, row);
        std::memcpy(dense + to, sparse + from, 2);
      }
    }
}

}  // namespace rarefy::format24
