// The CPU version of sealing, called by compress() with checked arguments.
#pragma once
#include "rarefy/format24/compress.h"

namespace rarefy::format24::cpu {

/// Seals one page; returns its loss. The plain version, for every rule: the oracle.
float compress_page(Side side, DType dtype, int head_dim, const CompressJob& job, LossKind kind);
/// Whether compress_page_fast knows the rule: Magnitude, and Calibrated with positive weights.
bool has_fast_rule(Side side, int head_dim, const PruneInput& prune);
/// As compress_page, to the bit, on vectors.
float compress_page_fast(Side side, DType dtype, int head_dim, const CompressJob& job, LossKind kind);

}  // namespace rarefy::format24::cpu
