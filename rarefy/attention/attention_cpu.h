// The CPU versions of attention, behind the checks and the dispatch of attention.cpp.
#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "rarefy/attention/params.h"

namespace rarefy::attention {

/// The oracle: loops in the order of the equation, float64.
/// attend_plain: one query head over blocks begin .. end - 1 of its row's block range; o [head_dim], lse may be null.
void attend_plain(const Params& params, const Row& row, int q_head, std::int64_t begin, std::int64_t end, float* o,
                  float* lse);
void decode_plain(const Params& params);
void prefill_plain(const Params& params, std::span<const std::int32_t> q_start);

/// The product. Decode reads 16-bit and 2:4 pages directly, split over blocks; prefill unpacks each page once per tile
/// of queries and multiplies in float32.
void decode_fast(const Params& params, Workspace& workspace);
void prefill_fast(const Params& params, std::span<const std::int32_t> q_start, Workspace& workspace);

/// Prefill where every query has its own block list: decode of each query.
void prefill_listed(const Params& params, std::span<const std::int32_t> q_start, Workspace& workspace);

/// Instruction sets that the fast kernels of this build have, best first ("AVX3_DL AVX3 AVX2 SSE4 SSE2").
std::string fast_targets();

}  // namespace rarefy::attention
