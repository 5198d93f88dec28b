// The CPU version of sealing, called by compress() with checked arguments.
#pragma once
#include "rarefy/format24/compress.h"

namespace rarefy::format24::cpu {

/// Seals one page; returns its loss.
float compress_page(Side side, DType dtype, int head_dim, const CompressJob& job, LossKind kind);

}  // namespace rarefy::format24::cpu
